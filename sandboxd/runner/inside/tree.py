"""Signals, kills and holds processes. A call's own are found by mark, even those that hide, and killed in passes.

Every process of a call carries the call's mark and cannot change it (`marks`), so neither a double fork nor a new
session nor a forged environment hides one. It works in small steps, so that the loop answers other calls in between,
and it never kills a process with another mark.
"""

from __future__ import annotations

import os
import signal
import time

from .marks import mark_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from .hub import Hub

SCAN_AT_ONCE = 128
MANY = 24
"""With this many processes it may be a fork bomb, so even the first pass stops them before it kills."""
CROWD = 64
"""With this many processes in the sandbox, reading them one by one takes too long while they run."""
INCONCLUSIVE = 3
"""After this many passes in which processes ended before they could be read, all are stopped for a moment."""
KILL_ALL_AFTER = 8
GIVE_UP_AFTER = 32
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1
_SETTLE_S = 2.0


class Proc:
    __slots__ = ("began", "group", "is_alive", "is_stopped", "mark", "parent")

    def __init__(
        self, is_alive: bool, is_stopped: bool, began: int, mark: int, group: int = 0, parent: int = 0
    ) -> None:
        self.is_alive = is_alive
        self.is_stopped = is_stopped
        self.began = began
        self.mark = mark
        self.group = group
        self.parent = parent


def read_proc(pid: int) -> Proc | None:
    """Return the state of a process, or None if it is gone."""
    text = _read(f"/proc/{pid}/stat", 1024)
    mark = mark_of(pid)
    if not text or mark is None:
        return None
    # the name in parentheses may contain anything, even spaces and parentheses: count from its end
    fields = text[text.rindex(b")") + 2 :].split()
    state, threads = fields[0], int(fields[17])
    # a process whose first thread has ended looks like a zombie while its other threads run
    is_alive = state not in (b"Z", b"X") or threads > 1
    return Proc(is_alive, state == b"T", int(fields[19]), mark, int(fields[2]), int(fields[1]))


