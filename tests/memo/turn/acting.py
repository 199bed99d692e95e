"""Small scripted turns: each executor is a function of its context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from memo.turn import DispatchContext, Reporter, TurnResult, TurnRunner, noop_callbacks
from memo.turn.conformance import sample

Act = Callable[[DispatchContext, Reporter], Awaitable[None]]


def runner(act: Act, callbacks: dict[str, Any] | None = None, **settings: Any) -> TurnRunner:
    async def executor(ctx: DispatchContext, helpers: Reporter) -> None:
        await act(ctx, helpers)

    return TurnRunner(executor_callback=executor, **(callbacks or noop_callbacks()), **settings)


async def run(act: Act, callbacks: dict[str, Any] | None = None, **settings: Any) -> TurnResult:
    return await runner(act, callbacks, **settings).run()


def recording() -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """Return a log and 27 callbacks that append every change to it."""
    log: list[tuple[str, Any]] = []

    def recorder(name: str) -> Any:
        async def record(ctx: Any, value: Any) -> None:
            log.append((name, value))

        return record

    callbacks = noop_callbacks()
    changes = [
        name for name in callbacks if name.split("_")[0] in ("store", "mutate", "delete") and "bytes" not in name
    ]
    return log, {**callbacks, **{name: recorder(name) for name in changes}}


__all__ = ["Act", "recording", "run", "runner", "sample"]
