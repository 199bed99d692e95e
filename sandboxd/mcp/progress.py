"""Progress of a tool call: the newest lines of its output, at a bounded rate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

INTERVAL_S = 0.1
"""The least time between two messages."""
MAX_CHARS = 1000

Report = Callable[[float, float | None, str | None], Awaitable[None]]


class ProgressReport:
    """Sends output as progress messages. While it waits, the daemon keeps only the newest output, so it never lags."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._next = 0.0
        self._count = 0

    async def __call__(self, text: str) -> None:
        if not text.strip():
            return
        await anyio.sleep_until(self._next)
        self._next = anyio.current_time() + INTERVAL_S
        self._count += 1
        await self._report(self._count, None, text.rstrip("\n")[-MAX_CHARS:])
