"""Snapshots: fill a mirror with what the store has, at create, at adoption and after missed changes.

A snapshot is complete or an error, never partial: an outage must not look like an empty document (I4). A text in the
blob cache is linked without reading it from the store. Concurrent reads are bounded; files that are current stay
untouched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from memo.documents import ArtifactKey, DocumentKey
from memo.paths import MEMO_ROOT, key_at
from sandboxd.bounded import each
from sandboxd.errors import StoreUnavailable
from sandboxd.memory import manifest, tree
from sandboxd.memory.blobs import Signature
from sandboxd.memory.manifest import Shown
from sandboxd.memory.mirror import Mirror, Mirrors
from sandboxd.memory.outcomes import Key
from sandboxd.memory.store_client import StoreClient, name_of
from sandboxd.memory.text import Line, Text, is_artifact, key_of

_LINK_BATCH = 2000
_BATCH = 250
_BATCH_BYTES = 4 * 1024 * 1024
_READS_AT_ONCE = 4


@dataclass(slots=True)
class SnapshotResult:
    """What a snapshot found and did. `drift` lists changes to the directory by other programs: path and kind."""

    files: int = 0
    drift: list[tuple[str, str]] = field(default_factory=list)
    written: list[WrittenFile] = field(default_factory=list)
    """Files that were written directly and have no blob yet."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    relative: str
    sha256: str
    signature: Signature


async def take_snapshot(
    mirror: Mirror, mirrors: Mirrors, store: StoreClient, is_pending: Callable[[Key], bool], *, is_unseen: bool = False
) -> SnapshotResult:
    """Make the mirror show what the store has. Changes during it are recorded in `missed` for the caller to replay.

    An `is_unseen` mirror is not mounted for reading yet, so new texts are written in place: a blob and a link would
    take three times as long while a create waits. The caller makes blobs of them afterwards.
    """
    mirror.filling += 1
    try:
        await mirrors.wait_settled(mirror)
        lines, (found, claims) = await _list_and_look(mirror, mirrors, store)
        snapshot = _Snapshot(mirror, mirrors, store, found, claims, is_unseen)
        mirror.shown = {path: shown for path, shown in claims.items() if found.get(path) == shown.sha256}
        # A queued write is newer than the store, so what shows it stays.
        kept = {
            relative
            for relative, shown in mirror.shown.items()
            if shown.pending and is_pending(key_at(f"{MEMO_ROOT}/{relative}", mirror.ref, mirror.user))
        }
        if found:
            await mirrors.in_thread(snapshot.make_room, lines, kept)
        try:
            await snapshot.place([line for line in lines if line[0] not in kept] if kept else lines)
        except BaseException:
            mirror.shown.update(snapshot.done)  # files that are already in place are shown
            raise
        snapshot.done.update({relative: mirror.shown[relative] for relative in kept})
        if snapshot.has_others:
            await mirrors.in_thread(snapshot.remove_others)
        mirror.shown = snapshot.done
        mirror.is_known = True
    finally:
        mirror.filling -= 1
    return SnapshotResult(len(mirror.shown), snapshot.drift(), snapshot.written)


