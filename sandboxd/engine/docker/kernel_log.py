"""What the kernel's log says about a container that ran out of memory.

For engines that do not report it: Podman 4 on cgroup v1 loses the notification when PID 1 is killed, and Docker on a
busy host sends it after the death. It only reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

KERNEL_LOG = Path("/dev/kmsg")
_LARGEST_RECORD = 8192


def tells_oom(container_id: str, log: Path = KERNEL_LOG) -> bool:
    """Return whether the kernel killed a process of this container for memory; False if the log is unreadable."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return any(b"oom-kill:" in record and container_id.encode() in record for record in _records(descriptor))
    finally:
        os.close(descriptor)


def _records(descriptor: int) -> Iterator[bytes]:
    """Yield the log, oldest record first. Each read returns one record."""
    while True:
        try:
            record = os.read(descriptor, _LARGEST_RECORD)
        except BrokenPipeError:
            continue  # this record was overwritten; the next read continues with the oldest remaining one
        except OSError:
            return  # the end of the log, or it cannot be read
        if not record:
            return
        yield record
