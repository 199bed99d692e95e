"""Forks: new sessions that begin as copies of another one, its files and its memory. All of a call, or none.

The source is frozen and copied once; each fork then gets its own copy and its own container. A fork is not announced
before all of them are up, so a crash before that leaves records that the next start removes. What follows is recorded
together with the sandboxes, and is finished at the next start. The source is never changed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from memo.ids import AgentId, SessionId, SessionRef
from memo.session_copy import CapturedSession
from sandboxd import failpoints
from sandboxd.bounded import each
from sandboxd.errors import Conflict, NotReady, SandboxdError, StoreUnavailable, host_error
from sandboxd.models.fork import ForkMemory, ForkRequest, ForkView
from sandboxd.retries import Retries
from sandboxd.sandboxes.effects import Effects
from sandboxd.sandboxes.fork_group import ForkGroup
from sandboxd.sandboxes.fork_record import ForkRecord
from sandboxd.sandboxes.lifecycle import DestroyAsked, LaunchAsked, Origin, State
from sandboxd.sandboxes.moves import Moves
from sandboxd.sandboxes.parts import Parts
from sandboxd.sandboxes.record_factory import RecordFactory
from sandboxd.sandboxes.sandbox import Sandbox
from sandboxd.sandboxes.table import SandboxTable
from sandboxd.sandboxes.workspace_archive import save_archive
from sandboxd.workspace import CopyProgress

_log = structlog.get_logger()

_CALLS_AT_ONCE = 4
"""Each holds the messages and documents of a session in memory. (I9)"""
_COPIES_OF_MEMORY_AT_ONCE = 4
_MOST_OF_NAME = 100
_DEFAULT_AGENT = AgentId("default")


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """What one call asks for. `id` is the same for a retry of the call."""

    id: str
    targets: tuple[SessionRef, ...]
    memory: ForkMemory


def plan_fork(source: SessionRef, asked: ForkRequest, request: str | None) -> ForkPlan:
    """Return the plan of a request. A retry has the same id, so the names that it makes up are the same too."""
    token = secrets.token_hex(16) if request is None else f"{source}/{request}"
    fork_id = hashlib.sha256(token.encode()).hexdigest()[:32]
    names = asked.names or [
        SessionId(f"{source.session[:_MOST_OF_NAME]}-fork-{hashlib.sha256(f'{fork_id}/{i}'.encode()).hexdigest()[:8]}")
        for i in range(asked.count or 0)
    ]
    return ForkPlan(fork_id, tuple(SessionRef(source.tenant, name) for name in names), asked.memory)


class ForkJob:
    """A fork under way. It goes on when its caller leaves."""

    def __init__(self, plan: ForkPlan) -> None:
        self.plan = plan
        self.failure: SandboxdError | None = None
        self.view: ForkView | None = None
        self.done = anyio.Event()

    async def wait(self) -> ForkView:
        await self.done.wait()
        if self.view is None:
            raise (self.failure or NotReady("cannot fork this session: the daemon is stopping")).with_traceback(None)
        return self.view


class Forks:
    """`claim_room` refuses more containers than the daemon can run, and makes room for as many otherwise."""

    def __init__(
        self,
        sandboxes: SandboxTable,
        parts: Parts,
        *,
        records: RecordFactory,
        effects: Effects,
        moves: Moves,
        tasks: TaskGroup,
        claim_room: Callable[[int], None],
        freeze_s: float,
    ) -> None:
        self._sandboxes = sandboxes
        self._records = records
        self._effects = effects
        self._moves = moves
        self._registry = parts.registry
        self._workspaces = parts.workspaces
        self._memory = parts.memory
        self._tasks = tasks
        self._claim_room = claim_room
        self._freeze_s = freeze_s
        self._jobs: dict[str, ForkJob] = {}
        self._at_once = anyio.Semaphore(_CALLS_AT_ONCE)
        self._unfinished: dict[str, ForkRecord] = {}

    async def open(self) -> None:
        """Load the forks of a daemon that died before it answered."""
        self._unfinished = {fork.id: fork for fork in await self._registry.forks.load()}

    def resume(self) -> None:
        """Finish or undo them, in the background: that may need the store."""
        for fork in self._unfinished.values():
            self._tasks.start_soon(self._resume, fork)

    @property
    def under_way(self) -> int:
        """How many forks are being made."""
        return len(self._jobs)

    def begin(self, source: Sandbox, plan: ForkPlan) -> ForkJob:
        """Begin a fork, or return the one under way with the same id."""
        if (job := self._jobs.get(plan.id)) is None:
            job = self._jobs[plan.id] = ForkJob(plan)
            self._tasks.start_soon(self._run, job, source)
        return job

    async def _run(self, job: ForkJob, source: Sandbox) -> None:
        try:
            async with self._at_once:
                job.view = await self._fork(source, job.plan)
        except (SandboxdError, OSError) as error:
            job.failure = host_error("fork this session", error) if isinstance(error, OSError) else error
            _log.warning("cannot fork a session", sandbox=source.record.id, error=str(error))
        finally:
            del self._jobs[job.plan.id]
            job.done.set()

    async def _fork(self, source: Sandbox, plan: ForkPlan) -> ForkView:
        if self._is_made(source, plan):
            return await self._made_before(plan)
        captured = await self._capture(source.owner.ref, plan.memory)
        for target in plan.targets:
            await self._check_target(source, captured, target)
        # No await from here to the new sandboxes: another request must not take a name or the room.
        for target in plan.targets:
            if target in self._sandboxes:
                raise Conflict(f"cannot fork to session {target.session}: it has a sandbox; use another name")
        self._claim_room(len(plan.targets))
        group = self._admit(source, plan)
        try:
            await self._carry_out(group, plan, captured)
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(partial(group.staging.unlink, missing_ok=True))
        _log.info("forked a session", sandbox=source.record.id, forks=len(group.members))
        return ForkView(items=[member.view(created=True) for member in group.members], left_out=[*captured.left_out])

    def _admit(self, source: Sandbox, plan: ForkPlan) -> ForkGroup:
        record, owner = source.record, source.owner
        shape = self._records.reshape(record.shape, None, record.shape.limits)
        origin = Origin(parent=owner.ref.session, fork=plan.id)
        group = ForkGroup(source, self._workspaces.staging(), self._workspaces, len(plan.targets))
        for target in plan.targets:
            new = self._records.create(shape, replace(owner, ref=target), record.options, origin)
            made = self._records.sandbox(new)
            made.source = group
            group.members.append(made)
            self._sandboxes[target] = made
            self._moves.bring_up(made, LaunchAsked(self._records.expiry(record.options)))
        return group

    async def _carry_out(self, group: ForkGroup, plan: ForkPlan, captured: CapturedSession) -> None:
        """Let the members come up together. If a step or one of them fails, all of them fail, which removes them."""
        async with anyio.create_task_group() as watchers:
            for member in group.members:
                watchers.start_soon(_watch, group, member)
            try:
                await self._take_steps(group, plan, captured)
            except (SandboxdError, OSError) as error:
                group.fail(host_error("fork this session", error) if isinstance(error, OSError) else error)
        if group.failure is not None:
            if plan.id in self._unfinished:
                await self._forget(plan.id)
            raise group.failure.with_traceback(None)

    async def _take_steps(self, group: ForkGroup, plan: ForkPlan, captured: CapturedSession) -> None:
        await group.recorded.wait()
        group.check()
        await failpoints.reach("fork.intent")
        await self._stage(group)
        await failpoints.reach("fork.copied")
        group.copied.set()
        await group.started.wait()
        group.check()
        fork = ForkRecord(plan.id, group.source.owner.ref, plan.targets, plan.memory)
        await self._effects.commit_fork(group.members, fork)
        self._unfinished[fork.id] = fork
        try:
            await failpoints.reach("fork.committed")
            await self._remember(fork, captured)
            await self._forget(fork.id)
        except (SandboxdError, OSError):
            await self._registry.forks.save(replace(fork, phase="undoing"))
            raise
        group.finished.set()

    async def _stage(self, group: ForkGroup) -> None:
        """Copy the source's files once, as they are now."""
        source, progress = group.source, CopyProgress()
        with source.in_use():
            if self._workspaces.kind == "loop":
                await self._workspaces.copy(
                    source.record.id, group.staging, freeze_s=self._freeze_s, progress=progress, to_keep=False
                )
            else:
                with source.call() as runner:
                    await save_archive(runner, group.staging, source.record.shape.limits.disk_mb, progress)

    async def _capture(self, source: SessionRef, memory: ForkMemory) -> CapturedSession:
        if self._memory is None or memory == "none":
            return CapturedSession(source, {}, (), ())
        return await self._memory.copier.capture(source)

    async def _check_target(self, source: Sandbox, captured: CapturedSession, target: SessionRef) -> None:
        if self._memory is not None:
            await self._memory.copier.check_target(captured, target, source.owner.user)

    async def _remember(self, fork: ForkRecord, captured: CapturedSession) -> None:
        """Copy the memory to every fork, and show it in their mirrors."""
        memory = self._memory
        if memory is None:
            return

        async def copy(target: SessionRef) -> None:
            owner = self._sandboxes[target].owner
            await memory.copier.copy(captured, target, owner.user, owner.agent or _DEFAULT_AGENT)
            await failpoints.reach("fork.memory")
            await memory.refresh(target)

        try:
            await each(list(fork.targets), copy, at_once=_COPIES_OF_MEMORY_AT_ONCE)
        except StoreUnavailable as error:
            part = "the new sessions may have a part of the memory in the store; a retry completes it"
            raise type(error)(f"{error}; {part}") from error
        await failpoints.reach("fork.mirrored")

    async def _forget(self, fork_id: str) -> None:
        await self._registry.forks.forget(fork_id)
        self._unfinished.pop(fork_id, None)

    # Forks of a call that was not answered

    def _is_made(self, source: Sandbox, plan: ForkPlan) -> bool:
        """Return whether an earlier daemon, or an earlier call with the same id, made all of them."""
        made = [self._sandboxes.get(target) for target in plan.targets]
        return all(found is not None and found.record.origin.fork == plan.id for found in made)

    async def _made_before(self, plan: ForkPlan) -> ForkView:
        if (fork := self._unfinished.get(plan.id)) is not None:
            await self._finish(fork)
        made = [self._sandboxes[target] for target in plan.targets if target in self._sandboxes]
        for sandbox in made:
            while sandbox.settled is not None:
                await sandbox.settled.wait()
        return ForkView(items=[sandbox.view(created=True) for sandbox in made])

    async def _resume(self, fork: ForkRecord) -> None:
        retries = Retries()
        while fork.id in self._unfinished:
            try:
                await (self._finish(fork) if fork.phase == "finishing" else self._undo(fork))
            except (SandboxdError, OSError) as error:
                if retries.is_first:
                    _log.warning("cannot finish a fork of an earlier daemon yet", error=str(error))
                await retries.wait()

    async def _finish(self, fork: ForkRecord) -> None:
        made = self._made(fork)
        captured = await self._capture(fork.source, fork.memory)
        try:
            await self._remember(replace(fork, targets=tuple(made)), captured)
        except Conflict as error:
            # Only after a crash: the fork was used before its memory was complete, and what it wrote is kept.
            _log.warning("the memory of a fork is not complete", error=str(error))
        await self._forget(fork.id)

    async def _undo(self, fork: ForkRecord) -> None:
        for sandbox in self._made(fork).values():
            while sandbox.settled is not None:
                await sandbox.settled.wait()
            if sandbox.record.state is not State.REMOVED:
                await self._moves.finish_event(sandbox, DestroyAsked("create_failed"))
        await self._forget(fork.id)

    def _made(self, fork: ForkRecord) -> dict[SessionRef, Sandbox]:
        found = {target: self._sandboxes.get(target) for target in fork.targets}
        return {t: s for t, s in found.items() if s is not None and s.record.origin.fork == fork.id}


async def _watch(group: ForkGroup, member: Sandbox) -> None:
    """Wait for the end of a member's move. If it did not become ready, all of them fail."""
    if member.settled is not None:
        await member.settled.wait()
    if member.record.state is not State.READY:
        group.fail(member.failure or NotReady("cannot fork this session: a fork was removed meanwhile; try again"))
