"""The watchdog ends a stalled process and leaves a working one alone."""

from __future__ import annotations

import asyncio
import queue
import threading
import time

from sandboxd.daemon.loop_watchdog import LoopWatchdog

_PATIENCE_S = 30.0


def test_a_shutdown_that_takes_too_long_ends_the_process() -> None:
    reasons: queue.Queue[str] = queue.Queue()
    watchdog = LoopWatchdog(0, end=reasons.put)
    assert not watchdog.is_ending

    async def work() -> None:
        watchdog.watch(asyncio.get_running_loop())

    asyncio.run(work())
    watchdog.release()
    watchdog.end_within(0.1)
    assert watchdog.is_ending
    assert "did not exit within 0.1 s" in reasons.get(timeout=_PATIENCE_S)


def test_a_running_loop_is_left_alone_and_a_blocked_one_is_not() -> None:
    reasons: queue.Queue[str] = queue.Queue()
    looks = threading.Semaphore(0)

    class Counting(LoopWatchdog):
        def _turns(self) -> bool:
            turns = super()._turns()
            looks.release()
            return turns

    watchdog = Counting(0.4, end=reasons.put)

    async def work() -> None:
        watchdog.watch(asyncio.get_running_loop())
        while not looks.acquire(blocking=False):
            await asyncio.sleep(0.01)
        assert reasons.empty()
        deadline = time.monotonic() + _PATIENCE_S
        while reasons.empty() and time.monotonic() < deadline:
            time.sleep(0.01)  # the loop is blocked

    asyncio.run(work())
    assert "was blocked for 0.4 s" in reasons.get_nowait()
    watchdog.release()
