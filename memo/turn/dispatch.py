"""One dispatch: iterations of the executor until it acks, nacks, is aborted or reaches the limit.

An iteration that succeeds is flushed before its end is announced; one that does not leaves nothing behind. Once a flush
has begun it is finished, whatever the abort signal says: a flush is all or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from memo.turn.callbacks import Callback, call
from memo.turn.contexts import DispatchContext, Emit, TurnContext
from memo.turn.deltas import Delta
from memo.turn.errors import ExecutorError, FlushError, IterationLimit, PipelineError
from memo.turn.events import DispatchEnd, DispatchStart, IterationEnd, IterationStart, Status, TurnFailure
from memo.turn.pipeline import Middleware, run_pipeline
from memo.turn.reporter import Reporter


@dataclass(frozen=True, slots=True)
class DispatchPlan:
    executor: Callback
    input_pipeline: Sequence[Middleware] = ()
    output_pipeline: Sequence[Middleware] = ()
    max_iterations: int = 100
    flush_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    status: Status
    iterations: int
    error: BaseException | None = None


async def run_dispatch(turn: TurnContext, plan: DispatchPlan, emit: Emit) -> Outcome:
    ctx = DispatchContext(turn)
    reporter = Reporter(turn.id, turn.account, emit)
    await emit(DispatchStart(turn.id))
    outcome: Outcome | None = None
    while outcome is None:
        if turn.aborted:
            outcome = Outcome("aborted", ctx.iteration)
            break
        await emit(IterationStart(turn.id, ctx.iteration))
        outcome, stored = await _iterate(turn, ctx, plan, reporter)
        await emit(IterationEnd(turn.id, ctx.iteration, stored))
        ctx.iteration += 1
        if outcome is None and ctx.iteration >= plan.max_iterations:
            error = IterationLimit(f"cannot go on: the executor has not acked in {plan.max_iterations} iterations")
            outcome = Outcome("nack", ctx.iteration, error)
    if outcome.error is not None:
        await emit(TurnFailure(turn.id, outcome.error))
    await emit(DispatchEnd(turn.id, outcome.status, outcome.iterations))
    return outcome


async def _iterate(
    turn: TurnContext, ctx: DispatchContext, plan: DispatchPlan, reporter: Reporter
) -> tuple[Outcome | None, int | None]:
    """Return how the dispatch ended, if it did, and how many changes were stored."""
    error: BaseException | None = None
    try:
        with ctx.abort_signal.scope():
            await _run_stages(ctx, plan, reporter)
    except (PipelineError, ExecutorError) as raised:
        error = raised
    except BaseException:
        ctx.discard()  # somebody cancels the whole turn
        raise
    number = ctx.iteration + 1
    if ctx.aborted:
        ctx.discard()
        return Outcome("aborted", number), None
    error = error or ctx.error
    if error is None:
        deltas = ctx.take()
        try:
            await _flush(turn, deltas, plan.flush_timeout_s)
        except FlushError as raised:
            error = raised
    if error is not None:
        ctx.discard()
        return Outcome("nack", number, error), None
    await turn.announce(deltas)
    return (Outcome("ack", number) if ctx.is_acked else None), len(deltas)


async def _run_stages(ctx: DispatchContext, plan: DispatchPlan, reporter: Reporter) -> None:
    await run_pipeline("the dispatch input pipeline", plan.input_pipeline, ctx)
    if not ctx.is_signalled:
        try:
            await call(plan.executor, ctx, reporter)
        except Exception as error:  # an executor may raise anything, and the contract is to wrap it
            raise ExecutorError(f"cannot execute: {type(error).__name__}: {error}") from error
    if ctx.error is None:
        await run_pipeline("the dispatch output pipeline", plan.output_pipeline, ctx)


async def _flush(turn: TurnContext, deltas: list[Delta], timeout_s: float) -> None:
    action = "cannot store the changes of this iteration"
    with anyio.CancelScope(shield=True), anyio.move_on_after(timeout_s) as patience:
        try:
            await turn.flush(deltas)
        except Exception as error:  # a callback may raise anything
            unknown = bool(getattr(error, "outcome_unknown", False))
            raise FlushError(f"{action}: {type(error).__name__}: {error}", outcome_unknown=unknown) from error
    if patience.cancelled_caught:
        raise FlushError(f"{action}: no answer in {timeout_s:g} s", outcome_unknown=True)
