"""What this host offers, for `sandboxd doctor`. It only reads: nothing is created, mounted or changed."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from pathlib import Path

from sandboxd.descriptors import carried_sandboxes, reachable_open_files
from sandboxd.engine.bubblewrap.diagnosis import user_namespaces
from sandboxd.engine.protocol import Finding
from sandboxd.settings import Settings

_LEAST_KERNEL = (5, 8)
"""The oldest kernel with every system call that workspaces and mirrors use."""
_LEAST_FREE_BYTES = 2 * 1024**3
_LEAST_FREE_INODES = 100_000
_GIB = 1024**3


def diagnose_agent_user(uid: int) -> Finding:
    """Report whether a host account shares the uid of agents, and so could inspect their processes."""
    if uid == os.geteuid():
        return Finding("agents' user", "ok", f"the daemon's own, uid {uid}")
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return Finding("agents' user", "ok", f"uid {uid} is not used by an account of this host")
    detail = f"uid {uid} is also the account {name}, which can see and signal the processes of agents"
    return Finding("agents' user", "weak", detail, f"give {name} another uid")


def diagnose_open_files(settings: Settings, open_files: int | None = None) -> Finding:
    """Report how many sandboxes the limit on open files allows once a daemon has raised it as far as permitted."""
    limit = reachable_open_files() if open_files is None else open_files
    engines = ["docker", "bubblewrap"] if settings.engine == "auto" else [settings.engine]
    has_tcp = settings.tcp is not None
    carried = {engine: carried_sandboxes(limit, settings.wire, engine, has_tcp=has_tcp) for engine in engines}
    numbers = " or ".join(f"{count} {engine}" for engine, count in carried.items())
    detail = f"a limit of {limit} allows {numbers} sandboxes"
    if min(carried.values()) < settings.max_sandboxes:
        advice = f"raise it (`ulimit -Hn`, LimitNOFILE=) to allow max_sandboxes, which is {settings.max_sandboxes}"
        return Finding("open files", "weak", detail, advice)
    return Finding("open files", "ok", detail)


def diagnose_host(data: Path) -> list[Finding]:
    """Examine the kernel, its limits and the free space of the data directory (or where it will be)."""
    return [
        _kernel(os.uname().release),
        _cgroups(Path("/proc/self/mountinfo").read_text()),
        user_namespaces(),
        _loop_devices(),
        _disk(data),
        _shared_memory(),
        _process_list(Path("/proc/self/mountinfo").read_text()),
        _limit_of("process ids", Path("/proc/sys/kernel/pid_max"), 16_384),
    ]


def _kernel(release: str) -> Finding:
    parts = release.split("-")[0].split(".")[:2]
    if tuple(int(part) for part in parts if part.isdigit()) < _LEAST_KERNEL:
        wanted = ".".join(map(str, _LEAST_KERNEL))
        return Finding("kernel", "weak", f"Linux {release}", f"use {wanted} or newer")
    return Finding("kernel", "ok", f"Linux {release}")


def _cgroups(mountinfo: str) -> Finding:
    kinds = {line.partition(" - ")[2].split(" ")[0] for line in mountinfo.splitlines()}
    if "cgroup" in kinds:
        return Finding("control groups", "ok", "version 1")
    if "cgroup2" in kinds:
        return Finding("control groups", "ok", "version 2")
    return Finding("control groups", "missing", "none is mounted", "mount cgroup2 on /sys/fs/cgroup")


def _process_list(mountinfo: str) -> Finding:
    """Report whether /proc shows the command lines of agents to other users of this host."""
    options = [line.split(" ")[-1] for line in mountinfo.splitlines() if line.split(" ")[4] == "/proc"]
    if options and re.search(r"\bhidepid=(1|2|4|noaccess|invisible|ptraceable)\b", options[-1]):
        return Finding("process list", "ok", "other users cannot read the command lines of agents")
    advice = "mount -o remount,hidepid=invisible /proc"
    return Finding("process list", "weak", "every user of this host can read the command lines of agents", advice)


def _loop_devices() -> Finding:
    if os.geteuid() != 0:
        return Finding("loop devices", "weak", "only root may use them", "run the daemon as root")
    if not Path("/dev/loop-control").exists():
        return Finding("loop devices", "missing", "there is no /dev/loop-control", "modprobe loop")
    return Finding("loop devices", "ok", "created when needed")


def _disk(data: Path) -> Finding:
    place = next(path for path in (data.absolute(), *data.absolute().parents) if path.exists())
    room = os.statvfs(place)
    free_bytes, free_inodes = room.f_bavail * room.f_frsize, room.f_favail
    detail = f"{free_bytes / _GIB:.1f} GiB and {free_inodes} files free at {place}"
    # A filesystem that allocates inodes on demand reports a total of 0.
    is_short = free_bytes < _LEAST_FREE_BYTES or (room.f_files and free_inodes < _LEAST_FREE_INODES)
    if is_short:
        return Finding("disk", "weak", detail, "free some space or give another --data")
    return Finding("disk", "ok", detail)


def _shared_memory() -> Finding:
    place = Path("/dev/shm")  # noqa: S108 - only inspected
    if not place.is_dir():
        return Finding("tmpfs", "missing", f"there is no {place}", "mirrors stay on disk")
    free = shutil.disk_usage(place).free
    detail = f"{free / _GIB:.1f} GiB free at {place}"
    if free < _LEAST_FREE_BYTES // 8:
        return Finding("tmpfs", "weak", detail, "remount it with a larger size")
    return Finding("tmpfs", "ok", detail)


def _limit_of(subject: str, file: Path, least: int) -> Finding:
    value = int(file.read_text())
    if value < least:
        return Finding(subject, "weak", f"{value}", f"raise {file} to {least}")
    return Finding(subject, "ok", f"{value}")
