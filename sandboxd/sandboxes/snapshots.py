"""Snapshots: copies of workspaces that outlive their sandboxes, within a quota.

Owns DATA/snapshots. A snapshot is recorded before its file is made and before it is removed, so a crash leaves either a
ready snapshot or nothing. It never changes a workspace, and it removes a ready snapshot only on request. (I14)
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from memo.ids import SessionRef, TenantId, UserId
from sandboxd import failpoints
from sandboxd.errors import (
    Conflict,
    Gone,
    HostFull,
    LimitReached,
    NotReady,
    SandboxdError,
    SandboxNotFound,
    SnapshotNotFound,
    host_error,
)
from sandboxd.events import EventBus
from sandboxd.models.snapshot import SnapshotView
from sandboxd.permissions import make_private
from sandboxd.sandboxes.lifecycle import State
from sandboxd.sandboxes.reserve import Reserve
from sandboxd.sandboxes.sandbox import Sandbox
from sandboxd.sandboxes.snapshot_record import SnapshotFormat, SnapshotRecord, SnapshotTable
from sandboxd.sandboxes.workspace_archive import load_archive, save_archive
from sandboxd.workspace import CopyProgress, Workspaces, images

_log = structlog.get_logger()

_DRAFT = ".new-"
_MIB = 1024 * 1024


class SnapshotJob:
    """A snapshot that is being taken. It goes on when its caller leaves."""

    def __init__(self, record: SnapshotRecord) -> None:
        self.record = record
        self.progress = CopyProgress(0, record.size_bytes)
        self.failure: SandboxdError | None = None
        self.done = anyio.Event()

    async def wait(self) -> SnapshotView:
        """Wait until the snapshot is ready; raise why it is not."""
        await self.done.wait()
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        return self.record.view()


class SnapshotSource:
    """Fills the workspace of a new sandbox from a snapshot."""

    def __init__(self, record: SnapshotRecord, path: Path, workspaces: Workspaces) -> None:
        self._record = record
        self._path = path
        self._workspaces = workspaces

    async def fill_workspace(self, sandbox: Sandbox) -> None:
        if self._record.format == "tar":
            return  # by the runner, inside
        if not self._path.exists():
            raise SnapshotNotFound(f"cannot use snapshot {self._record.id}: it was removed in the meantime")
        await self._workspaces.make_from(sandbox.record.id, self._path)

    async def before_ready(self, sandbox: Sandbox) -> None:
        if self._record.format == "tar" and sandbox.runner is not None:
            await load_archive(sandbox.runner, self._path)


class Snapshots:
    """`tasks` runs the copies, so that a caller that disconnects leaves nothing half done."""

    def __init__(
        self,
        directory: Path,
        table: SnapshotTable,
        workspaces: Workspaces,
        reserve: Reserve,
        events: EventBus,
        *,
        max_of_session: int,
        max_mb: int,
        freeze_s: float,
    ) -> None:
        self._directory = directory
        self._table = table
        self._workspaces = workspaces
        self._reserve = reserve
        self._events = events
        self._max_of_session = max_of_session
        self._max_mb = max_mb
        self._freeze_s = freeze_s
        self._records: dict[str, SnapshotRecord] = {}
        self._jobs: dict[str, SnapshotJob] = {}
        self._reported: set[str] = set()
        """Files without a record that were reported."""
        self._tasks: TaskGroup

    async def open(self, tasks: TaskGroup) -> None:
        """Load the records, and remove what a crash left of snapshots that were being taken or removed."""
        self._tasks = tasks
        make_private(self._directory)
        for record in await self._table.load():
            if record.phase == "ready":
                self._records[record.id] = record
                if not self._path(record).exists():
                    _log.warning("the file of a snapshot is missing; restore it, or remove the snapshot", id=record.id)
            else:
                await self._discard(record)
        await self.find_unclaimed()

    async def find_unclaimed(self) -> list[str]:
        """Remove drafts without a record, and return the names of other files without one, which are kept."""
        known = {self._path(record).name for record in self._records.values()}
        drafts = {f"{_DRAFT}{snapshot_id}" for snapshot_id in self._jobs}
        unclaimed = []
        for name in sorted(await to_thread.run_sync(os.listdir, self._directory)):
            if name.startswith(_DRAFT) and name not in drafts:
                (self._directory / name).unlink(missing_ok=True)
            elif not name.startswith(_DRAFT) and name not in known:
                unclaimed.append(name)
        for name in set(unclaimed) - self._reported:
            self._reported.add(name)
            path = str(self._directory / name)
            _log.warning("a snapshot has no record and is kept; restore the registry, or remove the file", path=path)
        return unclaimed

    @property
    def under_way(self) -> int:
        """How many snapshots are being taken."""
        return len(self._jobs)

    def of_session(self, ref: SessionRef) -> list[SnapshotView]:
        """Return the session's snapshots, oldest first, whether it has a sandbox or not."""
        return [record.view() for record in self._ready() if record.ref == ref]

    def get(self, ref: SessionRef, snapshot_id: str) -> SnapshotView:
        return self._find(ref, snapshot_id).view()

    def of_user(self, tenant: TenantId, user: UserId, snapshot_id: str) -> SnapshotRecord:
        """Return a snapshot for a new sandbox of this user; another user's is not found."""
        record = self._records.get(snapshot_id)
        if record is None or record.phase != "ready" or (record.ref.tenant, record.user) != (tenant, user):
            raise SnapshotNotFound("cannot find this snapshot for this user; list a session's snapshots")
        if record.format == "image" and self._workspaces.kind != "loop":
            raise Conflict(
                "cannot use this snapshot: it is a filesystem image, and this daemon cannot mount one; run it as root "
                "with loop devices"
            )
        return record

    def source(self, record: SnapshotRecord) -> SnapshotSource:
        return SnapshotSource(record, self._path(record), self._workspaces)

    async def take(self, sandbox: Sandbox, name: str | None, request: str | None = None) -> SnapshotJob:
        """Begin to copy the workspace of a sandbox. A request that was begun before returns the same snapshot."""
        if (known := self._of_request(sandbox.owner.ref, request)) is not None:
            return known
        format = self._format_for(sandbox)
        size_bytes = await self._workspaces.allocated_bytes(sandbox.record.id)
        if not self._reserve.has_room():
            raise HostFull("cannot take a snapshot: the disk of the data directory is full; free some space")
        # No await from here to the new record: two requests must not both take the last place of the quota.
        if (known := self._of_request(sandbox.owner.ref, request)) is not None:
            return known
        self._check_quota(sandbox.owner.ref, size_bytes)
        record = SnapshotRecord(
            id=f"snap-{secrets.token_hex(8)}",
            ref=sandbox.owner.ref,
            user=sandbox.owner.user,
            name=name,
            format=format,
            disk_mb=sandbox.record.shape.limits.disk_mb,
            created_at=datetime.now(UTC),
            size_bytes=size_bytes,
            request=request,
        )
        job = self._jobs[record.id] = SnapshotJob(record)
        self._records[record.id] = record
        self._tasks.start_soon(self._run, job, sandbox)
        return job

    async def remove(self, ref: SessionRef, snapshot_id: str) -> None:
        record = self._find(ref, snapshot_id)
        with anyio.CancelScope(shield=True):  # a caller that leaves must not leave half of it
            try:
                removing = self._records[record.id] = replace(record, phase="removing")
                await self._reserve.spend_on(partial(self._table.save, removing))
                await failpoints.reach("snapshot.removing")
                await self._discard(removing)
            except (SandboxdError, OSError) as error:
                self._records[record.id] = record  # the removal can be repeated; the next start repeats it too
                if isinstance(error, OSError):
                    raise host_error(f"remove snapshot {snapshot_id}", error) from error
                raise
            self._announce("removed", record)
            await failpoints.reach("snapshot.removed")

    def _format_for(self, sandbox: Sandbox) -> SnapshotFormat:
        if self._workspaces.kind == "loop":
            return "image"
        sandbox.call()  # raises why it cannot be called
        return "tar"

    def _check_quota(self, ref: SessionRef, size_bytes: int) -> None:
        own = [record for record in self._records.values() if record.ref == ref]
        if len(own) >= self._max_of_session:
            raise LimitReached(
                f"cannot take another snapshot: the session has {len(own)}, and max_snapshots is "
                f"{self._max_of_session}; remove one of its snapshots, or raise the setting"
            )
        used = sum(record.size_bytes for record in self._records.values())
        if used + size_bytes > self._max_mb * _MIB:
            raise LimitReached(
                f"cannot take a snapshot of {_mib(size_bytes)} MB: all snapshots together take {_mib(used)} MB, and "
                f"snapshots_max_mb is {self._max_mb}; remove snapshots, or raise the setting"
            )

    def _of_request(self, ref: SessionRef, request: str | None) -> SnapshotJob | None:
        """Return the snapshot of a request that was begun before."""
        found = next((r for r in self._records.values() if request and (r.ref, r.request) == (ref, request)), None)
        if found is None or found.phase == "removing":
            return None
        if (job := self._jobs.get(found.id)) is None:
            job = SnapshotJob(found)
            job.done.set()
        return job

    async def _run(self, job: SnapshotJob, sandbox: Sandbox) -> None:
        try:
            with sandbox.in_use():
                job.record = await self._carry_out(job, sandbox)
        except (SandboxdError, OSError) as error:
            await self._undo(job)
            job.failure = _explain(error, sandbox)
            _log.warning("cannot take a snapshot", sandbox=sandbox.record.id, error=str(error))
        except BaseException:  # the daemon is stopping
            job.failure = NotReady("cannot take this snapshot: the daemon is stopping; try again")
            with anyio.CancelScope(shield=True):
                await self._undo(job)
            raise
        finally:
            self._jobs.pop(job.record.id, None)
            job.done.set()

    async def _carry_out(self, job: SnapshotJob, sandbox: Sandbox) -> SnapshotRecord:
        record = job.record
        await self._table.save(record)
        await failpoints.reach("snapshot.intent")
        draft, path = self._directory / f"{_DRAFT}{record.id}", self._path(record)
        if record.format == "image":
            await self._workspaces.copy(sandbox.record.id, draft, freeze_s=self._freeze_s, progress=job.progress)
        else:
            with sandbox.call() as runner:
                await save_archive(runner, draft, record.disk_mb, job.progress)
        await to_thread.run_sync(draft.rename, path)
        size_bytes = await to_thread.run_sync(_size_of, path)
        ready = replace(record, phase="ready", size_bytes=size_bytes, created_at=datetime.now(UTC))
        await self._table.save(ready)
        self._records[record.id] = ready
        await failpoints.reach("snapshot.ready")
        self._announce("created", ready)
        return ready

    async def _undo(self, job: SnapshotJob) -> None:
        try:
            await self._discard(job.record)
        except (SandboxdError, OSError) as error:
            _log.warning("cannot remove what is left of a snapshot; the next start does", error=str(error))
            self._records.pop(job.record.id, None)

    async def _discard(self, record: SnapshotRecord) -> None:
        """Remove the file of a snapshot, then its record."""
        for path in (self._path(record), self._directory / f"{_DRAFT}{record.id}"):
            await to_thread.run_sync(partial(path.unlink, missing_ok=True))
        await self._reserve.spend_on(partial(self._table.forget, record.id))
        self._records.pop(record.id, None)

    def _announce(self, what: str, record: SnapshotRecord) -> None:
        whose = {"tenant": record.ref.tenant, "session": record.ref.session}
        _log.info(f"snapshot {what}", snapshot=record.id, size_bytes=record.size_bytes, **whose)
        self._events.publish(
            "snapshot", what=what, snapshot=record.id, size_bytes=record.size_bytes, user=record.user, **whose
        )

    def _find(self, ref: SessionRef, snapshot_id: str) -> SnapshotRecord:
        record = self._records.get(snapshot_id)
        if record is None or record.phase != "ready" or record.ref != ref:
            raise SnapshotNotFound("cannot find this snapshot of this session; list the session's snapshots")
        return record

    def _ready(self) -> Iterable[SnapshotRecord]:
        return (record for record in self._records.values() if record.phase == "ready")

    def _path(self, record: SnapshotRecord) -> Path:
        return self._directory / f"{record.id}.{record.format}"


def _explain(error: SandboxdError | OSError, sandbox: Sandbox) -> SandboxdError:
    """Return the error for the caller. A sandbox that was destroyed meanwhile is the reason, whatever failed."""
    if sandbox.record.state in (State.DESTROYING, State.REMOVED):
        return SandboxNotFound("cannot finish this snapshot: the sandbox was removed meanwhile")
    if isinstance(error, Gone):
        return Gone(f"cannot finish this snapshot: {str(error).removeprefix('cannot ')}", error.cause)
    return host_error("take this snapshot", error) if isinstance(error, OSError) else error


def _size_of(path: Path) -> int:
    return images.allocated_bytes(path)


def _mib(size_bytes: int) -> int:
    return -(-size_bytes // _MIB)
