"""The idle reaper: finds sandboxes that have been unused for so long that their containers are stopped.

Wakes up when the next one may be due, and never polls. Running processes count as use: the runner is queried only
once its sandbox has had no call for the whole time. The manager stops the sandbox.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import anyio

from sandboxd.bounded import each
from sandboxd.errors import SandboxdError
from sandboxd.sandboxes.lifecycle import State
from sandboxd.sandboxes.sandbox import Sandbox

_CHECKS_AT_ONCE = 8
_CHECK_S = 5.0


async def stop_idle(
    limit_s: float, sandboxes: Callable[[], Iterable[Sandbox]], stop: Callable[[Sandbox], object]
) -> None:
    """Call `stop` for every sandbox that has been idle for `limit_s`, for ever."""

    async def stop_unless_working(sandbox: Sandbox) -> None:
        if await _is_working(sandbox):
            sandbox.last_used = max(sandbox.last_used, time.monotonic())
        elif sandbox.settled is None:
            stop(sandbox)

    while True:
        due, next_due_s = _look(sandboxes(), limit_s)
        await each(due, stop_unless_working, at_once=_CHECKS_AT_ONCE)
        await anyio.sleep(next_due_s)


def _look(sandboxes: Iterable[Sandbox], limit_s: float) -> tuple[list[Sandbox], float]:
    now = time.monotonic()
    next_due_s = limit_s  # a sandbox that does not exist yet cannot be due sooner
    due: list[Sandbox] = []
    for sandbox in sandboxes:
        if sandbox.record.state is State.READY and sandbox.settled is None:
            due_s = limit_s - sandbox.idle_s(now)
            if due_s <= 0:
                due.append(sandbox)
            else:
                next_due_s = min(next_due_s, due_s)
    return due, next_due_s


async def _is_working(sandbox: Sandbox) -> bool:
    """Query the runner. A sandbox whose runner does not answer counts as used."""
    if sandbox.runner is not None:
        with suppress(SandboxdError, TimeoutError), anyio.fail_after(_CHECK_S):
            return await sandbox.runner.has_processes()
    return True
