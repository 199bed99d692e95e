"""The number of warm sandboxes that a shape needs, learnt from misses. Pure: it uses no clock and no container.

A miss soon after another request adds one; a period without a miss removes one. So the second round of a burst finds
warm sandboxes, and a quiet host falls back to the configured number.
"""

from __future__ import annotations

import math


class Demand:
    """The demand for one shape, always between `least` and `most`."""

    def __init__(self, least: int, most: int, shrink_s: float) -> None:
        self._least = least
        self._most = max(least, most)
        self._shrink_s = shrink_s
        self._size = least
        self._asked_at = -math.inf
        self._missed_at = -math.inf

    def asked(self, now: float, *, missed: bool) -> None:
        """Record a request for this shape, and whether it was a miss."""
        self._settle(now)
        if missed:
            if now - self._asked_at <= self._shrink_s:
                self._size = min(self._size + 1, self._most)
            self._missed_at = now
        self._asked_at = now

    def size(self, now: float) -> int:
        self._settle(now)
        return self._size

    def shrinks_at(self) -> float:
        """The time at which the size falls by itself; infinity means never."""
        return math.inf if self._size == self._least else self._missed_at + self._shrink_s

    def _settle(self, now: float) -> None:
        while self._size > self._least and now >= self._missed_at + self._shrink_s:
            self._size -= 1
            self._missed_at += self._shrink_s
