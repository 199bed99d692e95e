"""The manager: owns every sandbox of one data directory and decides which moves it makes, and when.

Engine, runner, workspace and registry meet only here and in `effects`. A call on a ready sandbox never waits for
anything here; a call on a hibernated or paused one waits until it is ready again.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import anyio
import structlog
from anyio.abc import TaskGroup

from memo.documents import HOST, Author
from memo.ids import SessionRef, TenantId, UserId, UserRef
from sandboxd import failpoints
from sandboxd.engine.protocol import Engine
from sandboxd.engine.selection import open_engine
from sandboxd.errors import (
    Cause,
    Conflict,
    Differs,
    EngineRefused,
    EngineUnavailable,
    InvalidRequest,
    NotReady,
    SandboxdError,
    SandboxNotFound,
    StoreUnavailable,
)
from sandboxd.events import EventBus
from sandboxd.history import EventHistory, SessionOwner
from sandboxd.limits import Limits
from sandboxd.memory import Committed, Memory, Queued
from sandboxd.metrics import PoolFigures
from sandboxd.models.fork import ForkRequest, ForkView
from sandboxd.models.sandbox import GarbageReport, SandboxPatch, SandboxRequest, SandboxView, Stats
from sandboxd.network.audit import AuditLog
from sandboxd.network.egress import Egress
from sandboxd.sandboxes.capacity import Capacity
from sandboxd.sandboxes.effects import Effects
from sandboxd.sandboxes.engine_watch import EngineWatch
from sandboxd.sandboxes.forks import Forks, plan_fork
from sandboxd.sandboxes.hibernator import Hibernator, expires_in_s, idle_in_s
from sandboxd.sandboxes.layout import Layout
from sandboxd.sandboxes.lifecycle import (
    RESTING,
    Claimed,
    DeathSeen,
    DestroyAsked,
    HibernateAsked,
    LaunchAsked,
    Options,
    OptionsChanged,
    Origin,
    Owner,
    PauseAsked,
    Record,
    RecreateAsked,
    ResumeAsked,
    Shape,
    State,
)
from sandboxd.sandboxes.moves import Moves, explain
from sandboxd.sandboxes.network_setup import NetworkSetup
from sandboxd.sandboxes.options import changed_options, differences, options_of
from sandboxd.sandboxes.pool import Pool
from sandboxd.sandboxes.reconciler import Reconciler
from sandboxd.sandboxes.record_factory import RecordFactory
from sandboxd.sandboxes.registry import Registry
from sandboxd.sandboxes.retention import Retention
from sandboxd.sandboxes.runtime_probe import check_runtime
from sandboxd.sandboxes.sandbox import Call, Sandbox
from sandboxd.sandboxes.snapshot_record import SnapshotRecord
from sandboxd.sandboxes.snapshots import SnapshotJob, Snapshots
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
        self.events = EventBus()
        self.history = EventHistory(
            settings.data,
            settings.history,
            self.events,
            store=memo_provider,
            store_timeout_s=settings.store_timeout_s,
            owner_of=self._owner_of,
        )
        self.layout = Layout(
            settings.data,
            gid=settings.gid,
            cache=settings.cache,
            cache_bytes=settings.blob_cache_mb * 1024 * 1024,
        )
        self.workspaces = Workspaces(self.layout.workspaces, uid=settings.uid, gid=settings.gid)
        self.engine: Engine
        self.memory: Memory | None = None
        """None without a provider; containers then see an empty memory."""
        self._given_engine = engine
        self._provider = memo_provider
        self._registry = Registry(self.layout.registry)
        self._sandboxes: dict[SessionRef, Sandbox] = {}
        self.egress = Egress(settings.network, noted=self.history.hide)
        self._networks = NetworkSetup(self.egress, self.layout, self.events, settings.gid)
        self._capacity = Capacity(settings, self.layout.reserve, self._sandboxes.values)
        self._effects: Effects
        self._records: RecordFactory
        self._moves: Moves
        self._reconciler: Reconciler
        self._watch: EngineWatch
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
            self._registry.snapshots,
            self.workspaces,
            self.layout.reserve,
            self.events,
            max_of_session=settings.max_snapshots,
            max_mb=settings.snapshots_max_mb,
            freeze_s=settings.snapshot_freeze_s,
        )
        self._forks: Forks
        self._tasks: TaskGroup

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        # Nested blocks, not an exit stack: a stack rewrites the context of errors from its callbacks, and a callback
        # that re-raises an earlier error makes a cycle there, which the stack then follows for ever.
        self.layout.hold()
        try:
            async with self._open_engine(), self._open_registry(), self.history:
                await self.workspaces.open()
                async with self._open_memory() as self.memory, self.egress:
                    try:
                        async with anyio.create_task_group() as self._tasks:
                            await self._begin()
                            yield self
                            self._tasks.cancel_scope.cancel()
                    finally:
                        self._close_listeners()
        finally:
            self.layout.release()

    async def _begin(self) -> None:
        self._effects = Effects(
            self.settings,
            self.layout,
            self.engine,
            self._registry,
            self.workspaces,
            self.memory,
            self._networks,
            self.events,
        )
        self._records = RecordFactory(self.settings, self.engine.name, self._effects.fittings)
        self._moves = Moves(self._effects, self._tasks, self._pool, renew=self._records.renew, settled=self._settled)
        self._reconciler = Reconciler(self, self.engine, self._effects, self.layout, self.events)
        self._watch = EngineWatch(self.engine, self._effects, self._tasks, start=self._moves.start, resync=self._resync)
        self._capacity.open(self.engine.name)
        self._forks = self._make_forks()
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

    def _make_forks(self) -> Forks:
        return Forks(
            self._sandboxes,
            records=self._records,
            effects=self._effects,
            moves=self._moves,
            registry=self._registry,
            workspaces=self.workspaces,
            memory=self.memory,
            tasks=self._tasks,
            new_sandbox=self._sandbox,
            claim_room=self._claim_room,
            destroy=lambda sandbox, event: self._moves.finish(sandbox, self._effects.advance, event),
            freeze_s=self.settings.snapshot_freeze_s,
        )

    @asynccontextmanager
    async def _open_engine(self) -> AsyncGenerator[None]:
        self.engine = self._given_engine or await open_engine(
            self.settings.engine, self.layout.engine_state, fallback=self.settings.engine_fallback
        )
        try:
            await self._check_runtime()
            yield
        finally:
            await self.engine.aclose()

    async def _check_runtime(self) -> None:
        weakness = await check_runtime(
            self.engine, self.settings, instance=self.layout.instance(), state_dir=self.layout.engine_state
        )
        if weakness:
            _log.warning("the runtime is weak", why=weakness)

    @asynccontextmanager
    async def _open_registry(self) -> AsyncGenerator[None]:
        await self._registry.open()
        try:
            yield
        finally:
            await self._registry.aclose()

    async def ensure_sandbox(self, ref: SessionRef, request: SandboxRequest) -> SandboxView:
        """Return the session's sandbox once it is ready; `created` says whether this call started its container."""
        created = False
        is_recreated = False
        await self._networks.check(ref.tenant, request)
        while True:
            sandbox = self._sandboxes.get(ref)
            if sandbox is None:
                sandbox = self._admit(ref, request)
                created = is_recreated = True
            elif sandbox.owner.user != request.user:
                raise Conflict("cannot create this sandbox: the session belongs to another user")
            elif sandbox.settled is not None:
                await self._wait_settled(sandbox)
            elif sandbox.record.state in (State.CREATING, State.STARTING, State.DESTROYING):
                await self._destroy(sandbox)  # a failed create that could not be undone either
            elif request.from_snapshot is not None and request.recreate and not is_recreated:
                self.check_snapshot(ref, request)  # before its files are removed
                await self._destroy(sandbox)
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
                await self._change_options(sandbox, options, request)
            elif sandbox.record.state is State.READY:
                sandbox.last_used = time.monotonic()  # the caller is about to use it
                await failpoints.reach("create.answer")
                return sandbox.view(created=created)
            elif sandbox.record.state is State.PAUSED:
                await self._resume_paused(sandbox)
            else:
                self._relaunch(sandbox)
                created = True

    async def _wait_settled(self, sandbox: Sandbox) -> None:
        """Wait for the move under way; raise its error if it was to bring the sandbox up."""
        is_coming_up = sandbox.record.state in (State.CREATING, State.STARTING)
        if sandbox.settled is not None:
            await sandbox.settled.wait()
        if is_coming_up and sandbox.failure is not None:
            raise sandbox.failure.with_traceback(None)

    def _relaunch(self, sandbox: Sandbox) -> None:
        """Begin to give a hibernated or dead sandbox a container."""
        self._claim_room()
        self._moves.bring_up(sandbox, LaunchAsked(self._records.expiry(sandbox.record.options)))

    async def _recreate(self, sandbox: Sandbox, request: SandboxRequest) -> bool:
        """Replace the container; return False if the sandbox has moved since.

        Everything that can be refused is refused before anything changes.
        """
        record, owner = sandbox.record, sandbox.owner
        limits = request.limits_over(record.shape.limits)
        if limits.disk_mb != record.shape.limits.disk_mb:
            raise InvalidRequest(
                f"cannot recreate this sandbox with disk_mb {limits.disk_mb}: its workspace keeps its files and so its "
                f"size of {record.shape.limits.disk_mb} MB; leave disk_mb out"
            )
        shape = self._records.reshape(record.shape, request.image, limits)
        if not await self.engine.has_image(shape.image):
            raise EngineRefused(f"cannot recreate this sandbox: the engine has no image {shape.image}; build it first")
        if sandbox.settled is not None or sandbox.record != record:
            return False
        if record.state in RESTING:
            self._claim_room()
        env = request.env if "env" in request.model_fields_set else owner.env
        options = changed_options(record.options, request)
        await self._moves.bring_up(sandbox, RecreateAsked(shape, env, self._records.expiry(options))).wait()
        if sandbox.failure is not None:
            raise sandbox.failure.with_traceback(None)
        return True

    def check_room(self) -> None:
        """Refuse another sandbox if the disk is full or a limit is reached."""
        self._capacity.check()

    def _claim_room(self, count: int = 1) -> None:
        """Check that there is room for this many containers, and make it if warm ones are in the way."""
        self._capacity.check(count)
        self._capacity.make_room(self._pool, count)

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
        sandbox = await self._at_rest(ref)
        if sandbox.record.state not in (State.READY, State.PAUSED, *RESTING):
            raise sandbox.unfit(verb)
        return sandbox

    def check_snapshot(self, ref: SessionRef, request: SandboxRequest) -> None:
        """Refuse a request that names a snapshot which it cannot have."""
        if request.from_snapshot is not None:
            self._snapshot_of(ref, request, request.from_snapshot)

    def _snapshot_of(self, ref: SessionRef, request: SandboxRequest, snapshot_id: str) -> SnapshotRecord:
        record = self.snapshots.of_user(ref.tenant, request.user, snapshot_id)
        wanted = None if request.limits is None else request.limits.model_dump(exclude_unset=True).get("disk_mb")
        if wanted not in (None, record.disk_mb):
            raise InvalidRequest(
                f"cannot create this sandbox with disk_mb {wanted}: its snapshot has a size of {record.disk_mb} MB; "
                "leave disk_mb out"
            )
        return record

    def get(self, ref: SessionRef) -> SandboxView:
        return self._find(ref).view()

    def of_tenant(self, tenant: TenantId) -> list[SandboxView]:
        return [sandbox.view() for ref, sandbox in self._sandboxes.items() if ref.tenant == tenant]

    def find_all(self) -> list[SandboxView]:
        """Return the sandboxes of every tenant."""
        return [sandbox.view() for sandbox in self._sandboxes.values() if sandbox.state is not State.REMOVED]

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
        await self._networks.check(ref.tenant, patch)
        sandbox = await self._at_rest(ref)
        await self._change_options(sandbox, changed_options(sandbox.record.options, patch), patch)
        return sandbox.view()

    async def pause(self, ref: SessionRef) -> SandboxView:
        """Freeze every process of the sandbox. A paused sandbox stays as it is."""
        sandbox = await self._at_rest(ref)
        if sandbox.record.state is State.READY:
            await self._moves.finish(sandbox, self._effects.advance, PauseAsked())
        elif sandbox.record.state is not State.PAUSED:
            raise sandbox.unfit("pause")
        return sandbox.view()

    async def resume(self, ref: SessionRef) -> SandboxView:
        """Let a paused sandbox continue, or give a hibernated one a container. A ready sandbox stays as it is."""
        while True:
            sandbox = await self._at_rest(ref)
            match sandbox.record.state:
                case State.READY:
                    return sandbox.view()
                case State.PAUSED:
                    await self._resume_paused(sandbox)
                case State.HIBERNATED:
                    self._relaunch(sandbox)
                    await self._wait_settled(sandbox)
                case _:
                    raise sandbox.unfit("resume")

    async def hibernate(self, ref: SessionRef) -> SandboxView:
        """Remove the sandbox's container with its processes, and keep its workspace."""
        sandbox = await self._at_rest(ref)
        if sandbox.record.state in (State.READY, State.PAUSED):
            await self._moves.finish(sandbox, self._effects.advance, HibernateAsked("asked"))
        elif sandbox.record.state not in RESTING:
            raise sandbox.unfit("hibernate")
        return sandbox.view()

    async def _at_rest(self, ref: SessionRef) -> Sandbox:
        """Return the session's sandbox once no move is under way."""
        while (sandbox := self._find(ref)).settled is not None:
            await sandbox.settled.wait()
        return sandbox

    async def _resume_paused(self, sandbox: Sandbox) -> None:
        if sandbox.record.cause != "asked":
            raise sandbox.paused()  # whatever paused it from outside also resumes it
        await self._moves.finish(sandbox, self._effects.advance, ResumeAsked())

    async def _change_options(self, sandbox: Sandbox, options: Options, patch: SandboxPatch) -> None:
        expires_at = sandbox.record.expires_at
        if "ttl_s" in patch.model_fields_set and sandbox.record.state not in RESTING:
            expires_at = self._records.expiry(options)
        before = sandbox.record.options
        await self._moves.finish(sandbox, self._effects.advance, OptionsChanged(options, expires_at))
        self._hibernator.nudge()
        if options.network != before.network and sandbox.record.state is State.READY:
            await self._moves.finish(sandbox, self._change_network, before)

    async def _change_network(self, sandbox: Sandbox, before: Options) -> None:
        """Give a running sandbox the network access of its record, or the earlier one again if that fails."""
        try:
            await self._networks.apply(sandbox)
        except SandboxdError:
            await self._effects.advance(sandbox, OptionsChanged(before, sandbox.record.expires_at))
            await self._networks.apply(sandbox)
            raise

    async def check_network(self, ref: SessionRef, request: SandboxRequest) -> None:
        """Refuse a request for network access that the settings do not permit."""
        await self._networks.check(ref.tenant, request)

    def audit(self, ref: SessionRef) -> AuditLog:
        """Return the record of what the session's sandbox has reached; empty if it never had network access."""
        egress = self._find(ref).egress
        return AuditLog() if egress is None else egress.audit

    async def destroy(self, ref: SessionRef) -> None:
        """Remove the sandbox and all its files. Also cancel a create that is under way."""
        await self._destroy(self._find(ref))

    def end_event_streams(self) -> None:
        """End event streams and watches, which would otherwise use up the whole drain time."""
        self.events.close()
        for sandbox in self._sandboxes.values():
            if sandbox.runner is not None:
                sandbox.runner.end_watches()
            if sandbox.egress is not None:
                sandbox.egress.audit.close()

    async def call(self, ref: SessionRef) -> Call:
        """Return a context manager for a call on the session's runner.

        It never waits for a sandbox that is ready. One that is hibernated or paused is resumed first, if it may be.
        """
        sandbox = self._find(ref)
        while sandbox.record.state is not State.READY:
            if sandbox.is_waking:
                await self._wait_settled(sandbox)
            elif sandbox.settled is not None and sandbox.record.state in (State.HIBERNATED, State.PAUSED):
                await sandbox.settled.wait()  # it is just falling asleep, or waking up
            elif sandbox.may_wake and sandbox.settled is None:
                await self.resume(ref)
            else:
                break
            sandbox = self._find(ref)
        return sandbox.call()

    async def stats(self, ref: SessionRef) -> Stats:
        sandbox = self._find(ref)
        record = sandbox.record
        if record.state is not State.READY or record.container is None:
            raise sandbox.unfit("measure")
        try:
            return await self.engine.stats(record.container)
        except (EngineRefused, EngineUnavailable):
            # If the container has died in the meantime, that is the reason, whatever the engine answered.
            if (now := self._find(ref)).record is not record:
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
        ref = self._named(session)
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
        ref = self._named(session)
        if self.memory is None:
            raise StoreUnavailable(f"cannot write {container_path}: this manager has no memo_provider")
        if ref is None:
            raise SandboxNotFound(f"cannot write {container_path}: no sandbox has this session id; give tenant:session")
        return await self.memory.write_back(ref, container_path, content, author)

    def _named(self, session: SessionRef | str) -> SessionRef | None:
        """Return the session; None if only an id is given and no sandbox has it."""
        if isinstance(session, SessionRef) or ":" in session or session.startswith("["):
            return SessionRef.parse(session)
        found = [ref for ref in self._sandboxes if ref.session == session]
        if len(found) > 1:
            raise InvalidRequest(
                f"cannot use session {session}: {len(found)} tenants have one with this id; give tenant:session"
            )
        return found[0] if found else None

    @property
    def states(self) -> dict[str, int]:
        """The number of sandboxes in each state."""
        counts = dict.fromkeys((state.value for state in State if state is not State.REMOVED), 0)
        for sandbox in self._sandboxes.values():
            if sandbox.state is not State.REMOVED:  # removed, but still in the table
                counts[sandbox.state.value] += 1
        return counts

    def busy_users(self) -> set[UserRef]:
        """Return the users that have a call under way."""
        live = self._sandboxes.items()
        return {UserRef(ref.tenant, sandbox.owner.user) for ref, sandbox in live if sandbox.active_calls}

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

    def _open_memory(self) -> AbstractAsyncContextManager[Memory | None]:
        if self._provider is None:
            return nullcontext()
        return Memory(
            self.settings.data,
            self._provider,
            events=self.events,
            gid=self.settings.gid,
            outbox=self.settings.outbox,
            limits=self.settings.store_limits,
            store_timeout_s=self.settings.store_timeout_s,
            blob_bytes=self.settings.blob_cache_mb * 1024 * 1024,
            is_shown=self._is_mirror_shown,
        )

    def _is_mirror_shown(self, sandbox_id: str) -> bool:
        """Stop a container whose mirror was removed, because it would show an empty memory for ever. (I4)"""
        sandbox = next((found for found in self._sandboxes.values() if found.record.id == sandbox_id), None)
        if sandbox is None or sandbox.settled is not None or sandbox.record.state not in (State.READY, State.PAUSED):
            return True  # its move or the next check handles it
        if self._effects.shows_mirror(sandbox):
            return True
        _log.warning("a mirror was removed while its container showed it", sandbox=sandbox_id)
        self._moves.advance(sandbox, DeathSeen("mirror"))
        return False

    def _owner_of(self, ref: SessionRef) -> SessionOwner | None:
        sandbox = self._sandboxes.get(ref)
        if sandbox is None or sandbox.record.owner is None:
            return None
        return SessionOwner(sandbox.record.owner.user, sandbox.record.owner.agent)

    def _find(self, ref: SessionRef) -> Sandbox:
        sandbox = self._sandboxes.get(ref)
        if sandbox is None:
            raise SandboxNotFound("cannot find a sandbox for this session; create it first")
        return sandbox

    def _admit(self, ref: SessionRef, request: SandboxRequest) -> Sandbox:
        self._capacity.check()
        owner = Owner(ref, request.user, request.agent, request.env)
        options = options_of(request)
        expires_at = self._records.expiry(options)
        limits = request.limits_over(self.settings.limits)
        if request.from_snapshot is not None:
            return self._admit_from_snapshot(owner, request, options, limits, request.from_snapshot)
        shape = self._records.shape(request.image, limits)
        sandbox = self._pool.take(shape)
        if sandbox is None:
            self._capacity.make_room(self._pool)
            sandbox = self._sandbox(self._records.create(shape, owner, options))
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
        sandbox = self._sandbox(self._records.create(shape, owner, options, Origin(snapshot=snapshot.id)))
        sandbox.source = self.snapshots.source(snapshot)
        self._sandboxes[owner.ref] = sandbox
        self._moves.bring_up(sandbox, LaunchAsked(self._records.expiry(options)))
        return sandbox

    def _sandbox(self, record: Record) -> Sandbox:
        return Sandbox(record, self.settings.idle_timeout_s)

    def _warm_up(self, shape: Shape) -> Sandbox:
        sandbox = self._sandbox(self._records.create(shape, None))
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

    async def _destroy(self, sandbox: Sandbox) -> None:
        if sandbox.scope is not None:
            sandbox.scope.cancel()
        while sandbox.settled is not None:
            await sandbox.settled.wait()
        if sandbox.record.state is State.REMOVED:
            return
        await self._moves.finish(sandbox, self._effects.advance, DestroyAsked())

    def _close_listeners(self) -> None:
        for sandbox in self.all_sandboxes():
            self._effects.close_listener(sandbox)

    def start(self, sandbox: Sandbox, move: Callable[..., Awaitable[None]], *args: object) -> anyio.Event:
        """Start a move. Used by the reconciler."""
        return self._moves.start(sandbox, move, *args)

    def all_sandboxes(self) -> list[Sandbox]:
        """Return all sandboxes, including those of the pool. Used by the reconciler."""
        return [*self._sandboxes.values(), *self._pool.all()]

    def find_record(self, record: Record) -> Sandbox | None:
        return self._pool.get(record.id) if record.owner is None else self._sandboxes.get(record.owner.ref)

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
        records = await self._registry.load()
        alive = (State.READY, State.PAUSED)
        foreign = [record for record in records if record.engine != self.engine.name and record.state in alive]
        if foreign and self.settings.engine == "auto":
            raise EngineUnavailable(
                f"cannot start: {len(foreign)} sandboxes belong to the {foreign[0].engine} engine, which does not "
                f"answer; start it, or abandon them with --engine {self.engine.name}"
            )
        for record in records:
            if record.owner is None:
                self._pool.add(self._sandbox(record))
            else:
                self._sandboxes[record.owner.ref] = self._sandbox(record)
        await self._reconciler.adopt_all()
