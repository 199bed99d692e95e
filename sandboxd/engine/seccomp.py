"""The seccomp policy of containers: one allow-list of system calls, rendered for every engine.

`RULES` is the whole policy; a call that is not in it gets EPERM. It is rendered as an engine's JSON profile and as a
BPF program. 32-bit and x32 calls are never allowed: they kill the thread that made them.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from sandboxd.runner.inside.time_slices import OWN_TASKS

ARCHITECTURES = ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")


@dataclass(frozen=True, slots=True)
class ArgumentCondition:
    """Argument `index`, masked with `mask`, must equal `value`. Without a mask all 64 bits count."""

    index: int
    value: int
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """These calls are allowed if every condition holds, or fail with `error`."""

    calls: tuple[str, ...]
    conditions: tuple[ArgumentCondition, ...] = ()
    error: int | None = None


def _calls(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _at_least(index: int, power: int, bits: int = 32) -> Iterator[tuple[ArgumentCondition, ...]]:
    """Return conditions for arguments whose low 32 bits are at least 2 ** `power`; negative values are never valid."""
    for bit in range(power, bits):
        yield (ArgumentCondition(index, 1 << bit, 1 << bit),)


def _all_but(index: int, value: int, bits: int = 32) -> Iterator[tuple[ArgumentCondition, ...]]:
    """Return conditions for every argument that differs from `value` in at least one bit.

    An allow-list cannot express "not equal" safely: the kernel truncates this argument to 32 bits, so a bit set above
    them would pass a 64-bit comparison.
    """
    for bit in range(bits):
        yield (ArgumentCondition(index, ~value & (1 << bit), 1 << bit),)


FILES = _calls("""
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
    fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr
    flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr
    getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch lchown lgetxattr link linkat
    listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat newfstatat open openat
    openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv
    removexattr removexattrat rename renameat renameat2 rmdir sendfile setxattr setxattrat splice stat statfs
    statx symlink symlinkat sync sync_file_range syncfs tee truncate umask unlink unlinkat utime utimensat
    utimes vmsplice write writev cachestat
    """)
MEMORY = _calls("""
    brk madvise map_shadow_stack membarrier memfd_create mincore mlock mlock2 mlockall mmap mprotect mremap
    mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect remap_file_pages
    """)
PROCESSES = _calls("""
    arch_prctl capget capset execve execveat exit exit_group fork get_robust_list getcpu getegid geteuid getgid
    getgroups getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid gettid
    getuid ioprio_get pidfd_open pidfd_send_signal prctl ptrace rseq sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
    sched_rr_get_interval sched_yield seccomp set_robust_list set_tid_address setfsgid
    setfsuid setgid setgroups setpgid setregid setresgid setresuid setreuid setrlimit setsid setuid vfork
    wait4 waitid
    """)
SIGNALS = _calls("""
    kill pause restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
    rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sigaltstack signalfd signalfd4 tgkill tkill
    """)
TIME = _calls("""
    alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time
    timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
    timerfd_settime times
    """)
WAITING = _calls("""
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old
    eventfd eventfd2 futex futex_requeue futex_wait futex_waitv futex_wake io_cancel io_destroy io_getevents
    io_pgetevents io_setup io_submit pipe pipe2 poll ppoll pselect6 select
    """)
MESSAGES = _calls("""
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl
    semget semop semtimedop shmat shmctl shmdt shmget
    """)
SOCKETS = _calls("""
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg
    sendmsg sendto setsockopt shutdown
    """)
HOST = _calls("getrandom landlock_add_rule landlock_create_ruleset landlock_restrict_self sysinfo uname")

NAMESPACE_FLAGS = 0x7E02_0000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET together."""

_TIOCSTI = 0x5412
_ADDR_NO_RANDOMIZE = 0x0004_0000
_ASK_PERSONALITY = 0xFFFF_FFFF
_PROTOCOL_MPTCP = 262
_NETLINK_ROUTE = 0
_SELF = ArgumentCondition(0, 0)
_RUNNER_TASKS_POWER = OWN_TASKS.bit_length() - 1


def _socket_rules() -> Iterator[Rule]:
    """Local, TCP, UDP and ping sockets, and the one netlink that lists interfaces."""
    call = ("socket",)
    yield Rule(call, (ArgumentCondition(0, socket.AF_UNIX),))
    streams = product((socket.SOCK_STREAM,), (0, socket.IPPROTO_TCP, _PROTOCOL_MPTCP))
    datagrams = product((socket.SOCK_DGRAM,), (0, socket.IPPROTO_UDP, socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6))
    kinds = (*streams, *datagrams)
    for family, (kind, protocol) in product((socket.AF_INET, socket.AF_INET6), kinds):
        yield Rule(
            call, (ArgumentCondition(0, family), ArgumentCondition(1, kind, 0xF), ArgumentCondition(2, protocol))
        )
    yield Rule(call, (ArgumentCondition(0, socket.AF_NETLINK), ArgumentCondition(2, _NETLINK_ROUTE)))
    yield Rule(("socketpair",), (ArgumentCondition(0, socket.AF_UNIX),))


