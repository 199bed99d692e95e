"""Run a benchmark so that it cleans up on Ctrl-C, SIGTERM or a closed terminal."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio.abc import TaskStatus

T = TypeVar("T")


def run(work: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """Return the result. On a signal, cancel the work, let it clean up, and exit with 128 plus the signal number."""
    return anyio.run(_watched, work, *arguments, backend_options={"use_uvloop": True})


async def _watched(work: Callable[..., Awaitable[T]], *arguments: object) -> T:
    caught: list[int] = []
    results: list[T] = []

    async def watch(scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                caught.append(number)
                scope.cancel()

    async with anyio.create_task_group() as tasks:
        await tasks.start(watch, tasks.cancel_scope)
        results.append(await work(*arguments))
        tasks.cancel_scope.cancel()
    if caught:
        raise SystemExit(128 + caught[0])
    return results[0]
