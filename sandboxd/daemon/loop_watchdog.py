"""A thread that ends the process when its event loop stalls, or when its shutdown takes too long.

A restart is safe by design; a daemon that neither serves nor exits is not. The thread sleeps between checks and wakes
an idle daemon only twice a minute. It cannot run while the loop holds the interpreter lock without releasing it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import structlog

_log = structlog.get_logger()

EXIT_CODE = 70
"""`EX_SOFTWARE`: the daemon ended itself because it could not continue."""
_LOOKS_PER_STALL = 2
_SLICES = 12
"""A stall is counted in slices, so that it does not count time in which the whole process was stopped or frozen."""
_LAST_WORDS_S = 5.0


class LoopWatchdog:
    """End the process when the loop stalls for `stall_s`; 0 disables that. It runs until the process ends."""

    def __init__(self, stall_s: float, *, end: Callable[[str], None] | None = None) -> None:
        self._stall_s = stall_s
        self._end = end or _end_process
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadline: float | None = None
        self._deadline_s = 0.0
        self._news = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop watchdog", daemon=True)

    @property
    def is_ending(self) -> bool:
        return self._deadline is not None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start watching this loop."""
        self._loop = loop
        self._thread.start()

    def release(self) -> None:
        """Stop watching the loop: it has ended. A deadline for the process stays."""
        self._loop = None

    def end_within(self, seconds: float) -> None:
        """Allow the process this long to exit by itself."""
        self._deadline_s = seconds
        self._deadline = time.monotonic() + seconds
        self._news.set()

    def _run(self) -> None:
        while True:
            self._news.wait(self._sleep_s())
            self._news.clear()
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._end(f"the daemon did not exit within {self._deadline_s:g} s of its shutdown")
                return
            if self._stall_s and not self._turns():
                self._end(f"the event loop was blocked for {self._stall_s:g} s")
                return

    def _sleep_s(self) -> float | None:
        limits = [self._stall_s / _LOOKS_PER_STALL] if self._stall_s else []
        if self._deadline is not None:
            limits.append(max(self._deadline - time.monotonic(), 0))
        return min(limits, default=None)

    def _turns(self) -> bool:
        loop, turned = self._loop, threading.Event()
        if loop is None:
            return True
        try:
            loop.call_soon_threadsafe(turned.set)
        except RuntimeError:  # it was closed just now
            return True
        return any(turned.wait(self._stall_s / _SLICES) for _ in range(_SLICES))


def _end_process(reason: str) -> NoReturn:
    # The loop may be blocked by stderr itself: end the process even if this cannot be logged.
    words = threading.Timer(_LAST_WORDS_S, os._exit, (EXIT_CODE,))
    words.daemon = True
    words.start()
    _log.critical("cannot continue: ending the process", reason=reason)
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    os._exit(EXIT_CODE)
