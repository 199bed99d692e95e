"""Pseudo-terminals for background processes that want one. Opens and resizes; never reads or writes."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

from .failure import Failure, reason_of

TERMINAL_EOF = b"\x04"
ROWS, COLUMNS = 24, 80


def open_terminal() -> tuple[int, int, str]:
    """Return our end (which does not block), the child's end, and the name by which the child opens it."""
    try:
        ours, theirs = os.openpty()
    except OSError as error:
        raise Failure("LimitReached", f"cannot open a terminal: {reason_of(error)}") from None
    os.set_blocking(ours, False)
    resize_terminal(ours, ROWS, COLUMNS)
    return ours, theirs, os.ttyname(theirs)


def resize_terminal(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
