"""Two threads for file work that may block. They start before any agent, because a fork bomb leaves no room for more.

A job is short (one chunk, one edit, one bounded walk), so two threads serve many calls. Results come back to the
loop; jobs never touch calls or the connection.
"""

from __future__ import annotations

import os
import queue
import threading

from .failure import Failure
from .hub import READABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .hub import Hub

    Submit = Callable[[Callable[[], Any], Callable[[Any], None], Callable[[Failure], None]], None]

THREADS = 2


class Workers:
    def __init__(self, hub: Hub) -> None:
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        hub.watch(self._wake_read, READABLE, self._deliver)
        for _ in range(THREADS):
            threading.Thread(target=self._work, args=(self._jobs,), daemon=True).start()

    def submit(self, job: Callable[[], Any], then: Callable[[Any], None], refused: Callable[[Failure], None]) -> None:
        """Run `job` in a thread; then, in the loop, call `then` with its result or `refused` with its failure."""
        self._jobs.put((job, then, refused))

    def add_lane(self) -> Submit:
        """Start a thread for its own jobs, and return the function that submits them, called like `submit`."""
        jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(jobs,), daemon=True).start()
        return lambda job, then, refused: jobs.put((job, then, refused))

    def _work(self, jobs: queue.SimpleQueue[Any]) -> None:
        while True:
            job, then, refused = jobs.get()
            try:
                result = job()
            except Failure as failure:
                self._done.put((refused, failure))
            except Exception as error:  # noqa: BLE001 - a thread that dies of one job would starve all later ones
                message = f"cannot do this file operation: {type(error).__name__}: {error}"
                self._done.put((refused, Failure("SandboxError", message)))
            else:
                self._done.put((then, result))
            try:
                os.write(self._wake_write, b"!")
            except BlockingIOError:
                continue  # the pipe is already full of wake-ups

    def _deliver(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return
        while True:
            try:
                action, value = self._done.get_nowait()
            except queue.Empty:
                return
            action(value)
