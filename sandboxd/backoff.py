"""Backoff: how long to wait before the next retry."""

from __future__ import annotations

import anyio

_FIRST_S = 0.1
_LONGEST_S = 2.0


class Backoff:
    """Doubles the wait after each failure, up to two seconds, so that a recovered store is noticed within that."""

    def __init__(self, first_s: float = _FIRST_S, longest_s: float = _LONGEST_S) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s

    @property
    def is_first(self) -> bool:
        """Whether nothing has failed since the start or the last `reset`."""
        return self._next_s == self._first_s

    def reset(self) -> None:
        self._next_s = self._first_s

    async def wait(self) -> None:
        seconds, self._next_s = self._next_s, min(self._next_s * 2, self._longest_s)
        await anyio.sleep(seconds)
