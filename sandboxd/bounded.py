"""Bounded concurrency: runs many jobs, a few at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from sandboxd.errors import SandboxdError

J = TypeVar("J")


async def each(jobs: list[J], work: Callable[[J], Awaitable[None]], at_once: int) -> None:
    """Run every job, at most `at_once` concurrently. The first failure cancels the rest and is raised unwrapped."""
    remaining = iter(jobs)
    failures: list[SandboxdError | OSError] = []

    async def run() -> None:
        for job in remaining:
            try:
                await work(job)
            except (SandboxdError, OSError) as error:
                failures.append(error)
                tasks.cancel_scope.cancel()
                return

    async with anyio.create_task_group() as tasks:
        for _ in range(min(at_once, len(jobs))):
            tasks.start_soon(run)
    if failures:
        raise failures[0]
