"""Probes of identity: the user, its capabilities and limits, and the protection of PID 1."""

from __future__ import annotations

import errno
import glob
import os
import re
import resource
import select
import signal
import stat

from doors import (
    IS_X86,
    OPEN_FDS,
    PROBES,
    Outcome,
    in_child,
    probe,
    raw,
    read_text,
    refused,
    refused_in_child,
    status_field,
    try_call,
)


@probe("no capabilities in any set")
def capabilities() -> Outcome:
    found = {name: int(status_field(name), 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    return not any(found.values()), str({name: hex(value) for name, value in found.items() if value})


PROBES["no new privileges"] = lambda: (status_field("NoNewPrivs") == "1", status_field("NoNewPrivs"))
PROBES["seccomp filter is on"] = lambda: (status_field("Seccomp") == "2", status_field("Seccomp"))
PROBES["not root"] = lambda: (0 not in (os.getuid(), os.geteuid(), os.getgid(), os.getegid()), str(os.getresuid()))
PROBES["no foreign groups"] = lambda: (set(os.getgroups()) <= {os.getgid()}, str(os.getgroups()))
# Without root in the user namespace the kernel returns EINVAL instead.
PROBES["becoming root is refused"] = lambda: refused(lambda: os.setresuid(0, 0, 0), errno.EPERM, errno.EINVAL)
PROBES["chroot is refused"] = lambda: refused_in_child(lambda: os.chroot("/"))
PROBES["only descriptors 0 to 2 are open"] = lambda: (OPEN_FDS[:-1] == [0, 1, 2], str(OPEN_FDS[:-1]))
PROBES["hard limit of core files is 0"] = lambda: (resource.getrlimit(resource.RLIMIT_CORE) == (0, 0), "")


@probe("open files are bounded")
def bounded_files() -> Outcome:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 0 < hard <= 65536, str(hard)


@probe("no setuid or setgid files")
def setuid_files() -> Outcome:
    found, device = [], os.lstat("/").st_dev
    for top, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.lstat(os.path.join(top, name)).st_dev == device]
        for path in (os.path.join(top, name) for name in files):
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                found.append(path)
    return not found, " ".join(found[:5])


@probe("making a control group is refused")
def make_cgroup() -> Outcome:
    places = [path for path in ("/sys/fs/cgroup", *glob.glob("/sys/fs/cgroup/*/")) if os.path.isdir(path)]
    for place in places:
        path = os.path.join(place, "probe-group")
        try:
            os.mkdir(path)
        except OSError:
            continue
        os.rmdir(path)
        return False, place
    return True, f"{len(places)} tried"


@probe("only our own processes are visible")
def processes() -> Outcome:
    foreign = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        found = re.search(r"^Uid:\s+(\d+)", read_text(f"/proc/{pid}/status"), re.M)
        if found and int(found.group(1)) != os.getuid():
            foreign.append(f"{pid} {read_text(f'/proc/{pid}/comm').strip()}")
    return not foreign, ", ".join(foreign[:5])


def read_byte(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


for _file in ("environ", "maps", "mem", "auxv", "stack", "syscall"):
    PROBES[f"/proc/1/{_file} is unreadable"] = lambda file=_file: refused(lambda: read_byte(f"/proc/1/{file}"))
for _link in ("cwd", "root", "exe", "ns/net"):
    PROBES[f"/proc/1/{_link} is unreadable"] = lambda link=_link: refused(lambda: os.readlink(f"/proc/1/{link}"))
PROBES["/proc/1/fd is unreadable"] = lambda: refused(lambda: os.listdir("/proc/1/fd"))
PROBES["/proc/1/task is not another way in"] = lambda: refused(lambda: read_byte("/proc/1/task/1/environ"))
PROBES["/proc/1/mem is not writable"] = lambda: refused(lambda: os.close(os.open("/proc/1/mem", os.O_WRONLY)))


@probe("PID 1 survives every signal")
def kill_init() -> Outcome:
    if os.getpid() == 1:
        return False, "we are PID 1"
    for name in ("KILL", "STOP", "TSTP", "TERM", "INT", "HUP", "QUIT", "ABRT", "SEGV", "ALRM", "PIPE", "USR1", "USR2"):
        os.kill(1, signal.Signals[f"SIG{name}"])
    select.select([], [], [], 0.1)  # a delivered signal takes a moment
    found = re.search(r"^State:\s+(\S)", read_text("/proc/1/status"), re.M)
    state = found.group(1) if found else "gone"
    return state in "SRD", state


@probe("PID 1 cannot be traced")
def trace_init() -> Outcome:
    if os.getpid() == 1:
        return False, "we are PID 1"
    return refused_in_child(lambda: raw(101 if IS_X86 else 117, 0x4206, 1, 0, 0))


NOWHERE = 1  # the kernel checks this address only after the caller's permissions


def limits_of_init() -> Outcome:
    return try_call(302 if IS_X86 else 261, (1, resource.RLIMIT_NOFILE, NOWHERE, 0))


PROBES["limits of PID 1 are out of reach"] = limits_of_init


@probe("the mark of a call cannot be changed")
def change_mark() -> Outcome:
    locks = 10
    value = resource.prlimit(0, locks)
    return refused(lambda: resource.prlimit(0, locks, value))


@probe("processors of PID 1 and its threads are out of reach")
def affinity_of_init() -> Outcome:
    tasks = [1, *(int(name) for name in os.listdir("/proc/1/task"))]
    outcomes = [refused(lambda task=task: os.sched_setaffinity(task, os.sched_getaffinity(task))) for task in tasks]
    return all(ok for ok, _detail in outcomes), f"{len(tasks)} tasks: {sorted({detail for _ok, detail in outcomes})}"


def scheduling_of_init() -> Outcome:
    """Try every scheduling call that takes a pid, with a policy or an address that the kernel checks only later."""
    numbers = {"sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274)}
    tasks = [1, *(int(name) for name in os.listdir("/proc/1/task"))]
    outcomes = [try_call(pair[0 if IS_X86 else 1], (task, NOWHERE, 0)) for pair in numbers.values() for task in tasks]
    return all(ok for ok, _detail in outcomes), " ".join(sorted({detail for _ok, detail in outcomes}))


PROBES["scheduling of PID 1 and its threads is out of reach"] = scheduling_of_init
for _name, _which, _who in (
    ("PID 1", os.PRIO_PROCESS, 1),
    ("the process group of PID 1", os.PRIO_PGRP, 1),
    ("all processes of this user", os.PRIO_USER, 0),
    ("all processes of this user by number", os.PRIO_USER, os.getuid()),
):
    PROBES[f"priority of {_name} is out of reach"] = lambda which=_which, who=_who: refused(
        lambda: os.setpriority(which, who, os.getpriority(which, who))
    )
    # the other call numbers its kinds from 1, in the same order
    PROBES[f"disk priority of {_name} is out of reach"] = lambda which=_which, who=_who: try_call(
        251 if IS_X86 else 30, (which + 1, who, 2 << 13 | 4)
    )


@probe("processes are limited")
def many_processes() -> Outcome:
    children, detail = [], "600 were started"
    try:
        for _ in range(600):
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            children.append(pid)
    except OSError as error:
        detail = f"{errno.errorcode[error.errno or 0]} after {len(children)}"
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(children) < 600, detail


@probe("memory is limited")
def much_memory() -> Outcome:
    def attempt() -> int:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        held = [bytearray(b"x") * (32 << 20) for _ in range(64)]
        return 0 if held else 1

    code, killed = in_child(attempt)
    return killed == signal.SIGKILL or code == 255, f"code {code} signal {killed}"
