"""Carries out what `lifecycle.step` decides: directories, containers, runner sockets, records.

The record is always saved before the effect, so that the next start can resolve a crash in between. It acts on one
sandbox at a time and decides nothing; its callers decide which moves start, and when.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import structlog
from anyio import to_thread

from memo.documents import sha256_of
from sandboxd import failpoints
from sandboxd.bounded import each
from sandboxd.descriptors import LAUNCHES_AT_ONCE
from sandboxd.engine.protocol import LABEL_INSTANCE, LABEL_SANDBOX, Container, ContainerDied
from sandboxd.errors import EngineUnavailable, Gone, Hibernated, HostFull, NotReady, SandboxdError, ToolTimeout
from sandboxd.runner.calls import Exec
from sandboxd.runner.listener import RunnerListener
from sandboxd.sandboxes.blueprint import LABEL_MIRROR, container_spec
from sandboxd.sandboxes.fork_record import ForkRecord
from sandboxd.sandboxes.lifecycle import (
    RESTING,
    Effect,
    Event,
    Launched,
    Record,
    Removal,
    ResumeSeen,
    RunnerReady,
    State,
    TornDown,
    saved_form,
    step,
)
from sandboxd.sandboxes.network_setup import NetworkSetup
from sandboxd.sandboxes.parts import Parts
from sandboxd.sandboxes.pauses import Pauses
from sandboxd.sandboxes.sandbox import Sandbox
from sandboxd.settings import Settings
from sandboxd.workspace import temporary_of

_log = structlog.get_logger()

_DRAIN_S = 1.0
_CHECK_INTERVAL_S = 5.0
_CLEANUP_S = 60.0
_EARLY_DEATHS = 256
_BAD_PYTHON_EXIT = 78

T = TypeVar("T")

_FAILPOINT_OF_STATE = {
    State.CREATING: "create.intent",
    State.STARTING: "create.recorded",
    State.READY: "create.ready",
    State.PAUSED: "pause.intent",
    State.HIBERNATED: "hibernate.intent",
    State.DESTROYING: "destroy.intent",
}

_WHY_REMOVED: dict[Removal, str] = {
    "asked": "on request",
    "create_failed": "its create failed before any caller had it",
    "pool": "it never had an owner",
    "expired": "it had no container for workspace_retention_s",
    "over_limit": "all workspaces exceeded workspaces_max_mb, and it was the least recently used",
}


class Effects:
    """Carries out effects for the manager. Owns the map from containers to sandboxes."""

    def __init__(self, settings: Settings, parts: Parts, networks: NetworkSetup) -> None:
        self._settings = settings
        self._layout = parts.layout
        self._engine = parts.engine
        self._registry = parts.registry
        self._workspaces = parts.workspaces
        self._memory = parts.memory
        self._networks = networks
        self._events = parts.events
        self._instance = parts.layout.instance()
        self._runner_files: Path = parts.layout.install_runner()
        self._sandbox_of: dict[str, Sandbox] = {}
        self._launching = anyio.CapacityLimiter(LAUNCHES_AT_ONCE)
        self.pauses = Pauses()
        self._early_deaths: OrderedDict[str, ContainerDied] = OrderedDict()
        self._carriers: dict[Effect, Callable[[Sandbox], Awaitable[None]]] = {
            Effect.LAUNCH: self._launch,
            Effect.AWAIT_RUNNER: self._await_runner,
            Effect.HAND_OVER: self._hand_over,
            Effect.DRAIN_CALLS: self._drain_calls,
            Effect.FAIL_CALLS: self._fail_calls,
            Effect.FREEZE_CALLS: self._freeze_calls,
            Effect.THAW_CALLS: self._thaw_calls,
            Effect.PAUSE_CONTAINER: self._pause_container,
            Effect.RESUME_CONTAINER: self._resume_container,
            Effect.REMOVE_CONTAINER: self._remove_container,
            Effect.REST_WORKSPACE: self._rest_workspace,
            Effect.TEAR_DOWN: self._tear_down,
            Effect.FORGET: self._forget,
            Effect.ANNOUNCE: self._announce,
        }

    @property
    def fittings(self) -> str:
        """A digest of what every container of this daemon gets, whatever the request."""
        settings = self._settings
        chosen = (settings.skills, settings.runtime, settings.tmp_exec)
        parts = (self._runner_files.name, *chosen, settings.uid, settings.gid)
        return sha256_of(repr(parts).encode())[:16]

    async def advance(self, sandbox: Sandbox, event: Event) -> None:
        """Take one step of the life cycle."""
        await self.carry_out(sandbox, self.decide(sandbox, event))

    def decide(self, sandbox: Sandbox, event: Event) -> list[Effect]:
        """Change the record, so that every other task sees it at once. The caller passes the effects to `carry_out`."""
        sandbox.record, effects = step(sandbox.record, event, datetime.now(UTC))
        return effects

    async def carry_out(self, sandbox: Sandbox, effects: Iterable[Effect]) -> None:
        """Save the record that was decided, then carry out the effects."""
        await self._save(sandbox)
        for effect in effects:
            await self._carriers[effect](sandbox)

    async def _save(self, sandbox: Sandbox) -> None:
        record = saved_form(sandbox.record)
        if record == sandbox.saved or record.state is State.REMOVED:
            return
        if record.state in (State.DESTROYING, *RESTING):
            await self._save_on_a_full_disk(sandbox, record)
        else:
            await self._registry.save(record)
        point = "claim.intent" if sandbox.record.is_claimed else _FAILPOINT_OF_STATE.get(record.state)
        sandbox.saved = record
        if point:
            await failpoints.reach(point)

    async def commit_fork(self, sandboxes: Sequence[Sandbox], fork: ForkRecord) -> None:
        """Save all sandboxes of a fork as ready, before their callers have them; see `saved_form` for why."""
        ready = [step(sandbox.record, RunnerReady())[0] for sandbox in sandboxes]
        await self._registry.commit_fork(ready, fork)
        for sandbox, record in zip(sandboxes, ready, strict=True):
            sandbox.saved = record

    async def _save_on_a_full_disk(self, sandbox: Sandbox, record: Record) -> None:
        """Save a record that will free disk space, even on a full disk."""
        save = partial(self._registry.save, record)
        try:
            await self._layout.reserve.spend_on(save)
        except HostFull:
            if record.state is not State.DESTROYING:
                raise
            # The reserve is used up too. Without the intent on record only the workspace must stay: if the daemon dies
            # now, the sandbox becomes GONE and keeps it. Everything else can be rebuilt.
            await self._remove_container(sandbox)
            await self.remove_scratch(record.id)
            await self._workspaces.drop_templates()
            await save()

    async def take_over(self, sandbox: Sandbox) -> None:
        """Reconnect to the runner of a container that an earlier daemon started."""
        if sandbox.record.container is not None:
            self._sandbox_of[sandbox.record.container] = sandbox
        sandbox.start_deadline = anyio.current_time() + self._settings.start_timeout_s
        sandbox.mirror_identity = self._layout.mirror_identity(sandbox.record.id)
        self._listen(sandbox, is_adoption=True)  # first, so that calls that arrive in the meantime wait for the runner
        owner = sandbox.record.owner
        await self._networks.prepare(sandbox)
        if self._memory is not None and owner is not None:
            await self._memory.adopt(sandbox.record.id, owner.ref, owner.user)
        if sandbox.listener is not None:
            self._networks.connect(sandbox, sandbox.listener.client)
            sandbox.listener.admit()  # not earlier: ready means that the mirror is current
        try:
            if not self.pauses.is_frozen(sandbox.record):
                await self._await_connection(sandbox)
        except EngineUnavailable:
            if not self.pauses.is_frozen(sandbox.record):
                raise  # otherwise it was frozen in the meantime, and answers once it is unpaused
        if (event := self.pauses.next_event(sandbox.record)) is not None:
            await self.advance(sandbox, event)
        else:
            await self._announce(sandbox)

    async def containers(self) -> list[Container]:
        """Return every container of this data directory, known or not, and note which of them are frozen."""
        return await self.pauses.read(partial(self._engine.find, {LABEL_INSTANCE: self._instance}))

    def sandbox_of(self, container_id: str) -> Sandbox | None:
        return self._sandbox_of.get(container_id)

    async def scratch_on_disk(self) -> set[str]:
        """Return every id that has a socket directory or a mirror."""
        return await to_thread.run_sync(self._layout.ids)

    async def stale(self, containers: Iterable[Container]) -> set[str]:
        """Return the ids of containers whose mirror was removed on the host while they showed it."""
        now = await to_thread.run_sync(self._layout.mirror_identities)
        shown = {c.id: (c.labels.get(LABEL_SANDBOX, ""), c.labels.get(LABEL_MIRROR)) for c in containers}
        return {
            container_id
            for container_id, (sandbox_id, identity) in shown.items()
            if identity is not None and identity != now.get(sandbox_id)
        }

    def shows_mirror(self, sandbox: Sandbox) -> bool:
        """Return whether its container still shows the directory that its memory is written to."""
        return self._layout.mirror_identity(sandbox.record.id) == sandbox.mirror_identity

    async def workspaces_on_disk(self) -> set[str]:
        return await self._workspaces.find()

    async def remove_scratch(self, sandbox_id: str) -> None:
        """Remove what can be rebuilt: the socket directory and the mirror."""
        await to_thread.run_sync(self._layout.remove, sandbox_id)

    def dead(self, death: ContainerDied) -> Sandbox | None:
        """Record a death. Return the sandbox that it ends, or None if the move under way will notice it itself."""
        self.pauses.hear(death.container_id, is_frozen=False)
        sandbox = self._sandbox_of.get(death.container_id)
        if sandbox is not None and sandbox.settled is None:
            return sandbox if sandbox.record.state in (State.READY, State.PAUSED, State.WARM) else None
        self._early_deaths[death.container_id] = death
        while len(self._early_deaths) > _EARLY_DEATHS:
            self._early_deaths.popitem(last=False)
        if sandbox is not None and not sandbox.is_in_use:
            _fail_start(sandbox, death)
        return None

    def missed_death(self, sandbox: Sandbox) -> ContainerDied | None:
        """Return the death of this sandbox's container if it died during a move that did not handle it."""
        return self._early_deaths.pop(sandbox.record.container or "", None)

    def close_listener(self, sandbox: Sandbox) -> None:
        listener, sandbox.listener, sandbox.runner = sandbox.listener, None, None
        if listener is not None:
            listener.close()

    async def _launch(self, sandbox: Sandbox) -> None:
        record = sandbox.record
        if record.generation > 1:
            await self._remove_container(sandbox)  # I6: the last container still exists if removing it failed
        if sandbox.source is not None:
            await sandbox.source.fill_workspace(sandbox)
        workspace = await self._workspaces.create(record.id, record.shape.limits.disk_mb)
        await failpoints.reach("create.workspace")
        self._layout.make(record.id)
        sandbox.mirror_identity = self._layout.mirror_identity(record.id)
        await self._fill_mirror(record)
        await failpoints.reach("create.mirror")
        await self._networks.prepare(sandbox)
        sandbox.start_deadline = anyio.current_time() + self._settings.start_timeout_s
        spec = container_spec(
            record,
            instance=self._instance,
            uid=self._settings.uid,
            gid=self._settings.gid,
            workspace=workspace,
            temporary=temporary_of(workspace),
            mirror=self._layout.mirror_dir(record.id),
            mirror_identity=sandbox.mirror_identity,
            run_dir=self._layout.run_dir(record.id),
            runner=self._runner_files,
            skills=self._settings.skills,
            runtime=self._settings.runtime,
            tmp_exec=self._settings.tmp_exec,
        )
        await self._within_start_time(sandbox, self._launching.acquire, "the launch queue")
        try:
            self._listen(sandbox)
            await failpoints.reach("create.listener")
            container = await self._within_start_time(sandbox, partial(self._engine.launch, spec), "its container")
        finally:
            self._launching.release()
        await failpoints.reach("create.launched")
        self._sandbox_of[container.id] = sandbox
        if (death := self._early_deaths.pop(container.id, None)) is not None:
            _fail_start(sandbox, death)
        await self.advance(sandbox, Launched(container.id))

    async def _await_runner(self, sandbox: Sandbox) -> None:
        await self._await_connection(sandbox)
        await failpoints.reach("create.hello")
        if sandbox.record.owner is None and sandbox.runner is not None:
            # Run a trial command while no caller waits, so that everything is loaded for the first real one.
            limit_s = min(self._settings.start_timeout_s, self._settings.max_timeout_s)
            await sandbox.runner.exec(Exec(("true",), timeout_s=limit_s))
        if sandbox.source is not None:
            await sandbox.source.before_ready(sandbox)
            sandbox.source = None
        sandbox.last_used = time.monotonic()
        await self.advance(sandbox, RunnerReady())

    async def _hand_over(self, sandbox: Sandbox) -> None:
        """Give a claimed sandbox its owner's memory and environment."""
        record, runner = sandbox.record, sandbox.runner
        if not self.shows_mirror(sandbox):
            raise NotReady("cannot hand over this sandbox: the directory for its memory was removed; try again")

        async def fill() -> None:
            await self._fill_mirror(record)
            await failpoints.reach("claim.mirror")

        async def configure() -> None:
            await self._networks.prepare(sandbox)
            deadline = anyio.current_time() + self._settings.start_timeout_s
            while runner is not None and anyio.current_time() < deadline:
                with anyio.move_on_after(_CHECK_INTERVAL_S):
                    await self._networks.configure(sandbox, runner)
                    return
                # On a busy host a healthy container may be slow, so wait for it instead of discarding it.
                container = await self._engine.inspect(record.container or "")
                if container is None or not container.running or container.paused:
                    break
            raise NotReady("cannot hand over this sandbox: its runner does not answer; try again")

        await each([fill, configure], lambda work: work(), at_once=2)
        await failpoints.reach("claim.configured")
        sandbox.last_used = time.monotonic()
        await self.advance(sandbox, RunnerReady())

    async def _fill_mirror(self, record: Record) -> None:
        if self._memory is not None and record.owner is not None:
            await self._memory.create(record.id, record.owner.ref, record.owner.user)

    async def _drain_calls(self, sandbox: Sandbox) -> None:
        if sandbox.runner is not None:
            sandbox.runner.end_watches()
        if sandbox.record.state is State.DESTROYING:
            self._workspaces.abandon_copy(sandbox.record.id)  # the container cannot be removed while it is frozen
        await sandbox.wait_quiet(_DRAIN_S)
        state = sandbox.record.state
        if sandbox.runner is not None:
            sandbox.runner.fail(_interruption(sandbox.record))
        await failpoints.reach("destroy.drained" if state is State.DESTROYING else "hibernate.drained")

    async def _fail_calls(self, sandbox: Sandbox) -> None:
        cause = sandbox.record.cause or "engine"
        if sandbox.runner is not None:
            advice = "create the sandbox again, its files are kept"
            sandbox.runner.fail(Gone(f"cannot finish this call: the container died ({cause}); {advice}", cause))

    async def _freeze_calls(self, sandbox: Sandbox) -> None:
        if sandbox.runner is not None:
            step = str(sandbox.paused()).partition("; ")[2]
            why = "its time limit passed while the container was paused from outside, and its outcome is unknown"
            sandbox.runner.freeze(ToolTimeout(f"cannot finish this call: {why}; {step}"))

    async def _pause_container(self, sandbox: Sandbox) -> None:
        container = sandbox.record.container or ""
        try:
            await self._engine.pause(container)
        except (SandboxdError, OSError):
            await self.advance(sandbox, ResumeSeen())
            raise
        self.pauses.hear(container, is_frozen=True)
        await failpoints.reach("pause.frozen")

    async def _resume_container(self, sandbox: Sandbox) -> None:
        container = sandbox.record.container or ""
        await self._engine.resume(container)
        self.pauses.hear(container, is_frozen=False)
        await failpoints.reach("resume.thawed")
        await self.advance(sandbox, ResumeSeen())

    async def check_pause(self, sandbox: Sandbox) -> None:
        """Bring the state in line with the container. The engine is asked, because an event may be outdated."""
        if (container := await self._engine.inspect(sandbox.record.container or "")) is not None:
            self.pauses.hear(container.id, is_frozen=container.paused)
            if (event := self.pauses.next_event(sandbox.record)) is not None:
                await self.advance(sandbox, event)

    async def _thaw_calls(self, sandbox: Sandbox) -> None:
        sandbox.last_used = time.monotonic()
        if sandbox.runner is not None:
            sandbox.runner.thaw()

    async def _remove_container(self, sandbox: Sandbox) -> None:
        """Remove every container of this sandbox, found by its label, including one that was never recorded."""
        for container in await self._engine.find({LABEL_INSTANCE: self._instance, LABEL_SANDBOX: sandbox.record.id}):
            await self._engine.remove(container.id)
            self._sandbox_of.pop(container.id, None)
        self.close_listener(sandbox)
        if sandbox.egress is not None:
            sandbox.egress.cut()
        if self._memory is not None:
            self._memory.drop(sandbox.record.id)

    async def _tear_down(self, sandbox: Sandbox) -> None:
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLEANUP_S) as scope:
            await self._remove_container(sandbox)
            await failpoints.reach("destroy.removed")
            await self.remove_scratch(sandbox.record.id)
            await failpoints.reach("destroy.run_dir")
            await self._remove_workspace(sandbox.record)
            await self.advance(sandbox, TornDown())
        if scope.cancelled_caught:
            raise EngineUnavailable(f"cannot destroy this sandbox: it took longer than {_CLEANUP_S:g} s; try again")

    async def _rest_workspace(self, sandbox: Sandbox) -> None:
        """Leave only the workspace of a sandbox without a container, as files on disk."""
        await failpoints.reach("hibernate.removed")
        await self.rest(sandbox.record.id)
        await failpoints.reach("hibernate.rested")

    async def rest(self, sandbox_id: str) -> None:
        """Unmount the workspace, then remove what can be rebuilt: while that exists, there may be a mount too."""
        await self._workspaces.rest(sandbox_id)
        await self.remove_scratch(sandbox_id)

    async def _remove_workspace(self, record: Record) -> None:
        """Remove the workspace permanently, and log why. (I14)"""
        if await self._workspaces.remove(record.id):
            removal, owner = record.removal or "asked", record.owner
            whose = {} if owner is None else {"tenant": owner.ref.tenant, "session": owner.ref.session}
            _log.info("workspace removed", sandbox=record.id, cause=removal, why=_WHY_REMOVED[removal], **whose)
            if owner is not None:
                self._events.publish("workspace", what="removed", user=owner.user, cause=removal, **whose)
        await failpoints.reach("destroy.workspace")

    async def _forget(self, sandbox: Sandbox) -> None:
        if sandbox.egress is not None:
            sandbox.egress.close()
        await self._layout.reserve.spend_on(partial(self._registry.forget, sandbox.record.id))
        if not self._layout.reserve.is_whole:
            self._layout.reserve.fill()
        await failpoints.reach("destroy.forgotten")

    async def _announce(self, sandbox: Sandbox) -> None:
        record, owner = sandbox.record, sandbox.record.owner
        if owner is None:  # a warm sandbox is never announced
            return
        self._events.publish(
            "sandbox",
            tenant=owner.ref.tenant,
            session=owner.ref.session,
            user=owner.user,
            state=record.state.value,
            cause=record.cause,
        )

    def _listen(self, sandbox: Sandbox, *, is_adoption: bool = False) -> None:
        """Open the socket that the runner connects to; always before its container is launched."""
        self.close_listener(sandbox)
        record = sandbox.record
        listener = RunnerListener(
            self._layout.run_dir(record.id),
            record.secret,
            uid=self._settings.uid,
            gid=self._settings.gid,
            is_adoption=is_adoption,
            is_held=is_adoption,
            max_timeout_s=self._settings.max_timeout_s,
        )
        self._networks.connect(sandbox, listener.client)
        listener.open()
        sandbox.listener, sandbox.runner = listener, listener.client

    async def _await_connection(self, sandbox: Sandbox) -> None:
        if sandbox.runner is None:
            raise NotReady("cannot reach the runner: its socket is closed; try again")
        await self._within_start_time(sandbox, sandbox.runner.wait_connected, "its runner")

    async def _within_start_time(self, sandbox: Sandbox, work: Callable[[], Awaitable[T]], what: str) -> T:
        """Wait for a part of a start. All parts share one deadline, and missing it is a retryable error."""
        with anyio.CancelScope(deadline=sandbox.start_deadline):
            return await work()
        raise EngineUnavailable(
            f"cannot start this sandbox: {what} was not ready within {self._settings.start_timeout_s:g} s; the host "
            "may be overloaded: try again, or raise start_timeout_s"
        )


def _interruption(record: Record) -> SandboxdError:
    """Return the error for a call whose container is removed under it."""
    if record.state is State.HIBERNATED:
        return Hibernated(f"cannot finish this call: the sandbox hibernates ({record.cause}); its files are kept")
    if record.state is State.DESTROYING:
        return Gone("cannot finish this call: the sandbox was destroyed", "killed")
    return NotReady("cannot finish this call: the container is being replaced; try again")


def _fail_start(sandbox: Sandbox, death: ContainerDied) -> None:
    if death.exit_code == _BAD_PYTHON_EXIT:
        why = "the image's Python is older than 3.9 or lacks ctypes; use another image"
    else:
        why = f"its container died at start ({death.cause}, exit code {death.exit_code})"
    if sandbox.runner is not None:
        sandbox.runner.fail(Gone(f"cannot start this sandbox: {why}", death.cause))
