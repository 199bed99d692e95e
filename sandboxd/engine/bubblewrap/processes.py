"""Processes that need not be the daemon's children: identity, death and signals, safe against pid reuse.

A process is identified by its pid and the tick at which it started. Waiting uses a pidfd, never polling. Nothing here
starts a process.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import anyio

_DEAD_STATES = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """The identity of one process: a pid may be reused, but not together with its start time."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class ProcessStat:
    ref: ProcessRef
    program: str
    state: str
    cpu_ticks: int

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped by a signal, not by a debugger."""
        return self.state == "T"

    @property
    def is_alive(self) -> bool:
        return self.state not in _DEAD_STATES


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def parse_stat(text: str) -> ProcessStat:
    """Parse /proc/PID/stat. The program's name may contain spaces and parentheses, so the last parenthesis ends it."""
    head, _, tail = text.rpartition(")")
    pid, _, program = head.partition(" (")
    fields = tail.split()
    return ProcessStat(
        ref=ProcessRef(int(pid), int(fields[19])),
        program=program,
        state=fields[0],
        cpu_ticks=int(fields[11]) + int(fields[12]),
    )


def read_stat(pid: int) -> ProcessStat | None:
    """Return what the kernel reports about a pid now, or None if there is no such process."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(ref: ProcessRef) -> bool:
    stat = read_stat(ref.pid)
    return stat is not None and stat.ref == ref and stat.is_alive


def open_pidfd(ref: ProcessRef) -> int | None:
    """Return a descriptor that is readable once this process is dead, or None if it is already dead."""
    try:
        fd = os.pidfd_open(ref.pid)
    except ProcessLookupError:
        return None
    # Checked after the pidfd is open, so that the descriptor and the check refer to the same process.
    if is_alive(ref):
        return fd
    os.close(fd)
    return None


async def wait_gone(ref: ProcessRef, timeout_s: float) -> bool:
    """Wait until the process is dead. Return False if it is still alive at the deadline."""
    fd = open_pidfd(ref)
    if fd is None:
        return True
    try:
        with anyio.move_on_after(timeout_s) as scope:
            await anyio.wait_readable(fd)
        return not scope.cancelled_caught
    finally:
        os.close(fd)


async def wait_exit(ref: ProcessRef, patience_s: float) -> bool:
    """Wait for a process that is about to end. Return False once it has been stuck for `patience_s`.

    A process that is runnable, or that has used CPU time since the last check, is only slow, not stuck.
    """
    used_ticks = -1
    while not await wait_gone(ref, patience_s):
        stat = read_stat(ref.pid)
        if stat is None or stat.ref != ref or not stat.is_alive:
            return True
        if stat.state != "R" and stat.cpu_ticks == used_ticks:
            return False
        used_ticks = stat.cpu_ticks
    return True


def kill(ref: ProcessRef) -> None:
    """Send SIGKILL to exactly this process, unless it is already dead."""
    fd = open_pidfd(ref)
    if fd is None:
        return
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)


def signal_group(leader: ProcessRef, number: signal.Signals) -> None:
    """Signal every process in the group that this process leads, all at once. A dead leader has no group."""
    if is_alive(leader):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, number)


def reap(ref: ProcessRef) -> None:
    """Reap a dead child. The host's init reaps a process that another daemon started."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(ref.pid, os.WNOHANG)


def descendants(pid: int) -> list[int]:
    """Return this pid and all its descendants, as the kernel lists them now."""
    found, open_ends = [pid], [pid]
    while open_ends:
        parent = open_ends.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")
            texts = [Path(f"/proc/{parent}/task/{thread}/children").read_text() for thread in threads]
        except (FileNotFoundError, ProcessLookupError):
            continue
        children = [int(child) for text in texts for child in text.split()]
        found += children
        open_ends += children
    return found


def set_stopped(top: ProcessRef, is_stopped: bool) -> bool:
    """Stop or continue a process and all its descendants; return whether all of them were found so.

    Without a control group that the kernel can freeze, this is the next best: a parent sees that its child stopped.
    """
    if not is_alive(top):
        return True
    number = signal.SIGSTOP if is_stopped else signal.SIGCONT
    stats = [stat for stat in map(read_stat, descendants(top.pid)) if stat is not None and stat.is_alive]
    others = [stat for stat in stats if stat.is_stopped != is_stopped]
    for stat in others:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stat.ref.pid, number)
    return not others


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0
