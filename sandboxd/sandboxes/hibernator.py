"""The hibernator: finds sandboxes that are due to lose their containers, because they are unused or too old.

It wakes up when the next one may be due, or when it is told that this has changed, and never polls. Running processes
count as use: the runner is queried only once its sandbox has had no call for the whole time. The manager stops the
sandbox.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime

import anyio

from sandboxd.bounded import each
from sandboxd.errors import Cause, SandboxdError
from sandboxd.sandboxes.lifecycle import State
from sandboxd.sandboxes.sandbox import Sandbox

_CHECKS_AT_ONCE = 8
_CHECK_S = 5.0
_LONGEST_SLEEP_S = 3600.0
"""An expiry is a time of day, and the host's clock may be set while this sleeps."""
_RETRY_S = 1.0
"""How long to wait for a sandbox that is due and makes another move."""


class Hibernator:
    """`sandboxes` returns all of them; `hibernate` begins to hibernate one, for this cause."""

    def __init__(
        self, sandboxes: Callable[[], Iterable[Sandbox]], hibernate: Callable[[Sandbox, Cause], object]
    ) -> None:
        self._sandboxes = sandboxes
        self._hibernate = hibernate
        self._changed = anyio.Event()

    def nudge(self) -> None:
        """Look again, because a sandbox may be due earlier than known so far."""
        self._changed.set()

    async def run(self) -> None:
        """Hibernate what is due, for ever."""
        while True:
            self._changed = anyio.Event()
            idle, expired, next_due_s = self._look()
            for sandbox in expired:
                self._hibernate(sandbox, "lifetime")
            await each(idle, self._hibernate_unless_working, at_once=_CHECKS_AT_ONCE)
            with anyio.move_on_after(min(next_due_s, _LONGEST_SLEEP_S)):
                await self._changed.wait()

    def _look(self) -> tuple[list[Sandbox], list[Sandbox], float]:
        """Return the idle and the expired sandboxes, and in how many seconds the next one may be due."""
        now, date = time.monotonic(), datetime.now(UTC)
        idle: list[Sandbox] = []
        expired: list[Sandbox] = []
        next_due_s = math.inf
        for sandbox in self._sandboxes():
            expires_s, idle_s = expires_in_s(sandbox, date), idle_in_s(sandbox, now)
            if min(expires_s, idle_s) > 0:
                next_due_s = min(next_due_s, expires_s, idle_s)
            elif sandbox.settled is not None:
                next_due_s = min(next_due_s, _RETRY_S)
            elif expires_s <= 0:
                expired.append(sandbox)
            else:
                idle.append(sandbox)
                next_due_s = min(next_due_s, max(sandbox.idle_timeout_s, _RETRY_S))  # it may be working
        return idle, expired, next_due_s

    async def _hibernate_unless_working(self, sandbox: Sandbox) -> None:
        if await _is_working(sandbox):
            sandbox.last_used = max(sandbox.last_used, time.monotonic())
        elif sandbox.settled is None:
            self._hibernate(sandbox, "idle")


def idle_in_s(sandbox: Sandbox, now: float) -> float:
    """Return in how many seconds the sandbox has been unused for too long, unless it is used before."""
    if sandbox.record.state is not State.READY or not sandbox.idle_timeout_s:
        return math.inf
    return sandbox.idle_timeout_s - sandbox.idle_s(now)


def expires_in_s(sandbox: Sandbox, now: datetime) -> float:
    record = sandbox.record
    if record.state not in (State.READY, State.PAUSED) or record.expires_at is None:
        return math.inf
    return (record.expires_at - now).total_seconds()


async def _is_working(sandbox: Sandbox) -> bool:
    """Query the runner. A sandbox whose runner does not answer counts as used."""
    if sandbox.runner is not None:
        with suppress(SandboxdError, TimeoutError), anyio.fail_after(_CHECK_S):
            return await sandbox.runner.has_processes()
    return True
