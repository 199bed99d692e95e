"""Counters of how often the kernel enforced the container's limits, read from the cgroup. Never writes.

The files stay open, so a reading costs one system call each. A missing file counts as zero.
"""

from __future__ import annotations

import os

_PLACES = {
    "memory": (
        ("/sys/fs/cgroup/memory.events", b"oom_kill "),
        ("/sys/fs/cgroup/memory/memory.oom_control", b"oom_kill "),
    ),
    "pids": (("/sys/fs/cgroup/pids.events", b"max "), ("/sys/fs/cgroup/pids/pids.events", b"max ")),
}


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
