"""Making mirrors and taking them over: filled from a snapshot, followed from then on, filled again when in doubt.

A snapshot that cannot be complete is no mirror; a mirror that exists is kept through an outage and verified after it.
"""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from memo.errors import InvalidKey
from memo.ids import SessionRef, UserId
from memo.paths import MEMO_ROOT, key_at
from sandboxd import failpoints
from sandboxd.errors import HostFull, SandboxdError, StoreUnavailable
from sandboxd.mirror import manifest, tree
from sandboxd.mirror.announcing import Announcer
from sandboxd.mirror.answers import Key
from sandboxd.mirror.asking import Source
from sandboxd.mirror.filling import Filled, Written, fill
from sandboxd.mirror.live import Mirror, Mirrors
from sandboxd.mirror.manifest import Shown
from sandboxd.mirror.outbox import Outbox
from sandboxd.mirror.refreshing import Refresher
from sandboxd.mirror.retrying import Backoff
from sandboxd.mirror.texts import number_of

_log = structlog.get_logger()

_FIRST_ANSWER_S = 5.0
_BLOBS_AT_ONCE = 50


class Keeper:
    def __init__(
        self, mirrors: Mirrors, source: Source, refresher: Refresher, announcer: Announcer, outbox: Outbox | None
    ) -> None:
        self._mirrors = mirrors
        self._source = source
        self._refresher = refresher
        self._announcer = announcer
        self._outbox = outbox
        self._tasks: TaskGroup

    def start(self, tasks: TaskGroup) -> None:
        self._tasks = tasks

    async def connect(self) -> None:
        """Take the feed's position before any snapshot, if the store answers; else the follower goes on trying."""
        if self._source.capabilities.changes:
            try:
                with anyio.move_on_after(_FIRST_ANSWER_S):
                    await self._refresher.connect()
            except StoreUnavailable as error:
                _log.warning("cannot follow the store's changes yet", error=str(error))

    async def create(self, sandbox_id: str, ref: SessionRef, user: UserId) -> Path:
        # Tracked before the store is read: a change from now on is either in the snapshot or noted as missed.
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
        """Compare with the store by hash and repair, whatever happened meanwhile."""
        filled = await self._fill(mirror)
        for path, how in filled.drift:
            self._announcer.drift(mirror.ref, path, how)
        await self._mirrors.write_manifest(mirror)

    def resync(self) -> None:
        """Changes may have been missed: fill every mirror again."""
        for mirror in self._mirrors.all():
            self._tasks.start_soon(self._refill_later, mirror)

    async def _make_blobs(self, mirror: Mirror, written: list[Written]) -> None:
        """Let the files that a snapshot wrote be blobs, too, now that nobody waits for it."""

        def adopt(files: list[Written]) -> None:
            with mirror.guard:  # nothing is replaced between the look at a file and the link to it
                for file in files if not mirror.is_dropped else ():
                    path = f"{mirror.root}/{file.relative}"
                    self._mirrors.blobs.adopt(mirror.ref.tenant, file.sha256, path, file.signature)

        for start in range(0, len(written), _BLOBS_AT_ONCE):
            await self._mirrors.in_thread(adopt, written[start : start + _BLOBS_AT_ONCE])

    async def _fill(self, mirror: Mirror, *, is_unseen: bool = False) -> Filled:
        # Also what waited before: it may reach the store after the snapshot and be forgotten here before the end.
        waiting = self._waiting_in(mirror)
        try:
            async with mirror.fill_turn:
                filled = await fill(mirror, self._mirrors, self._source, self._waits, is_unseen=is_unseen)
        except SandboxdError:
            if mirror.is_known:  # it goes on showing what it showed, and what was heard meanwhile must follow
                self._mirrors.mark([mirror])  # a part of it may be new already
                for key in mirror.take_missed():
                    self._refresher.hint_soon(key)
            raise
        missed = list(mirror.take_missed() | waiting | self._waiting_in(mirror))
        try:
            while missed:
                await self._refresher.refresh(missed[-1])
                missed.pop()
        except SandboxdError:
            for key in missed:
                self._refresher.hint_soon(key)
            raise
        return filled

    async def _refill_later(self, mirror: Mirror) -> None:
        backoff = Backoff()
        while not mirror.is_dropped:
            await backoff.wait()
            try:
                await self.refill(mirror)
            except (SandboxdError, OSError) as error:
                _log.debug("cannot verify a mirror yet", sandbox=mirror.sandbox_id, error=str(error))
            else:
                return

    def _waiting_in(self, mirror: Mirror) -> set[Key]:
        if self._outbox is None:
            return set()
        return {key for key in self._outbox.waiting_keys() if mirror in self._mirrors.showing(key)}

    def _waits(self, key: Key) -> bool:
        return self._outbox is not None and self._outbox.pending(key) is not None

    def _read_back(self, mirror: Mirror) -> dict[str, Shown]:
        """Tell what the files show, as far as that can be told without the store.

        A file that its manifest does not know may well be newer: it stays, and whatever the store has will replace it.
        """
        claims = manifest.decode(tree.read_manifest(mirror.root))
        shown = {}
        for relative, sha256 in tree.scan(mirror.root, is_quiet=True).items():
            claimed = claims.get(relative)
            if claimed is not None and claimed.sha256 == sha256:
                shown[relative] = claimed
            elif sha256 is not None and (key := _key_at(relative, mirror)) is not None:
                revision = 0 if self._source.has_revisions(key) else number_of(sha256)
                size_bytes = Path(mirror.root, relative).stat().st_size
                shown[relative] = Shown(revision, sha256, size_bytes, time.time())
        return shown


def _key_at(relative: str, mirror: Mirror) -> Key | None:
    try:
        return key_at(f"{MEMO_ROOT}/{relative}", mirror.ref, mirror.user)
    except InvalidKey:
        return None
