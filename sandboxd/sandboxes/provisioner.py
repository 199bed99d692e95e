"""The provisioner: what a request for a sandbox makes of the session's own one, a warm one, or a new one.

Whatever can be refused is refused before anything changes. It decides which moves a request needs; `Moves` and
`RequestedMoves` make them.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from memo.ids import SessionRef
from sandboxd import failpoints
from sandboxd.engine.protocol import Engine
from sandboxd.errors import Conflict, Differs, EngineRefused, InvalidRequest
from sandboxd.limits import Limits
from sandboxd.models.sandbox import SandboxRequest, SandboxView
from sandboxd.sandboxes.capacity import Capacity
from sandboxd.sandboxes.lifecycle import RESTING, Claimed, LaunchAsked, Options, Origin, Owner, RecreateAsked, State
from sandboxd.sandboxes.moves import Moves
from sandboxd.sandboxes.options import changed_options, differences, options_of
from sandboxd.sandboxes.pool import Pool
from sandboxd.sandboxes.record_factory import RecordFactory
from sandboxd.sandboxes.requested_moves import RequestedMoves
from sandboxd.sandboxes.sandbox import Sandbox
from sandboxd.sandboxes.snapshot_record import SnapshotRecord
from sandboxd.sandboxes.snapshots import Snapshots
from sandboxd.sandboxes.table import SandboxTable


class Provisioner:
    def __init__(
        self,
        sandboxes: SandboxTable,
        *,
        engine: Engine,
        records: RecordFactory,
        moves: Moves,
        requested: RequestedMoves,
        capacity: Capacity,
        pool: Pool,
        snapshots: Snapshots,
    ) -> None:
        self._sandboxes = sandboxes
        self._engine = engine
        self._records = records
        self._moves = moves
        self._requested = requested
        self._capacity = capacity
        self._pool = pool
        self._snapshots = snapshots

    async def ensure(self, ref: SessionRef, request: SandboxRequest) -> SandboxView:
        """Return the session's sandbox once it is ready; `created` says whether this call started its container."""
        created = False
        is_recreated = False
        while True:
            sandbox = self._sandboxes.get(ref)
            if sandbox is None:
                sandbox = self._admit(ref, request)
                created = is_recreated = True
            elif sandbox.owner.user != request.user:
                raise Conflict("cannot create this sandbox: the session belongs to another user")
            elif sandbox.settled is not None:
                await sandbox.wait_settled()
            elif sandbox.record.state in (State.CREATING, State.STARTING, State.DESTROYING):
                await self._requested.destroy(sandbox)  # a failed create that could not be undone either
            elif request.from_snapshot is not None and request.recreate and not is_recreated:
                self.check_snapshot(ref, request)  # before its files are removed
                await self._requested.destroy(sandbox)
            elif request.from_snapshot not in (None, sandbox.record.origin.snapshot):
                raise Conflict(
                    "cannot create this sandbox from a snapshot: the session has one; remove it first, or set recreate "
                    "to replace it together with its files"
                )
            elif request.recreate and not is_recreated:
                created = is_recreated = await self._recreate(sandbox, request)
            elif found := differences(sandbox.record, request, self._records.image(request.image)):
                raise Differs(
                    f"cannot create this sandbox: the session has one with another {' and '.join(found)}; leave that "
                    "out to use it as it is, or set recreate to replace its container and keep its files",
                    found,
                )
            elif (options := changed_options(sandbox.record.options, request)) != sandbox.record.options:
                await self._requested.change_options(sandbox, options, request)
            elif sandbox.record.state is State.READY:
                sandbox.last_used = time.monotonic()  # the caller is about to use it
                await failpoints.reach("create.answer")
                return sandbox.view(created=created)
            elif sandbox.record.state is State.PAUSED:
                await self._requested.resume_paused(sandbox)
            else:
                self._requested.relaunch(sandbox)
                created = True

    def check_snapshot(self, ref: SessionRef, request: SandboxRequest) -> None:
        """Refuse a request that names a snapshot which it cannot have."""
        if request.from_snapshot is not None:
            self._snapshot_of(ref, request, request.from_snapshot)

    def _snapshot_of(self, ref: SessionRef, request: SandboxRequest, snapshot_id: str) -> SnapshotRecord:
        record = self._snapshots.of_user(ref.tenant, request.user, snapshot_id)
        wanted = None if request.limits is None else request.limits.model_dump(exclude_unset=True).get("disk_mb")
        if wanted not in (None, record.disk_mb):
            raise InvalidRequest(
                f"cannot create this sandbox with disk_mb {wanted}: its snapshot has a size of {record.disk_mb} MB; "
                "leave disk_mb out"
            )
        return record

    def _admit(self, ref: SessionRef, request: SandboxRequest) -> Sandbox:
        """Begin to bring up a sandbox for a session that has none."""
        self._capacity.check()
        owner = Owner(ref, request.user, request.agent, request.env)
        options = options_of(request)
        expires_at = self._records.expiry(options)
        limits = self._records.limits(request)
        if request.from_snapshot is not None:
            return self._admit_from_snapshot(owner, request, options, limits, request.from_snapshot)
        shape = self._records.shape(request.image, limits)
        sandbox = self._pool.take(shape)
        if sandbox is None:
            self._capacity.make_room(self._pool)
            sandbox = self._records.sandbox(self._records.create(shape, owner, options))
            self._moves.bring_up(sandbox, LaunchAsked(expires_at))
        else:
            self._moves.bring_up(sandbox, Claimed(owner, datetime.now(UTC), options, expires_at))
        self._sandboxes[ref] = sandbox
        return sandbox

    def _admit_from_snapshot(
        self, owner: Owner, request: SandboxRequest, options: Options, limits: Limits, snapshot_id: str
    ) -> Sandbox:
        """Launch a new container: the workspace of a warm one is already mounted in it, and empty."""
        snapshot = self._snapshot_of(owner.ref, request, snapshot_id)
        shape = self._records.shape(request.image, limits.model_copy(update={"disk_mb": snapshot.disk_mb}))
        self._capacity.make_room(self._pool)
        sandbox = self._records.sandbox(self._records.create(shape, owner, options, Origin(snapshot=snapshot.id)))
        sandbox.source = self._snapshots.source(snapshot)
        self._sandboxes[owner.ref] = sandbox
        self._moves.bring_up(sandbox, LaunchAsked(self._records.expiry(options)))
        return sandbox

    async def _recreate(self, sandbox: Sandbox, request: SandboxRequest) -> bool:
        """Replace the container; return False if the sandbox has moved since."""
        record, owner = sandbox.record, sandbox.owner
        limits = request.limits_over(record.shape.limits)
        if limits.disk_mb != record.shape.limits.disk_mb:
            raise InvalidRequest(
                f"cannot recreate this sandbox with disk_mb {limits.disk_mb}: its workspace keeps its files and so its "
                f"size of {record.shape.limits.disk_mb} MB; leave disk_mb out"
            )
        shape = self._records.reshape(record.shape, request.image, limits)
        if not await self._engine.has_image(shape.image):
            raise EngineRefused(f"cannot recreate this sandbox: the engine has no image {shape.image}; build it first")
        if sandbox.settled is not None or sandbox.record != record:
            return False
        if record.state in RESTING:
            self._capacity.claim(self._pool)
        env = request.env if "env" in request.model_fields_set else owner.env
        options = changed_options(record.options, request)
        await self._moves.bring_up(sandbox, RecreateAsked(shape, env, self._records.expiry(options))).wait()
        if sandbox.failure is not None:
            raise sandbox.failure.with_traceback(None)
        return True
