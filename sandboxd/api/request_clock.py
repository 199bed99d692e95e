"""The deadlines of one connection: for the head of a request, then for its body.

A request that arrives in one read never starts a timer. A body is measured in windows: each must bring a minimum of
bytes, unless the daemon itself paused reading. It decides nothing else about a connection.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from sandboxd.wire_limits import WireLimits

PACED = "sandboxd.paced"
"""Scope key set by a route whose body feeds a command: it may be slow, because the command has a timeout."""


class TimedConnection(Protocol):
    def is_late(self, *, is_moving: bool) -> bool:
        """Return whether to end the request. `is_moving`: enough of its body has arrived since the last call."""

    def end_late_request(self) -> None: ...


class RequestClock:
    # The owner is passed to each call and referenced only by a running timer, so that a closed connection is freed
    # without the garbage collector.

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: WireLimits) -> None:
        self._loop = loop
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._body_since = 0.0
        self._window_bytes = 0
        self.body_bytes = 0
        """Bytes of the arriving body, counted by the owner."""

    def expect_head(self, owner: TimedConnection) -> None:
        self.stop()
        self._timer = self._loop.call_later(self._limits.head_timeout_s, self._look_at_head, owner)

    def expect_body(self, owner: TimedConnection) -> None:
        self.stop()
        self._body_since = self._loop.time()
        self._open_window(owner)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def body_rate(self) -> float:
        """Return the average bytes per second; a body that has just begun counts as one second old."""
        return self.body_bytes / (self._loop.time() - self._body_since + 1)

    def _look_at_head(self, owner: TimedConnection) -> None:
        if owner.is_late(is_moving=False):
            owner.end_late_request()
        else:
            self.expect_head(owner)

    def _open_window(self, owner: TimedConnection) -> None:
        self._window_bytes = self.body_bytes
        self._timer = self._loop.call_later(self._limits.body_timeout_s, self._close_window, owner)

    def _close_window(self, owner: TimedConnection) -> None:
        least = self._limits.body_min_bytes_per_s * self._limits.body_timeout_s
        if owner.is_late(is_moving=self.body_bytes - self._window_bytes >= least):
            owner.end_late_request()
        else:
            self._open_window(owner)
