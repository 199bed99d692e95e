"""Filling a mirror from a snapshot of the store: at create, at adoption, and after changes may have been missed.

Complete or an error, never half: an outage must not look like an empty document (I4). A text that the blob cache
has is linked without asking the store for it. Reads run in bounded numbers; what is there already stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from memo.documents import ArtifactKey
from memo.paths import MEMO_ROOT, key_at
from sandboxd.bounded import each
from sandboxd.errors import StoreUnavailable
from sandboxd.mirror import manifest, tree
from sandboxd.mirror.answers import Key
from sandboxd.mirror.asking import Source, name_of
from sandboxd.mirror.blobs import Signature, write_file
from sandboxd.mirror.live import Mirror, Mirrors
from sandboxd.mirror.manifest import Shown
from sandboxd.mirror.texts import Line, Text, key_of

_LINKS_AT_ONCE = 2000
_BATCH = 250
_BATCH_BYTES = 4 * 1024 * 1024
_READS_AT_ONCE = 4


@dataclass(slots=True)
class Filled:
    """What filling found and did. `drift` is what somebody else did to the directory: path and how."""

    files: int = 0
    drift: list[tuple[str, str]] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    """Files that are not links to blobs yet."""


@dataclass(frozen=True, slots=True)
class Written:
    relative: str
    sha256: str
    signature: Signature


async def fill(
    mirror: Mirror, mirrors: Mirrors, source: Source, is_pending: Callable[[Key], bool], *, is_unseen: bool = False
) -> Filled:
    """Make the mirror show what the store has. Changes meanwhile are noted in `missed`, for the caller to replay.

    If it `is_unseen`, nobody reads it before it is filled, and a new text is written in its place at once: a blob
    first and then a link to it would take three times as long while somebody waits. The caller makes blobs of them.
    """
    mirror.filling += 1
    try:
        await mirrors.wait_settled(mirror)
        lines, (found, claims) = await _list_and_look(mirror, mirrors, source)
        filling = _Filling(mirror, mirrors, source, found, claims, is_unseen)
        mirror.shown = {path: shown for path, shown in claims.items() if found.get(path) == shown.sha256}
        # What waits in the outbox is newer than the store: it stays as it is.
        kept = {
            relative
            for relative, shown in mirror.shown.items()
            if shown.pending and is_pending(key_at(f"{MEMO_ROOT}/{relative}", mirror.ref, mirror.user))
        }
        try:
            await filling.place([line for line in lines if line[0] not in kept] if kept else lines)
        except BaseException:
            mirror.shown.update(filling.done)  # what is in place already is what the mirror shows
            raise
        filling.done.update({relative: mirror.shown[relative] for relative in kept})
        if filling.has_others:
            await mirrors.in_thread(filling.remove_others)
        mirror.shown = filling.done
        mirror.is_known = True
    finally:
        mirror.filling -= 1
    return Filled(len(mirror.shown), filling.drift(), filling.written)


class _Filling:
    """One filling under way. Its methods that touch files run in threads, each on its own items."""

    def __init__(
        self,
        mirror: Mirror,
        mirrors: Mirrors,
        source: Source,
        found: dict[str, str | None],
        claims: dict[str, Shown],
        is_unseen: bool,
    ) -> None:
        self._mirror = mirror
        self._mirrors = mirrors
        self._source = source
        self._found = found
        self._claims = claims
        self._is_unseen = is_unseen
        self._now = time.time()
        self.done: dict[str, Shown] = {}
        self.written: list[Written] = []

    async def place(self, lines: list[Line]) -> None:
        cold: list[Line] = []
        for start in range(0, len(lines), _LINKS_AT_ONCE):
            cold += await self._mirrors.in_thread(self.link_known, lines[start : start + _LINKS_AT_ONCE])
        # Of batches one at a time: more threads would only wait for each other.
        at_once = 1 if self._source.has_snapshots else _READS_AT_ONCE
        await each(list(_batches(cold, self._source)), self.fetch, at_once)

    def link_known(self, lines: list[Line]) -> list[Line]:
        """Keep or link every file whose text is here, and return the others."""
        with self._mirror.guard:
            if self._mirror.is_dropped:
                return []
            root = os.open(self._mirror.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return self._link_known(lines, root)
            finally:
                os.close(root)

    def _link_known(self, lines: list[Line], root: int) -> list[Line]:
        """There may be very many: what is looked up for each of them is looked up once, and paths begin at the root."""
        cold = []
        find, found, claims, done = self._mirrors.blobs.find_lately, self._found, self._claims, self.done
        tenant, now, monotonic = self._mirror.ref.tenant, self._now, time.monotonic()
        for line in lines:
            relative, revision, sha256, size_bytes = line
            if sha256 is None or revision is None or size_bytes is None:
                cold.append(line)
                continue
            if found.get(relative) != sha256:
                blob = find(tenant, sha256, monotonic)
                if blob is None or not self._place_found(blob, relative, root):
                    cold.append(line)
                    continue
            done[relative] = Shown(revision, sha256, size_bytes, self._since(relative, sha256) if claims else now)
        return cold

    async def fetch(self, batch: list[Line]) -> None:
        keys = [key_of(relative, self._mirror.ref, self._mirror.user) for relative, *_ in batch]
        if not self._source.takes_many(batch[0][0]):
            await self._fetch_one(batch[0], keys[0])
            return
        texts = await self._source.read_texts(keys)
        for number in await self._mirrors.in_thread(self._keep, batch, keys, texts):
            await self._fetch_one(batch[number], keys[number])

    def _keep(self, batch: list[Line], keys: list[Key], texts: list[object]) -> list[int]:
        """Show these texts, and return the numbers of those that are not what was listed."""
        checked: list[tuple[str, Text]] = []
        doubtful = []
        for number, ((relative, revision, sha256, _), text) in enumerate(zip(batch, texts, strict=True)):
            kept = None if text is None else Text.of(self._source.encoded(keys[number], text), revision)
            if kept is None or kept.sha256 != sha256:
                doubtful.append(number)
            else:
                checked.append((relative, kept))
        self._show(checked)
        return doubtful

    async def _fetch_one(self, line: Line, key: Key) -> None:
        """Read a text by itself: nobody knew its hash, it has changed since it was listed, or the store has lost it."""
        relative, revision, sha256, _ = line
        text = await (self._source.read_artifact(key) if isinstance(key, ArtifactKey) else self._source.read(key))
        if text is None:
            if sha256 is not None or isinstance(key, ArtifactKey):
                raise StoreUnavailable(f"cannot snapshot {name_of(key)}: the store lists it and does not have it")
            return  # it was never written
        if isinstance(key, ArtifactKey):
            text = Text.of(text.encoded, revision)  # a newer revision has been announced, and will be shown
        await self._mirrors.in_thread(self._show, [(relative, text)])

    def _show(self, texts: list[tuple[str, Text]]) -> None:
        with self._mirror.guard:
            for relative, text in texts if not self._mirror.is_dropped else ():
                if self._is_unseen and relative not in self._found:
                    signature = write_file(f"{self._mirror.root}/{relative}", text.encoded)
                    self.written.append(Written(relative, text.sha256, signature))
                elif self._found.get(relative) != text.sha256:
                    self._place(self._mirrors.blobs.put(self._mirror.ref.tenant, text.sha256, text.encoded), relative)
                since = self._since(relative, text.sha256)
                self.done[relative] = Shown(text.revision, text.sha256, len(text.encoded), since)

    @property
    def has_others(self) -> bool:
        return not self._found.keys() <= self.done.keys()

    def remove_others(self) -> None:
        with self._mirror.guard:
            for relative in self._found.keys() - self.done.keys() if not self._mirror.is_dropped else ():
                tree.remove(self._mirror.root, relative)

    def drift(self) -> list[tuple[str, str]]:
        """Say what differs from the manifest and is no newer text either. A first filling has no drift."""
        drift = []
        for relative, sha256 in self._found.items():
            now, claimed = self.done.get(relative), self._claims.get(relative)
            if now is None:
                drift.append((relative, "extra"))
            elif claimed is not None and sha256 not in (claimed.sha256, now.sha256):
                drift.append((relative, "content"))
        drift += [(relative, "missing") for relative in self._claims if relative not in self._found]
        return drift

    def _place_found(self, blob: str, relative: str, root: int) -> bool:
        """Place a blob that was there a moment ago; say whether it still was."""
        try:
            os.link(blob, relative, dst_dir_fd=root)  # nearly always nothing is there, and there may be very many
        except OSError:
            return self._place_there(blob, relative)
        return True

    def _place_there(self, blob: str, relative: str) -> bool:
        try:
            self._place(blob, relative)
        except FileNotFoundError:
            if os.path.exists(blob):
                raise
            return False
        return True

    def _place(self, blob: str, relative: str) -> None:
        if self._found.get(relative) is None:
            tree.show(blob, self._mirror.root, relative, self._mirror.gid)
            return
        directory, name = tree.split(relative)
        tree.replace(blob, f"{self._mirror.root}/{directory}", name, tree.temporary_name())

    def _since(self, relative: str, sha256: str) -> float:
        claimed = self._claims.get(relative)
        return claimed.refreshed_at if claimed is not None and claimed.sha256 == sha256 else self._now


async def _list_and_look(
    mirror: Mirror, mirrors: Mirrors, source: Source
) -> tuple[list[Line], tuple[dict[str, str | None], dict[str, Shown]]]:
    """Ask the store and look at the directory at the same time: neither has to do with the other."""
    lines: list[Line] = []
    seen: list[tuple[dict[str, str | None], dict[str, Shown]]] = []

    async def ask() -> None:
        lines.extend(await source.lines(mirror.ref, mirror.user))

    async def look() -> None:
        seen.append(await mirrors.in_thread(_look, mirror))

    await each([ask, look], lambda work: work(), at_once=2)
    return lines, seen[0]


def _look(mirror: Mirror) -> tuple[dict[str, str | None], dict[str, Shown]]:
    with mirror.guard:
        if not mirror.is_dropped:
            tree.prepare(mirror.root, mirror.gid)
    # Without the guard: hashing may take long, whoever drops the mirror waits for it, and nobody else changes files.
    found = tree.scan(mirror.root, is_quiet=True)
    if mirror.is_known:  # the manifest may be behind
        return found, dict(mirror.shown)
    return found, manifest.decode(tree.read_manifest(mirror.root))


def _batches(cold: list[Line], source: Source) -> Iterator[list[Line]]:
    """Cut what is to be read into calls: many texts in each if the store takes many, but not too many bytes."""
    batch: list[Line] = []
    size_bytes = 0
    for line in cold:
        if not source.takes_many(line[0]):
            yield [line]
            continue
        batch.append(line)
        size_bytes += line[3] or 0
        if len(batch) >= _BATCH or size_bytes >= _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch
