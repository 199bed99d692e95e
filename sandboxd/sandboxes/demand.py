"""How many warm sandboxes a shape is worth, from how often one was missing. Pure: it knows no clock and no container.

A miss soon after another request asks for one more; a spell without a miss gives one back. So a burst is met by the
second round, and a host that went quiet is left with what it was told to keep.
"""

from __future__ import annotations

import math


class Demand:
    """Of one shape: never fewer than `least`, never more than `most`."""

    def __init__(self, least: int, most: int, shrink_s: float) -> None:
        self._least = least
        self._most = max(least, most)
        self._shrink_s = shrink_s
        self._size = least
        self._asked_at = -math.inf
        self._missed_at = -math.inf

    def asked(self, now: float, *, missed: bool) -> None:
        """Note that a sandbox of this shape was wanted, and whether none was there."""
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
        """When the size falls by itself; never is infinity."""
        return math.inf if self._size == self._least else self._missed_at + self._shrink_s

    def _settle(self, now: float) -> None:
        while self._size > self._least and now >= self._missed_at + self._shrink_s:
            self._size -= 1
            self._missed_at += self._shrink_s
