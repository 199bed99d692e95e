"""Killing everything a call has started, also what hides from it. Finds by /proc, kills by SIGKILL, in passes.

`choose_victims` is a pure decision over a snapshot of the process table; `kill_tree` carries it out piece by
piece, so that the loop answers other calls meanwhile. It never kills what belongs to another live call.
"""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from .hub import Hub

TICKS = os.sysconf("SC_CLK_TCK")
SCAN_AT_ONCE = 128
MANY = 24
"""So many that it may be a fork bomb: then even the first pass stops before it kills."""
CROWD = 64
"""So many processes in the sandbox that even looking at them one by one takes too long while they run."""
KILL_ALL_AFTER = 4
GIVE_UP_AFTER = 32
ENVIRON_BYTES = 262_144


class Root:
    """The process a call started, and what its descendants can be told by."""

    __slots__ = ("began", "cookie", "pid")

    def __init__(self, pid: int, cookie: str, began: int) -> None:
        self.pid = pid
        self.cookie = cookie
        self.began = began


class Proc:
    __slots__ = ("began", "group", "parent", "session", "state")

    def __init__(self, state: str, parent: int, group: int, session: int, began: int) -> None:
        self.state = state
        self.parent = parent
        self.group = group
        self.session = session
        self.began = began


def now_in_ticks() -> int:
    """Return the time in the unit in which /proc tells when a process began."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS)


def read_proc(pid: int) -> Proc | None:
    text = _read(f"/proc/{pid}/stat", 1024)
    if not text:
        return None
    # the name in parentheses may hold anything, spaces and parentheses too: count from its end
    fields = text[text.rindex(b")") + 2 :].split()
    return Proc(fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def read_cookie(pid: int, name: str) -> str:
    prefix = name.encode() + b"="
    for entry in _read(f"/proc/{pid}/environ", ENVIRON_BYTES).split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode("ascii", "replace")
    return ""


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


def choose_victims(
    procs: Mapping[int, Proc],
    runner: int,
    target: Root,
    others: Mapping[int, Root],
    cookie_of: Callable[[int], str],
) -> list[int]:
    """Return the living processes that belong to `target`.

    A process belongs to the nearest of its ancestors that a call started, else to the call whose session or
    process group it is in, else to the call whose cookie it carries. What nobody owns has cut every tie on
    purpose: it is the target's if it began after the target did.
    """
    roots = {**others, target.pid: target}
    cookies = {root.cookie: root for root in roots.values()}
    verdicts: dict[int, bool] = {runner: False}

    def is_ours(pid: int) -> bool:
        chain = []
        verdict = False
        while pid in procs:
            if pid in verdicts:
                verdict = verdicts[pid]
                break
            verdicts[pid] = False  # a snapshot is not atomic: parents may seem to go in a circle
            chain.append(pid)
            proc = procs[pid]
            owner = roots.get(pid) or roots.get(proc.session) or roots.get(proc.group) or cookies.get(cookie_of(pid))
            if owner is not None:
                verdict = owner is target
                break
            if proc.parent == runner or (proc.parent not in procs and proc.parent != 0):
                verdict = proc.began >= target.began
                break
            pid = proc.parent  # parent 0: put into the container by its engine, so it is nobody's
        for member in chain:
            verdicts[member] = verdict
        return verdict

    return [pid for pid, proc in procs.items() if pid != runner and proc.state not in "ZX" and is_ours(pid)]


def kill_tree(
    runner: int, target: Root, others: Callable[[], Mapping[int, Root]], cookie_name: str
) -> Generator[float, None, None]:
    """Kill the target's tree. Yields how long to wait before going on; ends when a whole pass found nothing."""
    _signal_group(target.pid, signal.SIGKILL)  # atomic in the kernel: a fork bomb in one group ends right here
    dying: set[tuple[int, int]] = set()
    """Who was killed already. On a busy machine one may take long to go, and that is no sign of a bomb."""
    outrun = 0
    stopped_before: set[int] = set()
    is_frozen = runner == 1 and sum(name.isdigit() for name in os.listdir("/proc")) >= CROWD
    if is_frozen:
        _freeze(runner, [])
    for number in range(GIVE_UP_AFTER):
        procs = yield from _scan()
        victims = choose_victims(procs, runner, target, others(), lambda pid: read_cookie(pid, cookie_name))
        fresh = [pid for pid in victims if (pid, procs[pid].began) not in dying]
        is_last = number == GIVE_UP_AFTER - 1  # what is frozen then would stay so
        if fresh and not is_frozen and not is_last and (dying or len(fresh) >= MANY):
            # a killed process leaves room for a fork, a stopped one does not. Stopping also gives us the processor
            # back, which a bomb shares out among its children. Look again while nothing moves
            stopped_before = {pid for pid, proc in procs.items() if proc.state == "T"}
            _freeze(runner, fresh)
            is_frozen = True
            continue
        if fresh and outrun >= KILL_ALL_AFTER and runner == 1:
            # it outruns us: better that the sandbox loses its other processes than that this one lives on
            os.kill(-1, signal.SIGKILL)
        outrun += bool(fresh)
        for pid in fresh:
            _signal(pid, signal.SIGKILL)
            dying.add((pid, procs[pid].began))
        if is_frozen:
            for pid in procs.keys() - set(victims) - stopped_before - {runner}:
                _signal(pid, signal.SIGCONT)
            is_frozen = False
        if not victims:
            return
        yield 0.001 * (number + 1)


def _scan() -> Generator[float, None, dict[int, Proc]]:
    """Read the process table, with pauses for the loop."""
    procs: dict[int, Proc] = {}
    for position, name in enumerate(os.listdir("/proc")):
        if name.isdigit():
            proc = read_proc(int(name))
            if proc is not None:
                procs[int(name)] = proc
        if position % SCAN_AT_ONCE == SCAN_AT_ONCE - 1:
            yield 0.0
    return procs


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
    """Carry out the steps of `kill_tree` on the loop, then call `done`."""
    for delay in steps:
        hub.after(delay, lambda: run_killing(hub, steps, done))
        return
    done()
