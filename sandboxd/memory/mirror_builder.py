"""MirrorBuilder: creates and adopts mirrors from snapshots of the store, and fills them again when in doubt.

A new mirror is complete or its create fails. A mirror that exists is kept through an outage and verified afterwards.
"""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from memo.content import number_of
from memo.errors import InvalidKey
from memo.ids import SessionRef, UserId
from memo.paths import MEMO_ROOT, key_at
from sandboxd import failpoints
from sandboxd.errors import HostFull, SandboxdError, StoreUnavailable
from sandboxd.memory import manifest, tree
from sandboxd.memory.announcer import Announcer
from sandboxd.memory.manifest import Shown
from sandboxd.memory.mirror import Mirror, Mirrors
from sandboxd.memory.outbox import Outbox
from sandboxd.memory.outcomes import Key
from sandboxd.memory.refresher import Refresher
from sandboxd.memory.snapshot import SnapshotResult, WrittenFile, take_snapshot
from sandboxd.memory.store_client import StoreClient
from sandboxd.retries import Retries

_log = structlog.get_logger()

_FIRST_ANSWER_S = 5.0
_BLOB_BATCH = 50


class MirrorBuilder:
    def __init__(
        self, mirrors: Mirrors, store: StoreClient, refresher: Refresher, announcer: Announcer, outbox: Outbox | None
    ) -> None:
        self._mirrors = mirrors
        self._store = store
        self._refresher = refresher
        self._announcer = announcer
        self._outbox = outbox
        self._tasks: TaskGroup

    def start(self, tasks: TaskGroup) -> None:
        self._tasks = tasks

    async def connect(self) -> None:
        """Read the feed's position before any snapshot, if the store answers; otherwise the refresher retries."""
        if self._store.capabilities.changes:
            try:
                with anyio.move_on_after(_FIRST_ANSWER_S):
                    await self._refresher.connect()
            except StoreUnavailable as error:
                _log.warning("cannot follow the store's changes yet", error=str(error))

    async def create(self, sandbox_id: str, ref: SessionRef, user: UserId) -> Path:
        # Tracked before the store is read, so that a change is either in the snapshot or recorded as missed.
        mirror = self._mirrors.track(sandbox_id, ref, user)
        try:
            filled = await self._fill(mirror, is_unseen=True)
            await self._mirrors.write_manifest(mirror)
            await failpoints.reach("create.snapshot")
        except BaseException:
            with anyio.CancelScope(shield=True):
                self._mirrors.drop(sandbox_id)
                await to_thread.run_sync(tree.clear, mirror.root, limiter=self._mirrors.limiter)
            raise
        self._announcer.mirror("snapshot", tenant=ref.tenant, session=ref.session, files=filled.files)
        if filled.written:
            self._tasks.start_soon(self._make_blobs, mirror, filled.written)
        return Path(mirror.root)

    async def adopt(self, sandbox_id: str, ref: SessionRef, user: UserId) -> Path:
        mirror = self._mirrors.track(sandbox_id, ref, user)
        try:
            await failpoints.reach("adopt.mirror")
            await self.refill(mirror)
        except (StoreUnavailable, HostFull) as error:
            _log.warning("cannot verify a mirror at adoption", sandbox=sandbox_id, error=str(error))
            self._announcer.mirror("lagging", tenant=ref.tenant, session=ref.session)
            mirror.shown = await self._mirrors.in_thread(self._read_back, mirror)
            mirror.is_known = True
            self._tasks.start_soon(self._refill_later, mirror)
        return Path(mirror.root)

    async def refill(self, mirror: Mirror) -> None:
        """Compare the mirror with the store by hash and repair it."""
        filled = await self._fill(mirror)
        for path, how in filled.drift:
            self._announcer.drift(mirror.ref, path, how)
        await self._mirrors.write_manifest(mirror)

    def resync(self) -> None:
        """Fill every mirror again, because changes may have been missed."""
        for mirror in self._mirrors.all():
            self._tasks.start_soon(self._refill_later, mirror)

    async def _make_blobs(self, mirror: Mirror, written: list[WrittenFile]) -> None:
        """Turn the files that a snapshot wrote into blobs, after the caller has been answered."""

        def adopt(files: list[WrittenFile]) -> None:
            with mirror.guard:  # no file is replaced between its check and its link
                for file in files if not mirror.is_dropped else ():
                    path = f"{mirror.root}/{file.relative}"
                    self._mirrors.blobs.adopt(mirror.ref.tenant, file.sha256, path, file.signature)

        for start in range(0, len(written), _BLOB_BATCH):
            await self._mirrors.in_thread(adopt, written[start : start + _BLOB_BATCH])

    async def _fill(self, mirror: Mirror, *, is_unseen: bool = False) -> SnapshotResult:
        # Taken before the snapshot too: a queued write may reach the store, and leave the outbox, after it.
        queued = self._queued_in(mirror)
        try:
            async with mirror.fill_lock:
                result = await take_snapshot(mirror, self._mirrors, self._store, self._is_queued, is_unseen=is_unseen)
        except SandboxdError:
            if mirror.is_known:  # it keeps what it showed, and missed changes are refreshed one by one
                self._mirrors.mark([mirror])  # some files may be new already
                for key in mirror.take_missed():
                    self._refresher.hint_soon(key)
            raise
        missed = list(mirror.take_missed() | queued | self._queued_in(mirror))
        try:
            while missed:
                await self._refresher.refresh(missed[-1])
                missed.pop()
        except SandboxdError:
            for key in missed:
                self._refresher.hint_soon(key)
            raise
        return result

    async def _refill_later(self, mirror: Mirror) -> None:
        retries = Retries()
        while not mirror.is_dropped:
            await retries.wait()
            try:
                await self.refill(mirror)
            except (SandboxdError, OSError) as error:
                _log.debug("cannot verify a mirror yet", sandbox=mirror.sandbox_id, error=str(error))
            else:
                return

    def _queued_in(self, mirror: Mirror) -> set[Key]:
        if self._outbox is None:
            return set()
        return {key for key in self._outbox.waiting_keys() if mirror in self._mirrors.showing(key)}

    def _is_queued(self, key: Key) -> bool:
        return self._outbox is not None and self._outbox.pending(key) is not None

    def _read_back(self, mirror: Mirror) -> dict[str, Shown]:
        """Return what the files show, as far as it can be known without the store.

        A file that is not in the manifest may be newer than it, so it stays until the store's text replaces it.
        """
        claims = manifest.decode(tree.read_manifest(mirror.root))
        shown = {}
        for relative, sha256 in tree.scan(mirror.root, is_quiet=True).items():
            claimed = claims.get(relative)
            if claimed is not None and claimed.sha256 == sha256:
                shown[relative] = claimed
            elif sha256 is not None and (key := _key_at(relative, mirror)) is not None:
                revision = 0 if self._store.has_revisions(key) else number_of(sha256)
                size_bytes = Path(mirror.root, relative).stat().st_size
                shown[relative] = Shown(revision, sha256, size_bytes, time.time())
        return shown


def _key_at(relative: str, mirror: Mirror) -> Key | None:
    try:
        return key_at(f"{MEMO_ROOT}/{relative}", mirror.ref, mirror.user)
    except InvalidKey:
        return None
