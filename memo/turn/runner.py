"""TurnRunner: runs turns through pipelines and a dispatch. Its configuration is validated at construction.

`run` raises only for invalid arguments. It returns a result that says how the turn ended; an error is also emitted on
the event bus.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from anyio.streams.memory import MemoryObjectReceiveStream
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationError

from memo.errors import InvalidKey
from memo.ids import Id, SessionId, TenantId, UserId
from memo.primitives import InvalidPrimitive, Tokenizable
from memo.turn.abort_signal import AbortSignal
from memo.turn.callbacks import EXECUTOR_CALLBACK, problems_of
from memo.turn.context import TurnContext, TurnIdentity
from memo.turn.dispatch import (
    DispatchOutcome,
    DispatchPlan,
    Middleware,
    problems_of_pipeline,
    run_dispatch,
    run_pipeline,
)
from memo.turn.errors import InvalidTurnContext, InvalidTurnRunnerConfig, PipelineError
from memo.turn.events import Event, EventBus, Listener, Status, TurnEnd, TurnFailure, TurnStart
from memo.turn.owner import LOCAL
from memo.turn.reporter import Ghost
from memo.turn.tools import Tool, ToolRegistry


class RawTurnContext(BaseModel):
    """What a turn starts with."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    system_prompt: Tokenizable = Tokenizable("")
    standing_instructions: tuple[Tokenizable, ...] = ()
    stash: dict[str, Any] = Field(default_factory=dict)
    tenant: str = LOCAL
    user: str = LOCAL
    session: str = LOCAL
    abort_signal: InstanceOf[AbortSignal] | None = None


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended. `error` is the reported error; an aborted turn has none."""

    turn_id: str
    status: Status
    iterations: int
    error: BaseException | None
    context: TurnContext

    def audit(self) -> list[Ghost]:
        """Return what was reported but never stored."""
        return self.context.audit()


class TurnRunner:
    """Owns the event bus. Turns of one runner may run concurrently; each has its own context."""

    def __init__(
        self,
        *,
        turn_input_pipeline: Sequence[Middleware] = (),
        dispatch_input_pipeline: Sequence[Middleware] = (),
        dispatch_output_pipeline: Sequence[Middleware] = (),
        turn_output_pipeline: Sequence[Middleware] = (),
        tools: Sequence[Tool] = (),
        max_iterations: int = 100,
        flush_timeout_s: float = 30.0,
        **callbacks: Any,
    ) -> None:
        pipelines = {
            "turn_input_pipeline": turn_input_pipeline,
            "dispatch_input_pipeline": dispatch_input_pipeline,
            "dispatch_output_pipeline": dispatch_output_pipeline,
            "turn_output_pipeline": turn_output_pipeline,
        }
        problems = problems_of(callbacks)
        for name, pipeline in pipelines.items():
            problems += problems_of_pipeline(name, pipeline)
        problems += [f"tools[{i}] is not a Tool" for i, tool in enumerate(tools) if not isinstance(tool, Tool)]
        if isinstance(max_iterations, bool) or not isinstance(max_iterations, int) or max_iterations < 1:
            problems.append("max_iterations must be at least 1")
        if problems:
            raise InvalidTurnRunnerConfig(problems)
        self._callbacks = {name: callback for name, callback in callbacks.items() if name != EXECUTOR_CALLBACK}
        self._input = tuple(turn_input_pipeline)
        self._output = tuple(turn_output_pipeline)
        self._tools = tuple(tools)
        self._plan = DispatchPlan(
            callbacks[EXECUTOR_CALLBACK],
            tuple(dispatch_input_pipeline),
            tuple(dispatch_output_pipeline),
            max_iterations,
            flush_timeout_s,
        )
        self._bus = EventBus()

    def on(self, name: str, listener: Listener) -> Callable[[], None]:
        """Call the listener, sync or async, with every event of this name. Return a function that removes it."""
        return self._bus.on(name, listener)

    def events(self, buffer: int = 16) -> AbstractAsyncContextManager[MemoryObjectReceiveStream[Event]]:
        """Open a stream of every event for another task. The turn pauses while `buffer` events are unread."""
        return self._bus.stream(buffer)

    async def run(self, raw: RawTurnContext | Mapping[str, Any] | None = None, /, **fields: Any) -> TurnResult:
        """Run one turn: input pipeline, dispatch, output pipeline."""
        turn = self._context(raw, fields)
        await self._bus.emit(TurnStart(turn.id))
        outcome = await self._run_stages(turn)
        await self._bus.emit(TurnEnd(turn.id, outcome.status))
        return _result(turn, outcome)

    async def dispatch(self, raw: RawTurnContext | Mapping[str, Any] | None = None, /, **fields: Any) -> TurnResult:
        """Run a dispatch without the turn's pipelines and events."""
        turn = self._context(raw, fields)
        return _result(turn, await run_dispatch(turn, self._plan, self._bus.emit))

    async def _run_stages(self, turn: TurnContext) -> DispatchOutcome:
        failure = await self._run_pipeline("the turn input pipeline", self._input, turn)
        if failure is not None:
            return failure
        outcome = await run_dispatch(turn, self._plan, self._bus.emit)
        if outcome.status != "ack":
            return outcome
        return await self._run_pipeline("the turn output pipeline", self._output, turn, outcome.iterations) or outcome

    async def _run_pipeline(
        self, name: str, pipeline: Sequence[Middleware], turn: TurnContext, iterations: int = 0
    ) -> DispatchOutcome | None:
        if turn.aborted:
            return DispatchOutcome("aborted", iterations)
        try:
            with turn.abort_signal.scope():
                await run_pipeline(name, pipeline, turn)
        except PipelineError as error:
            await self._bus.emit(TurnFailure(turn.id, error))
            return DispatchOutcome("nack", iterations, error)
        return DispatchOutcome("aborted", iterations) if turn.aborted else None

    def _context(self, raw: RawTurnContext | Mapping[str, Any] | None, fields: Mapping[str, Any]) -> TurnContext:
        parsed = _parse(raw, fields)
        identity = TurnIdentity(str(uuid.uuid4()), parsed.tenant, parsed.user, parsed.session, parsed.system_prompt)
        return TurnContext(
            identity,
            self._callbacks,
            ToolRegistry(self._tools),
            dict(parsed.stash),
            parsed.abort_signal or AbortSignal(),
            self._bus.emit,
            parsed.standing_instructions,
        )


def _parse(raw: RawTurnContext | Mapping[str, Any] | None, fields: Mapping[str, Any]) -> RawTurnContext:
    given = {name: getattr(raw, name) for name in raw.model_fields_set} if isinstance(raw, RawTurnContext) else raw
    try:
        parsed = RawTurnContext(**{**(given or {}), **fields})
        for kind, text in ((TenantId, parsed.tenant), (UserId, parsed.user), (SessionId, parsed.session)):
            _check_id(kind, text)
    except ValidationError as error:
        reasons = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)]
        raise InvalidTurnContext(f"cannot run a turn: {'; '.join(reasons)}") from None
    except (InvalidPrimitive, InvalidKey, TypeError) as error:
        raise InvalidTurnContext(f"cannot run a turn: {error}") from None
    return parsed


def _check_id(kind: type[Id], text: str) -> None:
    kind(text)


def _result(turn: TurnContext, outcome: DispatchOutcome) -> TurnResult:
    return TurnResult(turn.id, outcome.status, outcome.iterations, outcome.error, turn)
