"""Moves: the parts of a life cycle (bring up, tear down, adopt, hibernate, pause), one at a time for each sandbox.

Every move runs in the manager's task group, so a caller that disconnects leaves nothing half done. A move that fails
leaves its error in the sandbox, for the callers that wait for it. It decides nothing about the life cycle;
`lifecycle.step` does.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

import anyio
import structlog
from anyio.abc import TaskGroup

from sandboxd.errors import EngineRefused, Gone, NotReady, SandboxdError, host_error
from sandboxd.sandboxes.effects import Effects
from sandboxd.sandboxes.lifecycle import Effect, Event, LaunchAsked, LaunchFailed, Record, State
from sandboxd.sandboxes.pool import Pool
from sandboxd.sandboxes.sandbox import Sandbox

_log = structlog.get_logger()


class Moves:
    """`renew` returns a new record for a sandbox whose warm container turned out to be unfit; `settled` is called
    when a move has ended, with the seconds that it took."""

    def __init__(
        self,
        effects: Effects,
        tasks: TaskGroup,
        pool: Pool,
        *,
        renew: Callable[[Record], Record],
        settled: Callable[[Sandbox, float], None],
    ) -> None:
        self._effects = effects
        self._tasks = tasks
        self._pool = pool
        self._renew = renew
        self._settled = settled
        self.awaited = 0
        """How many callers wait for a container; the pool is refilled when there are none."""

    def start(self, sandbox: Sandbox, move: Callable[..., Awaitable[None]], *args: object) -> anyio.Event:
        """Start a move. The caller has checked, without an await since, that none is under way."""
        settled = sandbox.settled = anyio.Event()
        sandbox.failure = None
        self._tasks.start_soon(self._run, sandbox, settled, move, args)
        return settled

    async def finish(self, sandbox: Sandbox, move: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start a move and wait for its end; raise its error if it fails."""
        await self.start(sandbox, move, *args).wait()
        if sandbox.failure is not None:
            raise sandbox.failure.with_traceback(None)

    async def finish_event(self, sandbox: Sandbox, event: Event) -> None:
        """Make the move that follows from one event; raise its error if it fails."""
        await self.finish(sandbox, self._effects.advance, event)

    def advance(self, sandbox: Sandbox, event: Event) -> anyio.Event:
        """Start the move that follows from one event."""
        return self.start(sandbox, self._effects.advance, event)

    def bring_up(self, sandbox: Sandbox, event: Event) -> anyio.Event:
        """Start the move that gives a sandbox a container. Its record changes at once."""
        return self.start(sandbox, self._bring_up, self._effects.decide(sandbox, event))

    async def _run(
        self,
        sandbox: Sandbox,
        settled: anyio.Event,
        move: Callable[..., Awaitable[None]],
        args: tuple[object, ...],
    ) -> None:
        started = time.monotonic()
        try:
            await move(sandbox, *args)
        except (SandboxdError, OSError) as error:
            sandbox.failure = explain(error)
            _log.warning("move failed", sandbox=sandbox.record.id, state=sandbox.record.state, error=str(error))
        except BaseException:
            # Cancelled, or a bug: the daemon is stopping, so a caller that waits for this move must not start another.
            sandbox.failure = NotReady("cannot manage this sandbox: the daemon is stopping; try again")
            raise
        finally:
            sandbox.settled = None
            settled.set()
            self._settled(sandbox, time.monotonic() - started)

    async def _bring_up(self, sandbox: Sandbox, effects: Sequence[Effect]) -> None:
        """Launch the container of a new sandbox, or of one that has none, or hand over a warm one."""
        owner = sandbox.record.owner
        self.awaited += owner is not None
        try:
            await self._carry_out(sandbox, effects)
        except (Gone, NotReady):
            is_unfit = sandbox.record.from_pool and sandbox.record.state is State.REMOVED
            if not is_unfit:
                raise
            # The warm sandbox was dead or does not answer, and is removed; a new one replaces it.
            expires_at = sandbox.record.expires_at
            sandbox.record = self._renew(sandbox.record)
            await self._carry_out(sandbox, self._effects.decide(sandbox, LaunchAsked(expires_at)))
        else:
            if owner is not None:
                self._pool.launched_elsewhere()
        finally:
            self.awaited -= owner is not None
            self._pool.nudge()  # the pool starts nothing while a caller waits

    async def _carry_out(self, sandbox: Sandbox, effects: Sequence[Effect]) -> None:
        """Carry out a launch or a hand-over, and undo it if it fails."""
        try:
            with anyio.CancelScope() as scope:
                sandbox.scope = scope
                await self._effects.carry_out(sandbox, effects)
        except (SandboxdError, OSError):
            sandbox.scope = None
            # If the undo fails too, the record still says what to undo: the next ensure, gc or start does it.
            await self._effects.advance(sandbox, LaunchFailed())
            raise
        finally:
            sandbox.scope = None
        if scope.cancelled_caught:
            raise NotReady("cannot create this sandbox: it was destroyed in the meantime")


def explain(error: SandboxdError | OSError) -> SandboxdError:
    """Return the error for a caller of a move that failed."""
    if isinstance(error, OSError):
        return host_error("manage this sandbox", error)
    if isinstance(error, Gone):  # it died during its start, before any caller had it
        return EngineRefused(str(error))
    return error