class _Snapshot:
    """One snapshot under way. Methods that touch files run in threads, each on its own items."""

    def __init__(
        self,
        mirror: Mirror,
        mirrors: Mirrors,
        store: StoreClient,
        found: dict[str, str | None],
        claims: dict[str, Shown],
        is_unseen: bool,
    ) -> None:
        self._mirror = mirror
        self._mirrors = mirrors
        self._store = store
        self._found = found
        self._claims = claims
        self._is_unseen = is_unseen
        self._now = time.time()
        self.done: dict[str, Shown] = {}
        self.written: list[WrittenFile] = []

    def make_room(self, lines: list[Line], kept: set[str]) -> None:
        """Remove the files that lie where a document's directory must be, or below a document."""
        wanted = {line[0] for line in lines if not is_artifact(line[0])}
        above = {directory for relative in wanted for directory in _directories(relative)}
        with self._mirror.guard:
            for relative in self._found.keys() - wanted - kept if not self._mirror.is_dropped else ():
                if relative in above or not wanted.isdisjoint(_directories(relative)):
                    tree.remove(self._mirror.root, relative)

    async def place(self, lines: list[Line]) -> None:
        cold: list[Line] = []
        for start in range(0, len(lines), _LINK_BATCH):
            cold += await self._mirrors.in_thread(self.link_known, lines[start : start + _LINK_BATCH])
        # Batches one at a time: more threads would only wait for each other.
        at_once = 1 if self._store.has_snapshots else _READS_AT_ONCE
        await each(list(_batches(cold, self._store)), self.fetch, at_once)

    def link_known(self, lines: list[Line]) -> list[Line]:
        """Keep or link every file whose text is available locally, and return the other lines."""
        with self._mirror.guard:
            if self._mirror.is_dropped:
                return []
            root = os.open(self._mirror.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return self._link_known(lines, root)
            finally:
                os.close(root)

    def _link_known(self, lines: list[Line], root: int) -> list[Line]:
        """The inner loop for tens of thousands of lines: attributes are bound once, links are relative to the root."""
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
        if not self._store.can_batch(batch[0][0]):
            await self._fetch_one(batch[0], keys[0])
            return
        texts = await self._store.read_batch(keys)
        for number in await self._mirrors.in_thread(self._keep, batch, keys, texts):
            await self._fetch_one(batch[number], keys[number])

    def _keep(self, batch: list[Line], keys: list[Key], texts: list[object]) -> list[int]:
        """Show these texts, and return the indexes of those that differ from the list."""
        checked: list[tuple[str, Text]] = []
        doubtful = []
        for number, ((relative, revision, sha256, _), text) in enumerate(zip(batch, texts, strict=True)):
            kept = None if text is None else Text.of(self._store.encoded(keys[number], text), revision)
            if kept is None or kept.sha256 != sha256:
                doubtful.append(number)
            else:
                checked.append((relative, kept))
        self._show(checked)
        return doubtful

    async def _fetch_one(self, line: Line, key: Key) -> None:
        """Read one text by itself: its hash was not listed, it changed since, or the store lost it."""
        relative, revision, sha256, _ = line
        text = await (self._store.read_artifact(key) if isinstance(key, ArtifactKey) else self._store.read(key))
        if text is None:
            if isinstance(key, DocumentKey) and sha256 is not None and await self._store.was_deleted(key):
                return  # after it was listed
            if sha256 is not None or isinstance(key, ArtifactKey):
                raise StoreUnavailable(f"cannot snapshot {name_of(key)}: the store lists it but does not have it")
            return  # it was never written
        if isinstance(key, ArtifactKey):
            text = Text.of(text.encoded, revision)  # a newer revision is announced by the feed, and will be shown
        await self._mirrors.in_thread(self._show, [(relative, text)])

    def _show(self, texts: list[tuple[str, Text]]) -> None:
        with self._mirror.guard:
            for relative, text in texts if not self._mirror.is_dropped else ():
                if self._is_unseen and relative not in self._found:
                    signature = tree.write_new(self._mirror.root, relative, text.encoded, self._mirror.gid)
                    self.written.append(WrittenFile(relative, text.sha256, signature))
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
                has_documents = any(path.startswith(f"{relative}/") for path in self.done)
                tree.remove(self._mirror.root, relative, is_directory_of_documents=has_documents)

    def drift(self) -> list[tuple[str, str]]:
        """Return the files that differ from the manifest and are not a newer text. A first snapshot has none."""
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
        """Link a blob that existed a moment ago; return whether it still did."""
        try:
            os.link(blob, relative, dst_dir_fd=root)  # the fast path: nearly always the name is free
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
    mirror: Mirror, mirrors: Mirrors, store: StoreClient
) -> tuple[list[Line], tuple[dict[str, str | None], dict[str, Shown]]]:
    """List the store and scan the directory concurrently."""
    lines: list[Line] = []
    seen: list[tuple[dict[str, str | None], dict[str, Shown]]] = []

    async def ask() -> None:
        lines.extend(await store.list_files(mirror.ref, mirror.user))

    async def look() -> None:
        seen.append(await mirrors.in_thread(_look, mirror))

    await each([ask, look], lambda work: work(), at_once=2)
    return lines, seen[0]


def _look(mirror: Mirror) -> tuple[dict[str, str | None], dict[str, Shown]]:
    with mirror.guard:
        if not mirror.is_dropped:
            tree.prepare(mirror.root, mirror.gid)
            tree.remove_empty(mirror.root)
    # Without the guard: hashing may take long, a drop would wait for it, and nothing else changes these files now.
    found = tree.scan(mirror.root, is_quiet=True)
    if mirror.is_known:  # the manifest may lag
        return found, dict(mirror.shown)
    return found, manifest.decode(tree.read_manifest(mirror.root))


def _directories(relative: str) -> list[str]:
    """Return the directories of a path, without its scope."""
    parts = relative.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts))]


def _batches(cold: list[Line], store: StoreClient) -> Iterator[list[Line]]:
    """Group the texts to read into calls: several in each if the store can batch, up to a limit of bytes."""
    batch: list[Line] = []
    size_bytes = 0
    for line in cold:
        if not store.can_batch(line[0]):
            yield [line]
            continue
        batch.append(line)
        size_bytes += line[3] or 0
        if len(batch) >= _BATCH or size_bytes >= _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch
