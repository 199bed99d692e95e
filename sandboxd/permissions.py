"""Permissions of the daemon's files: modes of directories and files, set when they are created.

Everything is private to the daemon's user. Files that a container must reach are open to the container's group, never
to everyone; the private directory above them keeps out a host user who happens to have the same group or user id.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

PRIVATE_DIRECTORY: Final = 0o700
PRIVATE_FILE: Final = 0o600
SHARED_DIRECTORY: Final = 0o2750
"""Set-group-id: new files inside get the container's group without another system call."""
SHARED_FILE: Final = 0o440


def make_private(path: Path) -> None:
    """Make a directory that only this user may enter, or tighten one that an older daemon made."""
    path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    tighten(path)


def make_shared(path: str | Path, gid: int) -> None:
    """Make a directory that the group may enter and list, or give an existing one that group and mode."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, PRIVATE_DIRECTORY)
    open_to_group(path, gid, SHARED_DIRECTORY)


def open_to_group(path: str | Path, gid: int, mode: int) -> None:
    """Set group and mode where they differ; the group first, because changing it may clear set-group-id."""
    status = os.stat(path)
    if status.st_gid != gid:
        os.chown(path, -1, gid)
    if status.st_gid != gid or stat.S_IMODE(status.st_mode) != mode:
        os.chmod(path, mode)


def tighten(path: Path) -> None:
    """Remove all permissions of group and others from a file or directory; skip links and missing names."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode) or status.st_mode & 0o7077 == 0:
        return
    path.chmod(status.st_mode & 0o700)


def create_private(path: Path) -> None:
    """Create the file with mode 0600 before a library creates it with the umask's mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE))
    tighten(path)


def is_readable_by_others(path: Path) -> bool:
    """Return whether any user of the host can open this file, by its mode and those of all directories above it."""
    real = path.resolve()
    return bool(real.stat().st_mode & 0o004) and all(parent.stat().st_mode & 0o001 for parent in real.parents)
