"""The manager: owns every sandbox of one data directory. All that others do with sandboxes enters here.

It opens the parts, starts what follows from the engine, the clock and the pool, and leaves what callers request to the
`Provisioner` and to `RequestedMoves`. A call on a ready sandbox never waits for anything here; a call on a hibernated
or paused one waits until it is ready again.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

import anyio
import structlog
from anyio.abc import TaskGroup

from memo.documents import HOST, Author
from memo.ids import SessionRef, TenantId, UserId, UserRef
from sandboxd.engine.protocol import Engine
from sandboxd.errors import (
    Cause,
    EngineRefused,
    EngineUnavailable,
    NotReady,
    SandboxdError,
    SandboxNotFound,
    StoreUnavailable,
)
from sandboxd.memory import Committed, Memory, Queued
from sandboxd.metrics import PoolFigures
from sandboxd.models.fork import ForkRequest, ForkView
from sandboxd.models.sandbox import GarbageReport, SandboxPatch, SandboxRequest, SandboxView, Stats
from sandboxd.network.audit import AuditLog
from sandboxd.sandboxes.capacity import Capacity
from sandboxd.sandboxes.effects import Effects
from sandboxd.sandboxes.engine_watch import EngineWatch
from sandboxd.sandboxes.forks import Forks, plan_fork
from sandboxd.sandboxes.hibernator import Hibernator, expires_in_s, idle_in_s
from sandboxd.sandboxes.lifecycle import RESTING, DeathSeen, DestroyAsked, HibernateAsked, LaunchAsked, Shape, State
from sandboxd.sandboxes.moves import Moves, explain
from sandboxd.sandboxes.network_setup import NetworkSetup
from sandboxd.sandboxes.parts import Parts
from sandboxd.sandboxes.pool import Pool
from sandboxd.sandboxes.provisioner import Provisioner
from sandboxd.sandboxes.reconciler import Reconciler
from sandboxd.sandboxes.record_factory import RecordFactory
from sandboxd.sandboxes.requested_moves import RequestedMoves
from sandboxd.sandboxes.retention import Retention
from sandboxd.sandboxes.sandbox import Call, Sandbox
from sandboxd.sandboxes.snapshots import SnapshotJob, Snapshots
from sandboxd.sandboxes.table import SandboxTable
from sandboxd.sandboxes.workspace_watchdog import watch_workspaces
from sandboxd.settings import Settings, read_settings
from sandboxd.workspace import Workspaces

_log = structlog.get_logger()


class SandboxManager(anyio.AsyncContextManagerMixin):
    """Owns the data directory while it is open. Use it as an async context manager.

        async with SandboxManager("data", memo_provider=store) as manager:

    A path instead of settings means the daemon's settings with this data directory: environment and files are read.
    """

    def __init__(
        self, settings: Settings | Path | str, *, engine: Engine | None = None, memo_provider: object = None
    ) -> None:
        if not isinstance(settings, Settings):
            settings = read_settings(data=Path(settings))
        self.settings = settings
        self._sandboxes = SandboxTable()
        self._parts = Parts(
            settings, engine, memo_provider, owner_of=self._sandboxes.owner_of, is_mirror_shown=self._is_mirror_shown
        )
        self.events = self._parts.events
        self.history = self._parts.history
        self.layout = self._parts.layout
        self.egress = self._parts.egress
        self._networks = NetworkSetup(self.egress, self.layout, self.events, settings.gid)
        self._capacity = Capacity(settings, self.layout.reserve, self._sandboxes.values)
        self._effects: Effects
        self._records: RecordFactory
        self._moves: Moves
        self._requested: RequestedMoves
        self._provisioner: Provisioner
        self._reconciler: Reconciler
        self._watch: EngineWatch
        self._forks: Forks
        self._hibernator = Hibernator(self._sandboxes.values, self._hibernate)
        self._retention = Retention(
            self._sandboxes.values,
            retention_s=settings.workspace_retention_s,
            max_bytes=settings.workspaces_max_mb * 1024 * 1024,
            measure=lambda in_use: self.workspaces.sizes(in_use),
            remove=lambda sandbox, removal: self._moves.advance(sandbox, DestroyAsked(removal)),
        )
        self._pool = Pool(
            settings.pool,
            settings.pool_max,
            settings.pool_shrink_s,
            warm_up=self._warm_up,
            retire=self._retire,
            is_busy=lambda: self._moves.awaited > 0,
            spare=lambda: self._capacity.spare(self._pool),
        )
        self.snapshots = Snapshots(
            self.layout.snapshots,
            self._parts.registry.snapshots,
            self.workspaces,
            self.layout.reserve,
            self.events,
            max_of_session=settings.max_snapshots,
            max_mb=settings.snapshots_max_mb,
            freeze_s=settings.snapshot_freeze_s,
        )
        self._tasks: TaskGroup

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with self._parts:
            try:
                async with anyio.create_task_group() as self._tasks:
                    await self._begin()
                    yield self
                    self._tasks.cancel_scope.cancel()
            finally:
                self._close_listeners()

    @property
    def engine(self) -> Engine:
        return self._parts.engine

    @property
    def workspaces(self) -> Workspaces:
        return self._parts.workspaces

    @property
    def memory(self) -> Memory | None:
        """The memory; None without a provider, and then containers see an empty one."""
        return self._parts.memory

    async def _begin(self) -> None:
        self._assemble()
        self._capacity.open(self.engine.name)
        await self.snapshots.open(self._tasks)
        await self._forks.open()
        await self.egress.credentials.note_all()
        await self._reconcile_at_start()
        self._forks.resume()
        if not self.layout.reserve.fill(partly=True):  # reserve the space that the start did not need again
            _log.warning("the disk of the data directory is full: serving, but taking on nothing new")
        self._tasks.start_soon(self._watch.run)
        self._tasks.start_soon(self.history.run)
        if self.settings.pool:
            self._pool.prefer(self._records.shape(None, self.settings.limits))
        self._tasks.start_soon(self._pool.tend)
        self._tasks.start_soon(self._hibernator.run)
        self._tasks.start_soon(self._retention.run)
        if self.workspaces.kind == "watchdog":
            self._tasks.start_soon(watch_workspaces, self._sandboxes.values)

    def _assemble(self) -> None:
        """Make what needs the open parts and the task group."""
        claim_room = partial(self._capacity.claim, self._pool)
        self._effects = Effects(self.settings, self._parts, self._networks)
        self._records = RecordFactory(self.settings, self.engine.name, self._effects.fittings)
        self._moves = Moves(self._effects, self._tasks, self._pool, renew=self._records.renew, settled=self._settled)
        self._reconciler = Reconciler(self._sandboxes, self._pool, self._parts, self._effects, start=self._moves.start)
        self._watch = EngineWatch(self.engine, self._effects, self._tasks, start=self._moves.start, resync=self._resync)
        self._requested = RequestedMoves(
            self._sandboxes, self._records, self._effects, self._moves, self._networks, self._hibernator, claim_room
        )
        self._provisioner = Provisioner(
            self._sandboxes,
            engine=self.engine,
            records=self._records,
            moves=self._moves,
            requested=self._requested,
            capacity=self._capacity,
            pool=self._pool,
            snapshots=self.snapshots,
        )
        self._forks = Forks(
            self._sandboxes,
            self._parts,
            records=self._records,
            effects=self._effects,
            moves=self._moves,
            tasks=self._tasks,
            claim_room=claim_room,
            freeze_s=self.settings.snapshot_freeze_s,
        )

    async def ensure_sandbox(self, ref: SessionRef, request: SandboxRequest) -> SandboxView:
        """Return the session's sandbox once it is ready; `created` says whether this call started its container."""
        await self._networks.check(ref.tenant, request)
        return await self._provisioner.ensure(ref, request)

    def check_room(self) -> None:
        """Refuse another sandbox if the disk is full or a limit is reached."""
        self._capacity.check()

    async def take_snapshot(self, ref: SessionRef, name: str | None, request: str | None = None) -> SnapshotJob:
        """Begin a snapshot of the session's workspace. `request` names the request, so that a retry is recognised."""
        return await self.snapshots.take(await self._copyable(ref, "snapshot"), name, request)

    async def fork(self, ref: SessionRef, asked: ForkRequest, request: str | None = None) -> ForkView:
        """Make new sessions as copies of this one: all of them, or none."""
        source = await self._copyable(ref, "fork")
        return await self._forks.begin(source, plan_fork(ref, asked, request)).wait()

    async def _copyable(self, ref: SessionRef, verb: str) -> Sandbox:
        """Return the session's sandbox once its workspace can be copied."""
        if self.workspaces.kind == "watchdog":
            await self.call(ref)  # a plain directory is copied by its runner, so a sandbox that sleeps must wake up
        sandbox = await self._requested.at_rest(ref)
        if sandbox.record.state not in (State.READY, State.PAUSED, *RESTING):
            raise sandbox.unfit(verb)
        return sandbox

    def check_snapshot(self, ref: SessionRef, request: SandboxRequest) -> None:
        """Refuse a request that names a snapshot which it cannot have."""
        self._provisioner.check_snapshot(ref, request)

    def get(self, ref: SessionRef) -> SandboxView:
        return self._sandboxes.find(ref).view()

    def of_tenant(self, tenant: TenantId) -> list[SandboxView]:
        return self._sandboxes.of_tenant(tenant)

    def find_all(self) -> list[SandboxView]:
        """Return the sandboxes of every tenant."""
        return self._sandboxes.views()

    def idle_s(self, ref: SessionRef) -> float:
        """Return for how many seconds the sandbox has had no call; 0 if it has one, or does not exist."""
        sandbox = self._sandboxes.get(ref)
        return 0.0 if sandbox is None else sandbox.idle_s(time.monotonic())

    async def disk_bytes(self) -> dict[SessionRef, int]:
        """Return the disk space of each workspace that has its own file system."""
        refs = {sandbox.record.id: ref for ref, sandbox in self._sandboxes.items()}
        sizes = await self.workspaces.sizes(refs)
        return {refs[name]: size for name, size in sizes.items() if name in refs}

    async def update(self, ref: SessionRef, patch: SandboxPatch) -> SandboxView:
        """Change what may change while a sandbox lives."""
        return await self._requested.update(ref, patch)

    async def pause(self, ref: SessionRef) -> SandboxView:
        """Freeze every process of the sandbox. A paused sandbox stays as it is."""
        return await self._requested.pause(ref)

    async def resume(self, ref: SessionRef) -> SandboxView:
        """Let a paused sandbox continue, or give a hibernated one a container. A ready sandbox stays as it is."""
        return await self._requested.resume(ref)

    async def hibernate(self, ref: SessionRef) -> SandboxView:
        """Remove the sandbox's container with its processes, and keep its workspace."""
        return await self._requested.hibernate(ref)

    async def check_network(self, ref: SessionRef, request: SandboxRequest) -> None:
        """Refuse a request for network access that the settings do not permit."""
        await self._networks.check(ref.tenant, request)

    def audit(self, ref: SessionRef) -> AuditLog:
        """Return the record of what the session's sandbox has reached; empty if it never had network access."""
        egress = self._sandboxes.find(ref).egress
        return AuditLog() if egress is None else egress.audit

    async def destroy(self, ref: SessionRef) -> None:
        """Remove the sandbox and all its files. Also cancel a create that is under way."""
        await self._requested.destroy(self._sandboxes.find(ref))

    def end_event_streams(self) -> None:
        """End event streams and watches, which would otherwise use up the whole drain time."""
        self.events.close()
        for sandbox in self._sandboxes.values():
            sandbox.end_streams()

    async def call(self, ref: SessionRef) -> Call:
        """Return a context manager for a call on the session's runner.

        It never waits for a sandbox that is ready. One that is hibernated or paused is resumed first, if it may be.
        """
        return (await self._requested.wake(ref)).call()

    async def stats(self, ref: SessionRef) -> Stats:
        sandbox = self._sandboxes.find(ref)
        record = sandbox.record
        if record.state is not State.READY or record.container is None:
            raise sandbox.unfit("measure")
        try:
            return await self.engine.stats(record.container)
        except (EngineRefused, EngineUnavailable):
            # If the container has died in the meantime, that is the reason, whatever the engine answered.
            if (now := self._sandboxes.find(ref)).record is not record:
                raise now.unfit("measure") from None
            container = await self.engine.inspect(record.container)
            if container is None or not container.running:
                raise NotReady("cannot measure this sandbox: its container has just died; try again") from None
            raise

    async def collect_garbage(self) -> GarbageReport:
        """Reconcile registry, engine and disk now."""
        report, failures = await self._reconciler.collect_garbage()
        report = report.model_copy(update={"unclaimed_snapshots": await self.snapshots.find_unclaimed()})
        for sandbox in self.all_sandboxes():
            self._watch.catch_up(sandbox)
        if failures:
            raise explain(failures[0]) from failures[0]
        return report

    async def refresh_memo_mirror(
        self, session: SessionRef | str, container_path: str, content: str | None = None
    ) -> int:
        """Show the store's newest text at this path, and return in how many live mirrors; 0 if none is live.

        The session may be given as `tenant:session`, or by its id alone if no other tenant has a sandbox with that id.
        """
        ref = self._sandboxes.named(session)
        return 0 if self.memory is None or ref is None else await self.memory.refresh(ref, container_path, content)

    async def refresh_user_memo_mirror_for_all_sessions(
        self, tenant: str, user: str, name: str, content: str | None = None
    ) -> int:
        """Show the store's newest text of a user's document in every live sandbox of the user; return how many."""
        return (
            0 if self.memory is None else await self.memory.refresh_user(TenantId(tenant), UserId(user), name, content)
        )

    async def write_memo_back(
        self, session: SessionRef | str, container_path: str, content: str, *, author: Author = HOST
    ) -> Committed | Queued:
        """Write what an agent wrote at a memo path to the store, then show it in every mirror that has the path."""
        ref = self._sandboxes.named(session)
        if self.memory is None:
            raise StoreUnavailable(f"cannot write {container_path}: this manager has no memo_provider")
        if ref is None:
            raise SandboxNotFound(f"cannot write {container_path}: no sandbox has this session id; give tenant:session")
        return await self.memory.write_back(ref, container_path, content, author)

    @property
    def states(self) -> dict[str, int]:
        """The number of sandboxes in each state."""
        return self._sandboxes.states()

    def busy_users(self) -> set[UserRef]:
        """Return the users that have a call under way."""
        return self._sandboxes.busy_users()

    def engine_returned(self) -> None:
        """Retry what waits for the engine."""
        self._pool.resume()

    @property
    def pool(self) -> PoolFigures:
        """Return the counts of the pool."""
        return self._pool.figures()

    @property
    def outbox(self) -> dict[str, int]:
        """Return how many writes are queued for the store, and how many it refused permanently."""
        if self.memory is None:
            return {}
        return {"waiting": self.memory.waiting, "refused": len(self.memory.refused())}

    def _is_mirror_shown(self, sandbox_id: str) -> bool:
        """Stop a container whose mirror was removed, because it would show an empty memory for ever. (I4)"""
        sandbox = self._sandboxes.of_id(sandbox_id)
        if sandbox is None or sandbox.settled is not None or sandbox.record.state not in (State.READY, State.PAUSED):
            return True  # its move or the next check handles it
        if self._effects.shows_mirror(sandbox):
            return True
        _log.warning("a mirror was removed while its container showed it", sandbox=sandbox_id)
        self._moves.advance(sandbox, DeathSeen("mirror"))
        return False

    def _warm_up(self, shape: Shape) -> Sandbox:
        sandbox = self._records.sandbox(self._records.create(shape, None))
        self._moves.bring_up(sandbox, LaunchAsked())
        return sandbox

    def _retire(self, sandbox: Sandbox) -> None:
        self._moves.advance(sandbox, DestroyAsked("pool"))

    def _settled(self, sandbox: Sandbox, duration_s: float) -> None:
        """Let the others know that a move has ended."""
        record = sandbox.record
        if record.owner is None:
            self._pool.settled(sandbox, duration_s)
        else:
            if record.state is State.REMOVED:
                self._sandboxes.pop(record.owner.ref, None)
            self._pool.nudge()  # there may be room again
            if record.state in RESTING:
                self._retention.nudge()
            elif min(idle_in_s(sandbox, time.monotonic()), expires_in_s(sandbox, datetime.now(UTC))) < math.inf:
                self._hibernator.nudge()
        if sandbox.failure is None:
            self._watch.catch_up(sandbox)

    def _close_listeners(self) -> None:
        for sandbox in self.all_sandboxes():
            self._effects.close_listener(sandbox)

    def all_sandboxes(self) -> list[Sandbox]:
        """Return all sandboxes, including those of the pool."""
        return [*self._sandboxes.values(), *self._pool.all()]

    async def _resync(self) -> None:
        self.engine_returned()
        try:
            await self.collect_garbage()
        except (SandboxdError, OSError) as error:
            _log.warning("cannot compare with the engine yet", error=str(error))

    def _hibernate(self, sandbox: Sandbox, cause: Cause) -> None:
        self._moves.start(sandbox, self._hibernate_if_due, cause)

    async def _hibernate_if_due(self, sandbox: Sandbox, cause: Cause) -> None:
        # No await before the new record is set: a call that entered since the hibernator checked keeps its container.
        is_due = cause == "lifetime" or idle_in_s(sandbox, time.monotonic()) <= 0
        if is_due and sandbox.record.state in (State.READY, State.PAUSED):
            await self._effects.advance(sandbox, HibernateAsked(cause))

    async def _reconcile_at_start(self) -> None:
        records = await self._parts.registry.load()
        alive = (State.READY, State.PAUSED)
        foreign = [record for record in records if record.engine != self.engine.name and record.state in alive]
        if foreign and self.settings.engine == "auto":
            raise EngineUnavailable(
                f"cannot start: {len(foreign)} sandboxes belong to the {foreign[0].engine} engine, which does not "
                f"answer; start it, or abandon them with --engine {self.engine.name}"
            )
        for record in records:
            if record.owner is None:
                self._pool.add(self._records.sandbox(record))
            else:
                self._sandboxes[record.owner.ref] = self._records.sandbox(record)
        await self._reconciler.adopt_all()
