"""WorkQueue: jobs of an event loop, run by dedicated threads in batches. It does not look inside a job.

Handing a job to anyio's thread pool costs more than most reads of a store; this costs a quarter of that. A thread takes
all waiting jobs at once, so that one commit can serve many writers. A job that has started always finishes, even if its
caller was cancelled.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import anyio
from anyio.lowlevel import current_token

R = TypeVar("R")


class Job(Generic[R]):
    """One call, and its outcome once `done` is set."""

    __slots__ = ("_claim", "_result", "done", "error", "work")

    def __init__(self, work: Callable[[Any], R]) -> None:
        self.work = work
        self.done = anyio.Event()
        self.error: BaseException | None = None
        self._result: R | None = None
        self._claim = threading.Lock()

    def claim(self) -> bool:
        """Return True for the first claim, made either by the thread that runs the job or by a cancelled caller."""
        return self._claim.acquire(blocking=False)

    def succeed(self, result: R) -> None:
        self._result, self.error = result, None

    def outcome(self) -> R:
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]  # R may be None itself


class WorkQueue:
    """Owns its threads. `perform` gets one to `most` jobs and sets the outcome of each."""

    def __init__(self, name: str, perform: Callable[[list[Job[Any]]], None], *, threads: int, most: int) -> None:
        self._name = name
        self._perform = perform
        self._count = threads
        self._threads: list[threading.Thread] = []
        self._most = most
        self._queue: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._call_soon: Callable[..., object]

    def start(self) -> None:
        """Start the threads for the running event loop."""
        self._call_soon = _calls_to(current_token().native_token)
        # Daemon threads: a store that was not closed must not keep its process alive.
        self._threads = [
            threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
            for number in range(self._count)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Finish the queued jobs and wait for them. Never call it on the event loop, which receives the outcomes."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    async def run(self, work: Callable[[Any], R]) -> R:
        job = Job(work)
        self._queue.put(job)
        try:
            await job.done.wait()
        except anyio.get_cancelled_exc_class():
            if not job.claim():  # it has started: wait, so that nothing runs after the call returns
                with anyio.CancelScope(shield=True):
                    await job.done.wait()
            raise
        return job.outcome()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            batch = [job]
            is_last = False
            while len(batch) < self._most and not is_last and not self._queue.empty():
                following = self._queue.get()
                is_last = following is None
                if following is not None:
                    batch.append(following)
            claimed = [waiting for waiting in batch if waiting.claim()]
            if not self._finish(claimed) or is_last:
                return

    def _finish(self, batch: list[Job[Any]]) -> bool:
        if not batch:
            return True
        try:
            self._perform(batch)
        except BaseException as error:  # noqa: BLE001  the waiting callers raise it, not this thread
            for job in batch:
                job.error = error
        try:
            self._call_soon(_set_done, batch)
        except RuntimeError:
            return False  # the event loop is closed, so no caller is waiting
        return True


def _calls_to(loop: Any) -> Callable[..., object]:
    """Return a function that schedules a call on the loop from a thread, without waiting for it.

    It uses the loop's own method, because anyio's `from_thread.run_sync` waits for the result: two more thread
    switches, a tenth of the time of a durable write.
    """
    if hasattr(loop, "call_soon_threadsafe"):
        return loop.call_soon_threadsafe  # type: ignore[no-any-return]  # asyncio
    return loop.run_sync_soon  # type: ignore[no-any-return]  # trio


def _set_done(batch: list[Job[Any]]) -> None:
    for job in batch:
        job.done.set()
