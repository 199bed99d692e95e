"""The reconciler: makes registry, engine and disk agree at start, after an engine outage, and on `gc`.

`reconcile_plan.plan` decides; the Reconciler carries out a plan, one action after another. An action that fails is
logged and retried the next time. It skips sandboxes that have a move under way, and it never removes a workspace
(I14).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog

from sandboxd import failpoints
from sandboxd.engine.protocol import LABEL_SANDBOX, Container, ContainerDied
from sandboxd.errors import Gone, SandboxdError
from sandboxd.models.sandbox import GarbageReport
from sandboxd.sandboxes.effects import Effects
from sandboxd.sandboxes.engine_watch import Start
from sandboxd.sandboxes.lifecycle import DeathSeen, DestroyAsked, LaunchFailed, Record, Removal, State
from sandboxd.sandboxes.parts import Parts
from sandboxd.sandboxes.pool import Pool
from sandboxd.sandboxes.reconcile_plan import (
    Action,
    Adopt,
    FinishDestroy,
    KeepWorkspace,
    MarkGone,
    RemoveContainer,
    RemoveFiles,
    Rest,
    plan,
)
from sandboxd.sandboxes.sandbox import Sandbox
from sandboxd.sandboxes.table import SandboxTable

_log = structlog.get_logger()

Failure = SandboxdError | OSError


class Reconciler:
    def __init__(self, sandboxes: SandboxTable, pool: Pool, parts: Parts, effects: Effects, *, start: Start) -> None:
        self._sandboxes = sandboxes
        self._pool = pool
        self._engine = parts.engine
        self._effects = effects
        self._layout = parts.layout
        self._events = parts.events
        self._start = start
        self._unclaimed: set[str] = set()
        """Workspaces without a record that were reported."""

    async def adopt_all(self) -> None:
        """Adopt what an earlier daemon left running, and finish or undo the rest."""
        actions = await self._plan()
        failures = await self._carry_out(actions)
        _log.info("reconciled", actions=len(actions), failures=len(failures))

    async def collect_garbage(self) -> tuple[GarbageReport, list[Failure]]:
        """Reconcile without adopting anything. Return what was found, and what failed."""
        actions = [action for action in await self._plan() if not isinstance(action, Adopt)]
        failures = await self._carry_out(actions)
        report = GarbageReport(
            containers=sum(isinstance(action, RemoveContainer) for action in actions),
            directories=sum(isinstance(action, RemoveFiles) for action in actions),
            sandboxes=sum(isinstance(action, MarkGone | FinishDestroy) for action in actions),
            unclaimed_workspaces=[action.id for action in actions if isinstance(action, KeepWorkspace)],
        )
        return report, failures

    async def _plan(self) -> list[Action]:
        """Plan for every sandbox that has no move under way."""
        containers = await self._effects.containers()
        scratch, workspaces = await self._effects.scratch_on_disk(), await self._effects.workspaces_on_disk()
        sandboxes = [*self._sandboxes.values(), *self._pool.all()]
        at_rest = [sandbox.record for sandbox in sandboxes if sandbox.settled is None]
        moving = {sandbox.record.id for sandbox in sandboxes if sandbox.settled is not None}
        self._report_deaths([sandbox for sandbox in sandboxes if sandbox.settled is not None], containers)
        mine = [container for container in containers if container.labels.get(LABEL_SANDBOX) not in moving]
        stale = await self._effects.stale(mine)
        return plan(at_rest, mine, scratch - moving, workspaces - moving, stale)

    def _report_deaths(self, moving: Sequence[Sandbox], containers: Sequence[Container]) -> None:
        """Report deaths that no event told of: a container may die before the engine's events are followed.

        Otherwise a take-over would wait for the runner of a dead container until its deadline. (I10)
        """
        dead = {container.id: container for container in containers if container.cause is not None}
        for sandbox in moving:
            found = dead.get(sandbox.record.container or "")
            if found is not None and found.cause is not None and sandbox.record.state is State.READY:
                self._effects.dead(ContainerDied(found.id, found.cause, found.exit_code))

    async def _carry_out(self, actions: Sequence[Action]) -> list[Failure]:
        failures: list[Failure] = []
        try:
            await failpoints.reach("reconcile.planned")
        except OSError as error:
            failures.append(error)
        for action in actions:
            try:
                await self._act(action)
                await failpoints.reach("reconcile.acted")
            except (SandboxdError, OSError) as error:
                failures.append(error)
        for failure in failures:
            _log.warning("cannot set right what a crash or a fault left; it is tried again", error=str(failure))
        return failures

    async def _act(self, action: Action) -> None:
        match action:
            case RemoveContainer(container):
                await self._engine.remove(container)
            case RemoveFiles(sandbox_id):
                await self._effects.remove_scratch(sandbox_id)
            case KeepWorkspace(workspace_id):
                self._report_unclaimed(workspace_id)
            case Adopt(record):
                self._start_at_rest(record, self._take_over)
            case MarkGone(record, cause) if record.state in (State.READY, State.PAUSED):
                self._start_at_rest(record, self._effects.advance, DeathSeen(cause))
            case MarkGone(record):
                self._start_at_rest(record, self._effects.advance, LaunchFailed())
            case Rest(record):
                self._start_at_rest(record, self._rest)
            case FinishDestroy(record):
                removal: Removal = "pool" if record.state is State.WARM else "create_failed"
                self._start_at_rest(record, self._effects.advance, DestroyAsked(removal))

    def _start_at_rest(self, record: Record, move: Callable[..., Awaitable[None]], *args: object) -> None:
        sandbox = self._find(record)
        # The plan is a moment old and does not apply to a sandbox that has moved since.
        if sandbox is not None and sandbox.settled is None and sandbox.record == record:
            self._start(sandbox, move, *args)

    def _find(self, record: Record) -> Sandbox | None:
        return self._pool.get(record.id) if record.owner is None else self._sandboxes.get(record.owner.ref)

    async def _take_over(self, sandbox: Sandbox) -> None:
        try:
            await self._effects.take_over(sandbox)
        except (SandboxdError, OSError) as error:
            cause = error.cause if isinstance(error, Gone) else "engine"
            await self._effects.advance(sandbox, DeathSeen(cause))
            raise

    async def _rest(self, sandbox: Sandbox) -> None:
        await self._effects.rest(sandbox.record.id)

    def _report_unclaimed(self, workspace_id: str) -> None:
        if workspace_id not in self._unclaimed:
            self._unclaimed.add(workspace_id)
            _log.warning(
                "a workspace has no record and is kept; restore the registry, or remove the directory by hand",
                directory=str(self._layout.workspaces / workspace_id),
            )
            self._events.publish("workspace", what="unclaimed", directory=workspace_id)
