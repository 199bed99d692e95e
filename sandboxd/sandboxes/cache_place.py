"""The place of mirrors and blobs: in memory if the host has a tmpfs with room, else on the data directory's disk.

Both can be rebuilt at any time, and both must be on one filesystem, because a mirror is a directory of links to blobs.
In memory they are behind two symbolic links in the data directory, so that other code is not affected. They move only
when no sandbox has a mirror, because a live container shows the place that it was started with.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from pathlib import Path

from sandboxd.permissions import PRIVATE_DIRECTORY, make_private, tighten
from sandboxd.settings import CachePlace

TMPFS = Path("/dev/shm")  # noqa: S108  # only a directory in it that this daemon made and no other user can write
_ROOM = 4  # times the bound of the blob cache, because live mirrors need room as well
_NAMES = ("mirrors", "blobs")


def settle(data: Path, wanted: CachePlace, cache_bytes: int, *, tmpfs: Path = TMPFS) -> None:
    """Make `mirrors` and `blobs`, in the place that the settings name, if they can still be moved."""
    current = _memory_of(data)
    is_whole = all((data / name).is_symlink() for name in _NAMES)
    if current is not None and not (is_whole and _is_ours(current)):
        # The host was rebooted, another user took the name, or a daemon died between making the two links.
        _forget(data)
        current = None
    is_in_use = any((data / "mirrors").iterdir()) if (data / "mirrors").is_dir() else False
    if not is_in_use:
        is_wanted = wanted == "memory" or (wanted == "auto" and _has_room(tmpfs, cache_bytes * _ROOM))
        if is_wanted and current is None:
            _forget(data)
            _link(data, tmpfs / f"sandboxd-{secrets.token_hex(8)}")
        elif not is_wanted and current is not None:
            _forget(data)
    if current is not None and _is_ours(current):
        tighten(current)  # an older daemon let other users enter it
    for name in _NAMES:
        make_private((data / name).resolve())


def give_back(data: Path) -> None:
    """Remove everything from memory, unless a sandbox that outlives the daemon shows it."""
    if _memory_of(data) is not None and not any((data / "mirrors").iterdir()):
        _forget(data)


def _memory_of(data: Path) -> Path | None:
    """The directory in memory that the data directory's links lead to."""
    return next(((data / name).readlink().parent for name in _NAMES if (data / name).is_symlink()), None)


def _forget(data: Path) -> None:
    memory = _memory_of(data)
    for name in _NAMES:
        path = data / name
        if path.is_symlink():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
    if memory is not None and _is_ours(memory):
        shutil.rmtree(memory)


def _link(data: Path, memory: Path) -> None:
    memory.mkdir(mode=PRIVATE_DIRECTORY)
    try:
        for name in reversed(_NAMES):  # mirrors last, because this link determines where the cache is
            (memory / name).mkdir(mode=PRIVATE_DIRECTORY)
            (data / name).symlink_to(memory / name)
    except OSError:
        _forget(data)
        shutil.rmtree(memory, ignore_errors=True)
        raise


def _is_ours(memory: Path) -> bool:
    try:
        status = memory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _has_room(tmpfs: Path, needed_bytes: int) -> bool:
    if not os.access(tmpfs, os.W_OK) or _filesystem_at(tmpfs) != "tmpfs":
        return False
    status = os.statvfs(tmpfs)
    return status.f_bavail * status.f_frsize >= needed_bytes and _memory_available() >= needed_bytes


def _filesystem_at(path: Path) -> str | None:
    with open("/proc/self/mounts") as mounts:
        found = [fields[2] for line in mounts if (fields := line.split())[1] == str(path)]
    return found[-1] if found else None


def _memory_available() -> int:
    with open("/proc/meminfo") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    return 0
