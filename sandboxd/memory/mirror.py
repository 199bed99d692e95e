"""The mirrors of live sandboxes: which exist, which keys each shows, and how a text is installed in all of them.

Owns the table of mirrors and their manifests. The caller of `install` holds the key's lock; the newest revision wins,
in whatever order texts arrive (I3). It never reads the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import ParamSpec, TypeVar

import anyio
from anyio import to_thread

from memo.documents import ArtifactKey, DocumentKey, Scope
from memo.ids import SessionRef, TenantId, UserId
from sandboxd import failpoints
from sandboxd.errors import HostFull
from sandboxd.memory import manifest, tree
from sandboxd.memory.blobs import Blobs
from sandboxd.memory.manifest import Shown
from sandboxd.memory.outcomes import Key
from sandboxd.memory.text import Text, relative_of
from sandboxd.memory.tree import MirrorDraft

_THREADS = 4

P = ParamSpec("P")
R = TypeVar("R")


class Mirror:
    """One live mirror. A thread that changes its files holds `guard`, so that dropping the mirror waits for it."""

    def __init__(self, sandbox_id: str, ref: SessionRef, user: UserId, root: Path, gid: int) -> None:
        self.sandbox_id = sandbox_id
        self.ref = ref
        self.user = user
        self.root = str(root)
        self.gid = gid
        """The group of the container that mounts it."""
        self.since = time.time()
        self.shown: dict[str, Shown] = {}
        self.guard = threading.Lock()
        self.fill_lock = anyio.Lock()
        self.manifest_lock = anyio.Lock()
        self.manifest_after = 0.0
        """Earliest time of the next manifest write, which bounds what long manifests cost."""
        self.is_dropped = False
        self.is_known = False
        """Whether `shown` describes the files. Until then only an earlier daemon's manifest does."""
        self.filling = 0
        """How many snapshots are being filled in now."""
        self.missed: set[Key] = set()
        self.placing = 0
        """How many installations are under way."""
        self.settled: anyio.Event | None = None
        """Set when an installation ends, for `wait_settled`."""

    @property
    def takes_changes(self) -> bool:
        """Whether changes are installed; before and during a snapshot they are only recorded in `missed`."""
        return self.is_known and not self.filling

    def is_behind(self, relative: str, revision: int) -> bool:
        """Return whether it does not yet show this revision or a later one."""
        shown = self.shown.get(relative)
        return not self.takes_changes or shown is None or shown.pending or shown.revision < revision

    def take_missed(self) -> set[Key]:
        missed, self.missed = self.missed, set()
        return missed


