"""Retries: the consecutive failures of one task, and the wait before its next attempt."""

from __future__ import annotations

from datetime import timedelta

import anyio

from memo.backoff import Backoff

_UP_TO_TWO_SECONDS = Backoff(first=timedelta(seconds=0.1), longest=timedelta(seconds=2))
"""A dependency that has recovered is noticed within two seconds (I3, I10)."""


class Retries:
    """Counts consecutive failures. Each one makes the next wait longer, until a success resets the count."""

    def __init__(self, backoff: Backoff = _UP_TO_TWO_SECONDS) -> None:
        self._backoff = backoff
        self._failures = 0

    @property
    def is_first(self) -> bool:
        """Whether nothing has failed since the start or the last `reset`."""
        return self._failures == 0

    def reset(self) -> None:
        self._failures = 0

    def next_pause_s(self) -> float:
        """Count a failure and return how long to wait after it."""
        self._failures += 1
        return self._backoff.pause(self._failures).total_seconds()

    async def wait(self) -> None:
        """Count a failure and wait."""
        await anyio.sleep(self.next_pause_s())
