"""A small process that holds one filesystem frozen, and thaws it when its parent is done, late or dead.

Run as a script with an open directory of the filesystem and the longest time in seconds. It freezes when it reads a
byte, and thaws at the end of its input. It writes one line when the filesystem is frozen and one when it is thawed. It
imports so little that it starts in a few milliseconds, and it never reads or writes the filesystem, because a write to
a frozen one waits.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import sys

FIFREEZE = 0xC0045877
FITHAW = 0xC0045878
FROZEN, THAWED, LATE, LOST, FAILED = "frozen", "thawed", "late", "lost", "failed"


def thaw(directory: int) -> bool:
    """Thaw the filesystem of an open directory; return whether it was frozen."""
    try:
        fcntl.ioctl(directory, FITHAW, 0)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    return True


def main(directory: int, limit_s: float) -> None:
    if not os.read(0, 1):
        return
    try:
        fcntl.ioctl(directory, FIFREEZE, 0)
    except OSError as error:
        _say(f"{FAILED} {error.errno}")
        return
    try:
        _say(FROZEN)
        is_asked = bool(select.select([0], [], [], limit_s)[0])
    finally:
        was_frozen = thaw(directory)
    _say((THAWED if is_asked else LATE) if was_frozen else LOST)


def _say(line: str) -> None:
    try:  # noqa: SIM105  # contextlib takes longer to load than all of this takes to run
        os.write(1, f"{line}\n".encode())
    except OSError:
        pass  # the parent is dead


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
