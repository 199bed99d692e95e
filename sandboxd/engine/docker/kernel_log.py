"""What the kernel's log says of a container that ran out of memory.

For an engine that does not say so itself: Podman 4 on cgroup v1 loses the notice when it hits PID 1, and Docker on a
busy host sends it after the death. Reads only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

KERNEL_LOG = Path("/dev/kmsg")
_LARGEST_RECORD = 8192


def tells_oom(container_id: str, log: Path = KERNEL_LOG) -> bool:
    """Say whether the kernel killed a process of this container for memory; False if its log is closed to us."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return any(b"oom-kill:" in record and container_id.encode() in record for record in _records(descriptor))
    finally:
        os.close(descriptor)


def _records(descriptor: int) -> Iterator[bytes]:
    """Yield the log from its oldest record on. Each read returns one record."""
    while True:
        try:
            record = os.read(descriptor, _LARGEST_RECORD)
        except BrokenPipeError:
            continue  # this record was overwritten; the next read goes on with the oldest that is left
        except OSError:
            return  # the end, or a log that cannot be read
        if not record:
            return
        yield record