def _file_node_rules() -> Iterator[Rule]:
    """FIFOs, sockets and regular files; never a device, whatever the capabilities."""
    for kind in (0, stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK):
        yield Rule(("mknod",), (ArgumentCondition(1, kind, stat.S_IFMT(0xFFFF)),))
        yield Rule(("mknodat",), (ArgumentCondition(2, kind, stat.S_IFMT(0xFFFF)),))


RULES: tuple[Rule, ...] = (
    *(Rule(group) for group in (FILES, MEMORY, PROCESSES, SIGNALS, TIME, WAITING, MESSAGES, SOCKETS, HOST)),
    Rule(("clone",), (ArgumentCondition(0, 0, NAMESPACE_FLAGS),)),
    # The flags of clone3 are in memory, which a filter cannot read; ENOSYS makes libc use clone instead.
    Rule(("clone3",), error=errno.ENOSYS),
    # Limits and priorities of the caller only, never of PID 1 and its threads.
    Rule(("prlimit64", "sched_setattr", "sched_setparam"), (_SELF,)),
    Rule(("prlimit64",), (ArgumentCondition(2, 0),)),  # without a new limit it only reads
    # Programs pin their threads by id, and pthread_setschedparam names a thread by its id: libzmq, which Jupyter uses,
    # calls it for each thread and aborts if it fails. Ids below 16 are the runner's: it starts first and uses them
    # up, and the kernel never reuses an id below 300.
    *(
        Rule(("sched_setaffinity", "sched_setscheduler"), conditions)
        for conditions in ((_SELF,), *_at_least(0, _RUNNER_TASKS_POWER))
    ),
    Rule(("setpriority",), (ArgumentCondition(0, 0), ArgumentCondition(1, 0))),
    Rule(("ioprio_set",), (ArgumentCondition(0, 1), ArgumentCondition(1, 0))),
    *(Rule(("personality",), (ArgumentCondition(0, value),)) for value in (0, _ADDR_NO_RANDOMIZE, _ASK_PERSONALITY)),
    # Everything except injecting characters into a terminal's input, where another process on the terminal would read
    # them.
    *(Rule(("ioctl",), conditions) for conditions in _all_but(1, _TIOCSTI)),
    *_file_node_rules(),
    *_socket_rules(),
)

_SHARED_NUMBERS = range(424, 548)
"""From this number on, a call has the same number on every architecture."""


def allowed_calls() -> frozenset[str]:
    """Return every call that can succeed, with or without a condition."""
    return frozenset(call for rule in RULES if rule.error is None for call in rule.calls)


def render_profile() -> dict[str, Any]:
    """Return the policy as the JSON profile that Docker and Podman read."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [{"architecture": name, "subArchitectures": []} for name in ARCHITECTURES],
        "syscalls": [_render_rule(rule) for rule in RULES],
    }


def _render_rule(rule: Rule) -> dict[str, Any]:
    rendered: dict[str, Any] = {"names": list(rule.calls), "action": "SCMP_ACT_ALLOW"}
    if rule.error is not None:
        rendered |= {"action": "SCMP_ACT_ERRNO", "errnoRet": rule.error}
    if rule.conditions:
        rendered["args"] = [_render_condition(condition) for condition in rule.conditions]
    return rendered


def _render_condition(condition: ArgumentCondition) -> dict[str, Any]:
    if condition.mask is None:
        return {"index": condition.index, "value": condition.value, "op": "SCMP_CMP_EQ"}
    return {
        "index": condition.index,
        "value": condition.mask,
        "valueTwo": condition.value,
        "op": "SCMP_CMP_MASKED_EQ",
    }


@cache
def profile_text() -> str:
    """Return the JSON profile as one line of text."""
    return json.dumps(render_profile(), separators=(",", ":"))


@cache
def bpf_program() -> bytes | None:
    """Return the policy as a BPF program for this machine, or None if libseccomp is not installed."""
    try:
        pyseccomp = importlib.import_module("pyseccomp")
    except (ImportError, OSError, RuntimeError):  # importing the package loads the library
        return None
    program = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.EPERM))
    known = {name for rule in RULES for name in rule.calls if _is_known(pyseccomp, name)}
    for rule in RULES:
        action = pyseccomp.ALLOW if rule.error is None else pyseccomp.ERRNO(rule.error)
        arguments = [_bpf_argument(pyseccomp, condition) for condition in rule.conditions]
        for name in rule.calls:
            if name in known:
                program.add_rule(action, name, *arguments)
    for number in _SHARED_NUMBERS:
        if not _is_known(pyseccomp, number):  # libc tries new calls first and falls back on ENOSYS, never on EPERM
            program.add_rule(pyseccomp.ERRNO(errno.ENOSYS), number)
    descriptor = os.memfd_create("seccomp")
    with open(descriptor, "w+b") as file:
        program.export_bpf(file)
        file.seek(0)
        return file.read()


def _is_known(pyseccomp: Any, call: str | int) -> bool:
    try:
        resolved: int | bytes = pyseccomp.resolve_syscall(pyseccomp.system_arch(), call)
    except ValueError:
        return False
    return isinstance(resolved, bytes) or resolved >= 0  # a call from another architecture has a negative number


def _bpf_argument(pyseccomp: Any, condition: ArgumentCondition) -> Any:
    if condition.mask is None:
        return pyseccomp.Arg(condition.index, pyseccomp.EQ, condition.value)
    return pyseccomp.Arg(condition.index, pyseccomp.MASKED_EQ, condition.mask, condition.value)
