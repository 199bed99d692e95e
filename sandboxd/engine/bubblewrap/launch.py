"""The launch of one bubblewrap container: its descriptors, its plan, and the process that waits for the plan.

Owns what exists only during a launch. Its caller writes the record and the control group between `spawn` and
`send_plan`, while the new process waits.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio

from sandboxd.engine import seccomp
from sandboxd.engine.bubblewrap import entry, processes, rootfs
from sandboxd.engine.bubblewrap.processes import ProcessRef
from sandboxd.engine.bubblewrap.records import Records
from sandboxd.engine.protocol import ContainerSpec
from sandboxd.engine.spec import HARDENING, ulimits_of
from sandboxd.errors import EngineRefused

_STATUS_FD, _FILTER_FD, _READY_FD, _ARGUMENTS_FD = 4, 5, 6, 7
_FIRST_FREE_FD = 16
_MIB = 1024 * 1024
_LEAST_ADDRESS_SPACE = 256 * _MIB
_ERROR_BYTES = 2000


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything that is decided before a process exists."""

    plan_text: bytes
    bwrap_arguments: bytes
    bpf: bytes | None
    status_path: Path

    @classmethod
    def of(cls, spec: ContainerSpec, bwrap: str, records: Records, has_cgroup: bool) -> LaunchPlan:
        tree = rootfs.plan_rootfs(spec, ready_fd=_READY_FD)
        bpf = seccomp.bpf_program()
        arguments = [*rootfs.isolation_arguments(spec), *tree.arguments, "--json-status-fd", str(_STATUS_FD)]
        if bpf is not None:
            arguments += ["--seccomp", str(_FILTER_FD)]
        is_root = os.geteuid() == 0
        plan = {
            "uid": spec.uid if is_root else os.getuid(),
            "gid": spec.gid if is_root else os.getgid(),
            "stage": str(records.stage_path(spec.name)),
            "steps": tree.steps,
            "rlimits": rlimits_of(spec, has_cgroup=has_cgroup),
            "counts_processes": not has_cgroup,
            "oom_score_adj": HARDENING.oom_score_adj,
            # The arguments include the environment, and every user of the host can read a command line.
            "argv": [bwrap, "--args", str(_ARGUMENTS_FD), "--", *spec.command],
        }
        if any("\0" in argument for argument in (*arguments, *spec.command)):
            raise EngineRefused("cannot launch: the command, the environment or a path contains a NUL")
        return cls(
            plan_text=json.dumps(plan).encode() + b"\n",
            bwrap_arguments="".join(f"{argument}\0" for argument in arguments).encode(),
            bpf=bpf,
            status_path=records.status_path(spec.name),
        )

    def spawn(self) -> PendingLaunch:
        """Start the process, detached and without the daemon's environment. It waits for its plan."""
        plan_here, plan_there = socket.socketpair()
        ready_here, ready_there = socket.socketpair()
        error_read, error_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Open for reading and writing, so that a container that writes to it is never killed by SIGPIPE and can fill no
        # more than the pipe's buffer.
        error_both = os.open(f"/proc/self/fd/{error_read}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        status = os.open(self.status_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        files = [_memory_file("arguments", self.bwrap_arguments), _memory_file("filter", self.bpf or b"")]
        wanted = {0: null, 1: null, 2: error_both, entry.PLAN_FD: plan_there.fileno(), _STATUS_FD: status}
        wanted |= {_READY_FD: ready_there.fileno(), _ARGUMENTS_FD: files[0]}
        if self.bpf is not None:
            wanted[_FILTER_FD] = files[1]
        # Moved to higher numbers first, so that no source is overwritten before it is copied.
        moved = {there: fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD) for there, here in wanted.items()}
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", entry.__file__],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, here, there) for there, here in moved.items()],
                setsid=True,
                setsigmask=[],
            )
        except BaseException:
            plan_here.close()
            ready_here.close()
            os.close(error_read)
            raise
        finally:
            for fd in (*moved.values(), *files, error_write, error_both, null, status):
                os.close(fd)
            plan_there.close()
            ready_there.close()
        stat = processes.read_stat(pid)
        if stat is None:
            raise EngineRefused("cannot launch: the new process is not visible in /proc")
        return PendingLaunch(stat.ref, self.plan_text, plan_here, ready_here, error_read)


class PendingLaunch:
    """Owns the daemon's ends of a launch in progress."""

    def __init__(
        self, monitor: ProcessRef, plan_text: bytes, plan: socket.socket, ready: socket.socket, error_fd: int
    ) -> None:
        self.monitor = monitor
        self._plan_text = plan_text
        self._plan = plan
        self._ready = ready
        self._error_fd = error_fd

    def send_plan(self) -> None:
        self._plan.sendall(self._plan_text)
        self._plan.close()
        self._ready.shutdown(socket.SHUT_WR)

    async def wait_ready(self) -> None:
        """Wait until bwrap has read and closed its last input, or is dead. The caller sets the deadline."""
        await anyio.wait_readable(self._ready)

    def read_error(self) -> str:
        """Return what was written to stderr so far, on one line."""
        try:
            said = os.read(self._error_fd, _ERROR_BYTES)
        except BlockingIOError:
            return ""
        return " ".join(said.decode(errors="replace").split())

    def close(self) -> None:
        self._plan.close()
        self._ready.close()
        os.close(self._error_fd)


def rlimits_of(spec: ContainerSpec, *, has_cgroup: bool) -> list[tuple[int, int]]:
    """Return the limits of each process; without a control group, also the closest substitute for container limits.

    Memory is then limited per process only. Processes are counted per user and user namespace, and the container has
    its own namespace.
    """
    limits = [(getattr(resource, f"RLIMIT_{ulimit.name.upper()}"), ulimit.hard) for ulimit in ulimits_of(spec)]
    if not has_cgroup:
        # Threads reserve far more address space than they use: with less than this, an interpreter cannot start.
        address_space = max(spec.limits.memory_mb * _MIB, _LEAST_ADDRESS_SPACE)
        limits += [(resource.RLIMIT_AS, address_space), (resource.RLIMIT_NPROC, spec.limits.pids)]
    return limits


def _memory_file(name: str, content: bytes) -> int:
    fd = os.memfd_create(name)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
