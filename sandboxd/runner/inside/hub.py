"""The event loop: descriptors, timers and exits of children. One thread, epoll, nothing that blocks.

It does not interpret calls. A fork bomb can take every process slot of the container, so nothing here ever needs a new
thread or process.
"""

from __future__ import annotations

import ctypes
import heapq
import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT


class Timer:
    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Hub:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._actions: dict[int, Callable[[], None]] = {}
        self._timers: list[Timer] = []
        self._cancelled = 0
        self._children: dict[int, Callable[[int], None]] = {}
        self._expected = 0
        self._unclaimed: dict[int, int] = {}
        self._deaths = _open_signalfd(signal.SIGCHLD)
        self.watch(self._deaths, READABLE, self._reap)

    def watch(self, fd: int, events: int, action: Callable[[], None]) -> None:
        self._actions[fd] = action
        self._epoll.register(fd, events)

    def rewatch(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor that stays open, or whose copy in a child would keep it in the epoll set."""
        if self._actions.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self, fd: int) -> None:
        """Forget a close-on-exec descriptor and close it, which takes it out of the epoll set without another call."""
        self._actions.pop(fd, None)
        os.close(fd)

    def after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + delay_s, action)
        heapq.heappush(self._timers, timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        if timer.action is None:
            return
        timer.action = None
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._timers):
            # most calls end long before their deadline, so cancelled timers would pile up for minutes
            self._timers = [kept for kept in self._timers if kept.action is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def on_exit(self, pid: int, action: Callable[[int], None]) -> None:
        """Call `action` with the wait status once this child is dead."""
        self._children[pid] = action

    def take_dead(self, pid: int) -> int | None:
        """Reap this child if it is dead already, and return its wait status."""
        found, status = os.waitpid(pid, os.WNOHANG)
        return status if found else None

    def expect_child(self) -> None:
        """Keep the wait status of unknown children until `claim_child`: another thread is starting a process."""
        self._expected += 1

    def claim_child(self, pid: int) -> int | None:
        """Return the wait status of another thread's child if it is dead; pass 0 if that thread started none."""
        status = self._unclaimed.pop(pid, None)
        self._expected -= 1
        if not self._expected:
            self._unclaimed.clear()
        return status

    def run(self) -> None:
        poll, actions = self._epoll.poll, self._actions
        while True:
            for fd, _events in poll(self._patience()):
                action = actions.get(fd)
                if action is not None:
                    action()
            if self._timers:
                self._run_timers()

    def _patience(self) -> float:
        timers = self._timers
        while timers and timers[0].action is None:
            heapq.heappop(timers)
            self._cancelled -= 1
        return max(0.0, timers[0].when - time.monotonic()) if timers else -1

    def _run_timers(self) -> None:
        now = time.monotonic()
        due = []
        while self._timers and self._timers[0].when <= now:
            due.append(heapq.heappop(self._timers))
        for timer in due:  # a timer that an action sets for "now" waits for the next round: descriptors come first
            action, timer.action = timer.action, None
            if action is None:
                self._cancelled -= 1
            else:
                action()

    def _reap(self) -> None:
        """Reap every dead child, including the agent's orphans that PID 1 adopted, so that none remains a zombie."""
        os.read(self._deaths, 4096)  # does not block: the loop has reported a signal
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            action = self._children.pop(pid, None)
            if action is not None:
                action(status)
            elif self._expected:
                self._unclaimed[pid] = status


def _open_signalfd(number: int) -> int:
    """Return a descriptor that is readable when the signal is pending.

    Not `signal.set_wakeup_fd`, which interrupts the poll, runs a Python handler and polls again on every exit.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (number,))
    libc = ctypes.CDLL(None, use_errno=True)
    mask = ctypes.create_string_buffer(128)
    libc.sigemptyset(mask)
    libc.sigaddset(mask, number)
    fd = int(libc.signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "cannot open a signalfd")
    return fd


def exit_code_of(status: int) -> int:
    """Return the exit code that a shell would report: 128 + n after signal n."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