class Mirrors:
    def __init__(self, root: Path, blobs: Blobs) -> None:
        self.root = root
        self.blobs = blobs
        self.limiter = anyio.CapacityLimiter(_THREADS)
        self.dirty: dict[str, Mirror] = {}
        """Mirrors whose manifest lags behind their files."""
        self.manifest_due = anyio.Event()
        self._by_id: dict[str, Mirror] = {}
        self._by_session: dict[SessionRef, Mirror] = {}
        self._by_user: dict[tuple[TenantId, UserId], dict[str, Mirror]] = {}

    def track(self, sandbox_id: str, ref: SessionRef, user: UserId) -> Mirror:
        self.drop(sandbox_id)
        mirror = Mirror(sandbox_id, ref, user, self.root / sandbox_id, self.blobs.gid)
        self._by_id[sandbox_id] = self._by_session[ref] = mirror
        self._by_user.setdefault((ref.tenant, user), {})[sandbox_id] = mirror
        return mirror

    def drop(self, sandbox_id: str) -> Mirror | None:
        """Stop tracking a mirror and return it. Once this returns, nothing changes its directory."""
        mirror = self._by_id.pop(sandbox_id, None)
        if mirror is None:
            return None
        mirror.is_dropped = True
        if self._by_session.get(mirror.ref) is mirror:
            del self._by_session[mirror.ref]
        of_user = self._by_user[mirror.ref.tenant, mirror.user]
        of_user.pop(sandbox_id, None)
        if not of_user:
            del self._by_user[mirror.ref.tenant, mirror.user]
        self.dirty.pop(sandbox_id, None)
        with mirror.guard:  # held for one file, or for one batch of a snapshot
            pass
        return mirror

    async def wait_settled(self, mirror: Mirror) -> None:
        """Wait for the installations under way, so that none overwrites a newer snapshot."""
        while mirror.placing:
            settled = mirror.settled = anyio.Event()
            await settled.wait()

    def all(self) -> list[Mirror]:
        return list(self._by_id.values())

    def of_session(self, ref: SessionRef) -> Mirror | None:
        return self._by_session.get(ref)

    def showing(self, key: Key) -> list[Mirror]:
        """Return the mirrors that show this key."""
        if isinstance(key, DocumentKey) and key.scope is Scope.USER:
            return list(self._by_user.get((key.tenant, UserId(key.owner)), {}).values())
        ref = key.session if isinstance(key, ArtifactKey) else SessionRef.of(key.tenant, key.owner)
        mirror = self._by_session.get(ref)
        return [] if mirror is None else [mirror]

    def is_behind(self, key: Key, revision: int) -> bool:
        """Return whether any mirror does not yet show this revision or a later one."""
        relative = relative_of(key)
        return any(mirror.is_behind(relative, revision) for mirror in self.showing(key))

    async def install(
        self, key: Key, text: Text, *, revisioned: bool, pending: bool = False, staged: str | None = None
    ) -> int:
        """Show a text in every mirror that shows an older one. The caller holds the key's lock.

        Returns how many mirrors show it now. After an OSError some show it and the others still show the old one.
        """
        relative = relative_of(key)
        mirrors = self.showing(key)
        behind = []
        for mirror in mirrors:
            if not mirror.takes_changes:
                mirror.missed.add(key)
            elif is_due(text, mirror.shown.get(relative), revisioned=revisioned, pending=pending):
                behind.append(mirror)
        if not behind:
            return len(mirrors)
        for mirror in behind if isinstance(key, DocumentKey) else ():
            for other in clashing(relative, mirror.shown):  # the store has this one, so it no longer has the other
                await self.remove(mirror, other)
        shown = Shown(text.revision, text.sha256, len(text.encoded), time.time(), pending)
        for mirror in behind:
            mirror.placing += 1
        placed: list[Mirror] = []
        try:
            if len(behind) == 1 and revisioned and isinstance(key, DocumentKey):
                # Not worth a blob: only one mirror shows it, and the next revision replaces it.
                await self._write(behind[0], relative, text, staged)
                placed = behind
            else:
                await self._link(behind, relative, text, staged, placed)
        finally:
            for mirror in placed:
                mirror.shown[relative] = shown
            for mirror in behind:
                mirror.placing -= 1
                if mirror.settled is not None:
                    mirror.settled.set()
            self.mark(placed)
        return len(mirrors)

    async def _write(self, mirror: Mirror, relative: str, text: Text, staged: str | None) -> None:
        before = mirror.shown.get(relative)
        if before is not None and before.sha256 == text.sha256:
            return
        draft = MirrorDraft(mirror.root, relative, mirror.gid)

        def write(*, is_whole: bool) -> None:
            with mirror.guard:  # for the draft too: a dropped mirror's directory may be being removed
                if not mirror.is_dropped:
                    draft.write(text.encoded)
                    if is_whole:
                        draft.finish()

        def finish() -> None:
            with mirror.guard:
                if not mirror.is_dropped:
                    draft.finish()

        try:
            if staged is None or not failpoints.is_armed():
                await self.in_thread(write, is_whole=True)
                return
            await self.in_thread(write, is_whole=False)
            await failpoints.reach(staged)
            await self.in_thread(finish)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.in_thread(draft.drop)
            raise

    async def _link(
        self, mirrors: list[Mirror], relative: str, text: Text, staged: str | None, placed: list[Mirror]
    ) -> None:
        tenant = mirrors[0].ref.tenant
        if staged is not None and failpoints.is_armed():
            await self.in_thread(self.blobs.put, tenant, text.sha256, text.encoded)
            await failpoints.reach(staged)

        def place() -> None:
            blob = self.blobs.put(tenant, text.sha256, text.encoded)
            directory, name = tree.split(relative)
            temporary = tree.temporary_name()  # the same name in each, because every mirror has its own directory
            for mirror in mirrors:
                before = mirror.shown.get(relative)
                with mirror.guard:
                    if mirror.is_dropped or (before is not None and before.sha256 == text.sha256):
                        pass
                    elif before is None:
                        tree.show(blob, mirror.root, relative, mirror.gid)
                    else:
                        tree.replace(blob, f"{mirror.root}/{directory}", name, temporary)
                placed.append(mirror)

        await self.in_thread(place)

    async def uninstall(self, key: Key) -> int:
        """Remove a key that the store does not have. The caller holds its lock. Return how many mirrors showed it."""
        relative = relative_of(key)
        removed = 0
        for mirror in self.showing(key):
            if not mirror.takes_changes:
                mirror.missed.add(key)
            elif relative in mirror.shown:
                await self.remove(mirror, relative)
                removed += 1
        return removed

    async def remove(self, mirror: Mirror, relative: str) -> None:
        has_documents = any(path.startswith(f"{relative}/") for path in mirror.shown)

        def work() -> None:
            with mirror.guard:
                if not mirror.is_dropped:
                    tree.remove(mirror.root, relative, is_directory_of_documents=has_documents)

        await self.in_thread(work)
        mirror.shown.pop(relative, None)
        self.mark([mirror])

    def mark(self, mirrors: Iterable[Mirror]) -> None:
        """Mark their manifests as due."""
        for mirror in mirrors:
            if not mirror.is_dropped and mirror.takes_changes:
                self.dirty[mirror.sandbox_id] = mirror
        if self.dirty:
            self.manifest_due.set()

    async def write_manifest(self, mirror: Mirror) -> None:
        async with mirror.manifest_lock:
            self.dirty.pop(mirror.sandbox_id, None)
            if mirror.is_dropped:
                return
            shown = dict(mirror.shown)

            def work() -> None:
                encoded = manifest.encode(shown)
                with mirror.guard:
                    if not mirror.is_dropped:
                        tree.write_manifest(mirror.root, encoded)

            try:
                await self.in_thread(work)
            except (OSError, HostFull):
                if not mirror.is_dropped:
                    self.dirty[mirror.sandbox_id] = mirror
                raise

    async def in_thread(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run file work in a thread and map a disk error to HostFull. Never abandoned, so that `shown` stays true."""
        try:
            return await to_thread.run_sync(lambda: work(*args, **kwargs), limiter=self.limiter)
        except OSError as error:
            raise HostFull(f"cannot write a mirror: {error.strerror or error}") from error


def clashing(relative: str, shown: Collection[str]) -> list[str]:
    """Return the paths that cannot be shown beside this one: a path is a file or a directory."""
    if relative in shown:
        return []
    parts, below = relative.split("/"), f"{relative}/"
    above = {"/".join(parts[:count]) for count in range(2, len(parts))}
    return [path for path in shown if path in above or path.startswith(below)]


def is_due(text: Text, shown: Shown | None, *, revisioned: bool, pending: bool = False) -> bool:
    """Decide whether a text replaces what is shown. I3: a revision only grows.

    A pending text is newer than anything the store has, and is replaced by the store's once it is delivered.
    Without revisions the latest read wins, and the holder of the key's lock has read last.
    """
    if shown is None or shown.pending != pending:
        return True
    if pending or not revisioned:
        return text.sha256 != shown.sha256
    return text.revision > shown.revision