def count_others(own: int) -> int:
    """Return how many other processes are alive, whatever started them."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != own]
    return sum(proc is not None and proc.is_alive for proc in map(read_proc, pids))


def _read(path: str, size: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, size)
    except OSError:
        return b""
    finally:
        os.close(fd)


def signal_tree(
    runner: int, mark: int, number: int, is_meant: Callable[[int, Proc], bool]
) -> Generator[float, None, int]:
    """Signal the processes with this mark that `is_meant` selects; return how many. Yields like `kill_tree`."""
    procs, _ = yield from _scan()
    meant = [pid for pid, proc in _marked(procs, runner, mark) if is_meant(pid, proc)]
    for pid in meant:
        _signal(pid, number)
    return len(meant)


def end_tree(runner: int, leader: int, mark: int, number: int, grace_s: float) -> Generator[float, None, bool]:
    """Signal every process with this mark, and kill those left after the grace period; return whether there were any.

    Yields like `kill_tree`.
    """
    deadline = time.monotonic() + grace_s
    yield from signal_tree(runner, mark, number, lambda _pid, _proc: True)
    pause_s = _FIRST_PAUSE_S
    while True:
        procs, is_complete = yield from _scan()
        is_left = not is_complete or any(_marked(procs, runner, mark))
        patience_s = deadline - time.monotonic()
        if not is_left or patience_s <= 0:
            break
        yield min(pause_s, patience_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
    yield from kill_tree(runner, leader, mark)  # even when nothing seems left: only this pass cannot be deceived
    return is_left


def _marked(procs: dict[int, Proc], runner: int, mark: int) -> Iterator[tuple[int, Proc]]:
    return ((pid, proc) for pid, proc in procs.items() if proc.mark == mark and proc.is_alive and pid != runner)


def kill_tree(runner: int, leader: int, mark: int) -> Generator[float, None, None]:
    """Kill every process with this mark. Yields how long to wait before continuing; ends when a whole pass found none.

    `leader` is the process that the call started; its pid may belong to another process by now.
    """
    if mark_of(leader) == mark:
        _signal_group(leader, signal.SIGKILL)  # atomic in the kernel: a fork bomb in one group ends right here
    dying: set[tuple[int, int]] = set()
    """Processes killed so far. On a busy machine they may exit slowly, which is not a sign of a fork bomb."""
    exited: set[tuple[int, int]] = set()
    """Processes that ended by themselves. A new one may have forked just before, unseen."""
    outrun = missed = 0
    stopped_before: set[int] = set()
    is_frozen = runner == 1 and sum(name.isdigit() for name in os.listdir("/proc")) >= CROWD
    if is_frozen:
        _freeze(runner, [])
    for number in range(GIVE_UP_AFTER):
        procs, is_complete = yield from _scan()
        victims = [pid for pid, _ in _marked(procs, runner, mark)]
        fresh = [pid for pid in victims if (pid, procs[pid].began) not in dying]
        dead = {(pid, proc.began) for pid, proc in procs.items() if proc.mark == mark and not proc.is_alive}
        is_conclusive = is_complete and dead <= dying | exited
        exited |= dead
        missed += not is_conclusive
        is_last = number == GIVE_UP_AFTER - 1  # the last pass must not stop processes: they would stay stopped
        is_bomb = fresh and (dying or len(fresh) >= MANY)
        is_hopping = not victims and not is_conclusive and missed >= INCONCLUSIVE
        if (is_bomb or is_hopping) and not is_frozen and not is_last:
            # a killed process leaves room for a fork, a stopped one does not. Stopping also returns the processor,
            # which a bomb spreads among its children, to the runner. Then scan while nothing moves
            stopped_before = {pid for pid, proc in procs.items() if proc.is_stopped}
            _freeze(runner, fresh)
            is_frozen = True
            missed = 0
            continue
        if fresh and outrun >= KILL_ALL_AFTER and runner == 1:
            # it forks faster than the runner kills: rather lose the sandbox's other processes than leave it alive
            os.kill(-1, signal.SIGKILL)
        outrun += bool(fresh)
        for pid in fresh:
            _signal(pid, signal.SIGKILL)
            dying.add((pid, procs[pid].began))
        if is_frozen:
            for pid in () if _held.count else procs.keys() - set(victims) - stopped_before - {runner}:
                _signal(pid, signal.SIGCONT)
            is_frozen = False
        if not victims and is_conclusive:
            return
        yield 0.001 * (number + 1)


def _scan() -> Generator[float, None, tuple[dict[int, Proc], bool]]:
    """Read the process table, with pauses for the loop, and return whether every process that was listed was read.

    A process that forks and exits all the time may never be seen alive. But the table is listed in the order of pids,
    so one of its generations is in the list, unless the pids started again from the lowest meanwhile. When it is read,
    it is gone, or dead and not reaped yet.
    """
    procs: dict[int, Proc] = {}
    before = _newest_pid()
    names = os.listdir("/proc")
    is_complete = before <= _newest_pid()
    for position, name in enumerate(names):
        if name.isdigit():
            proc = read_proc(int(name))
            if proc is not None:
                procs[int(name)] = proc
            else:
                is_complete = False
        if position % SCAN_AT_ONCE == SCAN_AT_ONCE - 1:
            yield 0.0
    return procs, is_complete


class _Held:
    """The state that all holds share."""

    def __init__(self) -> None:
        self.count = 0
        self.stopped_before: set[tuple[int, int]] | None = None
        """Processes that were stopped before the first hold; None while that is not known."""


_held = _Held()


class Hold:
    """Keeps every other process of the container stopped, so that none changes a file, until it is released.

    A process that was stopped already stays stopped. One that is started meanwhile is stopped at once. It never stops
    the runner, which serves files during a hold.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._runner = os.getpid()

    def begin(self, then: Callable[[], None]) -> None:
        """Stop the processes, and call `then` when they have stopped."""
        _held.count += 1
        run_killing(self._hub, self._stop(), then)

    def release(self) -> None:
        """Continue what was stopped. Called once, after `begin` is over."""
        _held.count -= 1
        if not _held.count:
            run_killing(self._hub, self._continue(), lambda: None)

    def _stop(self) -> Generator[float, None, None]:
        deadline = time.monotonic() + _SETTLE_S
        pause_s = _FIRST_PAUSE_S / 10
        while time.monotonic() < deadline:  # a process in the middle of a system call may take a moment
            procs, _ = yield from _scan()
            if _held.stopped_before is None:
                _held.stopped_before = {(pid, proc.began) for pid, proc in procs.items() if proc.is_stopped}
            moving = [pid for pid, proc in self._others(procs) if not proc.is_stopped]
            if not moving:
                return
            _freeze(self._runner, moving)
            yield pause_s
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _continue(self) -> Generator[float, None, None]:
        procs, _ = yield from _scan()
        if _held.count:
            return  # held again in the meantime
        before, _held.stopped_before = _held.stopped_before or set(), None
        stopped = [pid for pid, proc in self._others(procs) if (pid, proc.began) not in before]
        # children first: a shell that runs while its child is stopped would report a stopped job
        for pid in sorted(stopped, reverse=True):
            _signal(pid, signal.SIGCONT)

    def _others(self, procs: dict[int, Proc]) -> Iterator[tuple[int, Proc]]:
        """Yield the live processes of the container. A runner that is not PID 1 has only its descendants."""
        for pid, proc in procs.items():
            above = pid
            while self._runner != 1 and above in procs and above != self._runner:
                above = procs[above].parent
            if proc.is_alive and pid != self._runner and (self._runner == 1 or above == self._runner):
                yield pid, proc


def stop_if_held(pid: int) -> None:
    """Stop a process that has just been started during a hold."""
    if _held.count:
        _signal(pid, signal.SIGSTOP)


def _newest_pid() -> int:
    """Return the pid that was given out last; 0 if this kernel does not say."""
    fields = _read("/proc/loadavg", 128).split()
    return int(fields[4]) if len(fields) == 5 and fields[4].isdigit() else 0


def _freeze(runner: int, victims: list[int]) -> None:
    if runner == 1:
        os.kill(-1, signal.SIGSTOP)  # all at once, so that none forks while others are being stopped
        return
    for pid in victims:
        _signal(pid, signal.SIGSTOP)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def run_killing(hub: Hub, steps: Iterator[float], done: Callable[[], None]) -> None:
    """Run the steps of `kill_tree` or a similar generator on the loop, then call `done`."""
    for delay in steps:
        hub.after(delay, lambda: run_killing(hub, steps, done))
        return
    done()
