"""Backoff: how long to wait after consecutive failures. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause after a failure: it doubles with each consecutive failure, from `first` up to `longest`."""

    first: timedelta = timedelta(minutes=1)
    longest: timedelta = timedelta(hours=6)

    def pause(self, failures: int) -> timedelta:
        doublings = min(max(failures - 1, 0), 30)
        return min(self.first * (1 << doublings), self.longest)
