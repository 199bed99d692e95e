"""Dispatch: iterations of the executor until it acks, nacks, is aborted or reaches the limit; and its pipelines.

A successful iteration is flushed before its end is announced; a failed one stores nothing. A flush that has started is
completed even if the turn is aborted, because it is atomic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

from memo.turn.callbacks import Callback, call, problem_of_parameters
from memo.turn.context import DispatchContext, Emit, TurnContext
from memo.turn.delta import Delta
from memo.turn.errors import ExecutorError, FlushError, IterationLimit, PipelineError
from memo.turn.events import DispatchEnd, DispatchStart, IterationEnd, IterationStart, Status, TurnFailure
from memo.turn.reporter import Reporter

Next = Callable[[], Awaitable[None]]
Middleware = Callable[[Any, Next], Any]
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class DispatchPlan:
    executor: Callback
    input_pipeline: Sequence[Middleware] = ()
    output_pipeline: Sequence[Middleware] = ()
    max_iterations: int = 100
    flush_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class DispatchOutcome:
    status: Status
    iterations: int
    error: BaseException | None = None


async def run_dispatch(turn: TurnContext, plan: DispatchPlan, emit: Emit) -> DispatchOutcome:
    ctx = DispatchContext(turn)
    reporter = Reporter(turn.id, turn.report_log, emit)
    await emit(DispatchStart(turn.id))
    outcome: DispatchOutcome | None = None
    while outcome is None:
        if turn.aborted:
            outcome = DispatchOutcome("aborted", ctx.iteration)
            break
        await emit(IterationStart(turn.id, ctx.iteration))
        outcome, stored = await _iterate(turn, ctx, plan, reporter)
        await emit(IterationEnd(turn.id, ctx.iteration, stored))
        ctx.iteration += 1
        if outcome is None and ctx.iteration >= plan.max_iterations:
            error = IterationLimit(f"cannot continue: the executor did not ack within {plan.max_iterations} iterations")
            outcome = DispatchOutcome("nack", ctx.iteration, error)
    if outcome.error is not None:
        await emit(TurnFailure(turn.id, outcome.error))
    await emit(DispatchEnd(turn.id, outcome.status, outcome.iterations))
    return outcome


async def _iterate(
    turn: TurnContext, ctx: DispatchContext, plan: DispatchPlan, reporter: Reporter
) -> tuple[DispatchOutcome | None, int | None]:
    """Run one iteration; return how the dispatch ended, if it did, and how many changes were stored."""
    error: BaseException | None = None
    try:
        with ctx.abort_signal.scope():
            await _run_stages(ctx, plan, reporter)
    except (PipelineError, ExecutorError) as raised:
        error = raised
    except BaseException:
        ctx.discard()  # the whole turn is cancelled
        raise
    number = ctx.iteration + 1
    if ctx.aborted:
        ctx.discard()
        return DispatchOutcome("aborted", number), None
    error = error or ctx.error
    if error is None:
        deltas = ctx.take()
        try:
            await _flush(turn, deltas, plan.flush_timeout_s)
        except FlushError as raised:
            error = raised
    if error is not None:
        ctx.discard()
        return DispatchOutcome("nack", number, error), None
    await turn.announce(deltas)
    return (DispatchOutcome("ack", number) if ctx.is_acked else None), len(deltas)


async def _run_stages(ctx: DispatchContext, plan: DispatchPlan, reporter: Reporter) -> None:
    await run_pipeline("the dispatch input pipeline", plan.input_pipeline, ctx)
    if not ctx.is_signalled:
        try:
            await call(plan.executor, ctx, reporter)
        except Exception as error:  # an executor may raise anything; the contract is to wrap it
            raise ExecutorError(f"cannot execute: {type(error).__name__}: {error}") from error
    if ctx.error is None:
        await run_pipeline("the dispatch output pipeline", plan.output_pipeline, ctx)


async def _flush(turn: TurnContext, deltas: list[Delta], timeout_s: float) -> None:
    action = "cannot store the changes of this iteration"
    with anyio.CancelScope(shield=True), anyio.move_on_after(timeout_s) as deadline:
        try:
            await turn.flush(deltas)
        except Exception as error:  # a callback may raise anything
            unknown = bool(getattr(error, "outcome_unknown", False))
            raise FlushError(f"{action}: {type(error).__name__}: {error}", outcome_unknown=unknown) from error
    if deadline.cancelled_caught:
        raise FlushError(f"{action}: timed out after {timeout_s:g} s", outcome_unknown=True)


def problems_of_pipeline(name: str, pipeline: Sequence[object]) -> list[str]:
    found = [problem_of_parameters(f"{name}[{i}]", m, ("ctx", "next")) for i, m in enumerate(pipeline)]
    return [problem for problem in found if problem]


async def run_pipeline(name: str, pipeline: Sequence[Middleware], ctx: C) -> None:
    """Run each middleware, which runs the rest of the pipeline by awaiting `next()`.

    A middleware that does not call `next` ends the pipeline, not the turn; `ctx.abort()` ends the turn.
    """

    async def run_from(index: int) -> None:
        if index < len(pipeline):
            await call(pipeline[index], ctx, lambda: run_from(index + 1))

    try:
        await run_from(0)
    except Exception as error:  # a middleware may raise anything; the contract is to wrap it
        raise PipelineError(f"cannot finish {name}: {type(error).__name__}: {error}") from error
