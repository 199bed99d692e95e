"""Pipelines of middleware. Each takes the context and `next`, and what follows runs when it awaits `next()`.

One that does not call `next` ends its pipeline, not the turn; to refuse the turn it calls `ctx.abort()`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from memo.turn.callbacks import call, problem_of_parameters
from memo.turn.errors import PipelineError

Next = Callable[[], Awaitable[None]]
Middleware = Callable[[Any, Next], Any]
C = TypeVar("C")


def problems_of_pipeline(name: str, pipeline: Sequence[object]) -> list[str]:
    found = [problem_of_parameters(f"{name}[{i}]", m, ("ctx", "next")) for i, m in enumerate(pipeline)]
    return [problem for problem in found if problem]


async def run_pipeline(name: str, pipeline: Sequence[Middleware], ctx: C) -> None:
    async def run_from(index: int) -> None:
        if index < len(pipeline):
            await call(pipeline[index], ctx, lambda: run_from(index + 1))

    try:
        await run_from(0)
    except Exception as error:  # a middleware may raise anything, and the contract is to wrap it
        raise PipelineError(f"cannot finish {name}: {type(error).__name__}: {error}") from error
