"""Filling a mirror from a snapshot of the store: at create, at adoption, and after changes may have been missed.

Complete or an error, never half: an outage must not look like an empty document (I4). A text that the blob cache
has is linked without asking the store for it. Reads run in bounded numbers; what is there already stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
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
from sandboxd.mirror.texts import Item, Text, number_of, relative_of

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
        listed = await source.list_session(mirror.ref, mirror.user)
        found, claims = await mirrors.in_thread(_look, mirror)
        filling = _Filling(mirror, mirrors, source, found, claims, is_unseen)
        mirror.shown = {path: shown for path, shown in claims.items() if found.get(path) == shown.sha256}
        # What waits in the outbox is newer than the store: it stays as it is.
        kept = {
            relative
            for relative, shown in mirror.shown.items()
            if shown.pending and is_pending(key_at(f"{MEMO_ROOT}/{relative}", mirror.ref, mirror.user))
        }
        wanted = [item for item in listed if relative_of(item.key) not in kept] if kept else listed
        try:
            await filling.place(wanted)
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

    async def place(self, wanted: list[Item]) -> None:
        cold: list[Item] = []
        for start in range(0, len(wanted), _LINKS_AT_ONCE):
            cold += await self._mirrors.in_thread(self.link_known, wanted[start : start + _LINKS_AT_ONCE])
        await each(list(_batches(cold, self._source)), self.fetch, _READS_AT_ONCE)

    def link_known(self, items: list[Item]) -> list[Item]:
        """Keep or link every item whose text is here, and return the others. There may be very many."""
        cold = []
        find, found, claims, done = self._mirrors.blobs.find_lately, self._found, self._claims, self.done
        has_revisions, tenant = self._source.has_revisions, self._mirror.ref.tenant
        now, monotonic = self._now, time.monotonic()
        with self._mirror.guard:
            for item in items if not self._mirror.is_dropped else ():
                key, revision, sha256, size_bytes, _ = item
                if sha256 is None or revision is None or size_bytes is None:
                    cold.append(item)
                    continue
                relative = relative_of(key)
                if found.get(relative) != sha256:
                    blob = find(tenant, sha256, monotonic)
                    if blob is None or not self._place_found(blob, relative):
                        cold.append(item)
                        continue
                if not has_revisions(key):
                    revision = number_of(sha256)
                done[relative] = Shown(revision, sha256, size_bytes, self._since(relative, sha256) if claims else now)
        return cold

    async def fetch(self, batch: list[Item]) -> None:
        if isinstance(batch[0].key, ArtifactKey):
            texts = await self._source.read_artifacts(self._mirror.ref, batch)
        else:
            (item,) = batch
            text = await self._source.read(item.key)
            if text is None and item.sha256 is not None:
                raise StoreUnavailable(f"cannot snapshot {name_of(item.key)}: the store lists it and does not have it")
            texts = iter(() if text is None else ((item, text),))
        await self._mirrors.in_thread(self._keep, texts)

    def _keep(self, texts: Iterator[tuple[Item, Text]]) -> None:
        checked = list(texts)
        with self._mirror.guard:
            for item, text in checked if not self._mirror.is_dropped else ():
                relative = relative_of(item.key)
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

    def _place_found(self, blob: str, relative: str) -> bool:
        """Place a blob that was there a moment ago; say whether it still was."""
        try:
            self._place(blob, relative)
        except FileNotFoundError:
            if os.path.exists(blob):
                raise
            return False
        return True

    def _place(self, blob: str, relative: str) -> None:
        if self._found.get(relative) is None:
            tree.show(blob, self._mirror.root, relative)
            return
        directory, name = tree.split(relative)
        tree.replace(blob, f"{self._mirror.root}/{directory}", name, tree.temporary_name())

    def _since(self, relative: str, sha256: str) -> float:
        claimed = self._claims.get(relative)
        return claimed.refreshed_at if claimed is not None and claimed.sha256 == sha256 else self._now


def _look(mirror: Mirror) -> tuple[dict[str, str | None], dict[str, Shown]]:
    with mirror.guard:
        if not mirror.is_dropped:
            tree.prepare(mirror.root)
    # Without the guard: hashing may take long, whoever drops the mirror waits for it, and nobody else changes files.
    found = tree.scan(mirror.root, is_quiet=True)
    if mirror.is_known:  # the manifest may be behind
        return found, dict(mirror.shown)
    return found, manifest.decode(tree.read_manifest(mirror.root))


def _batches(cold: Iterable[Item], source: Source) -> Iterator[list[Item]]:
    batch: list[Item] = []
    size_bytes = 0
    for item in cold:
        if not isinstance(item.key, ArtifactKey) or not source.capabilities.rich_artifacts:
            yield [item]
            continue
        batch.append(item)
        size_bytes += item.size_bytes or 0
        if len(batch) >= _BATCH or size_bytes >= _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch
