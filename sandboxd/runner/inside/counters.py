"""Which of the container's limits were reached: the kernel's counters, and filesystems without room. Never writes.

The counters' files stay open, so a reading costs one system call each. A missing file counts as zero.
"""

from __future__ import annotations

import os
import resource
import signal

from .container_paths import TMP, WORKSPACE

_PLACES = {
    "memory": (
        ("/sys/fs/cgroup/memory.events", b"oom_kill "),
        ("/sys/fs/cgroup/memory/memory.oom_control", b"oom_kill "),
    ),
    "pids": (("/sys/fs/cgroup/pids.events", b"max "), ("/sys/fs/cgroup/pids/pids.events", b"max ")),
}


_FILESYSTEMS = {"workspace": WORKSPACE, "tmp": TMP}
TOO_LARGE = 128 + signal.SIGXFSZ
FULL_BYTES = 65_536
"""With less room than this a filesystem is full: a few blocks may stay free that no ordinary write gets."""


def find_full(exit_code: int | None) -> list[str]:
    """Return the limits of filesystems that a failed command may have run into: those without room for more.

    No file may be larger than the workspace's limit, in any filesystem: the kernel ends what writes more with SIGXFSZ.
    """
    full = [limit for limit, path in _FILESYSTEMS.items() if _is_full(path)]
    if exit_code == TOO_LARGE and "workspace" not in full and _has_file_limit():
        full.append("workspace")
    return full


def _has_file_limit() -> bool:
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


def _is_full(path: str) -> bool:
    try:
        status = os.statvfs(path)
    except OSError:
        return False
    has_inodes = status.f_favail > 0 or not status.f_files  # some filesystems do not count files
    return status.f_bavail * status.f_frsize < FULL_BYTES or not has_inodes


class Counters:
    def __init__(self) -> None:
        self._open: list[tuple[str, int, bytes]] = []
        for limit, places in _PLACES.items():
            for path, field in places:
                try:
                    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError:
                    continue
                self._open.append((limit, fd, field))
                break

    def read(self) -> list[bytes]:
        """Return the current content of every file; compare two readings with `grown`."""
        return [os.pread(fd, 512, 0) for _limit, fd, _field in self._open]

    def grown(self, before: list[bytes], after: list[bytes]) -> list[str]:
        """Return the limits that were enforced between two readings."""
        return [
            limit
            for (limit, _fd, field), old, new in zip(self._open, before, after)  # noqa: B905 - zip has no strict in 3.9
            if old != new and _count(new, field) > _count(old, field)
        ]


def _count(text: bytes, field: bytes) -> int:
    for line in text.splitlines():
        if line.startswith(field):
            return int(line[len(field) :])
    return 0
