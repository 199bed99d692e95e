"""Locks between processes and threads: flock on a file, shared for readers, exclusive for writers.

The kernel lets go of a lock when its process dies, so a killed writer blocks nobody. It has no way to wait for a
lock until a deadline, and a stopped process must not stop us for ever; hence the short naps here.
"""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from memo.errors import Unavailable

LOCK_TIMEOUT_S = 30.0
_FIRST_NAP_S = 0.0005
_LONGEST_NAP_S = 0.010


@contextmanager
def locked(fd: int, place: str, *, exclusive: bool, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of an open file. Nobody waits longer than the timeout: Unavailable, and nothing was done."""
    operation = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
    deadline = time.monotonic() + timeout_s
    nap_s = _FIRST_NAP_S
    while True:
        try:
            fcntl.flock(fd, operation)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Unavailable(f"cannot lock {place}: somebody has held it for {timeout_s:g} s") from None
        time.sleep(nap_s * random.uniform(0.5, 1.0))  # noqa: S311  # only keeps two waiters out of step
        nap_s = min(nap_s * 2, _LONGEST_NAP_S)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def open_lock(directory_fd: int, name: str) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory_fd)
