"""Pseudo-terminals for background processes. Opens and resizes them; never reads or writes."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

from .failure import Failure, reason_of

TERMINAL_EOF = b"\x04"
_LOCAL_MODES = 3  # their indexes in the result of tcgetattr


def open_terminal(rows: int, columns: int, echo: bool) -> tuple[int, int, str]:
    """Return the runner's end, which does not block, the child's end, and the name by which the child opens it."""
    try:
        ours, theirs = os.openpty()
    except OSError as error:
        raise Failure("LimitReached", f"cannot open a terminal: {reason_of(error)}") from None
    os.set_blocking(ours, False)
    resize_terminal(ours, rows, columns)
    if not echo:
        modes = termios.tcgetattr(theirs)
        modes[_LOCAL_MODES] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
    return ours, theirs, os.ttyname(theirs)


def foreground_group(fd: int) -> int:
    """Return the terminal's foreground process group; 0 if there is none."""
    try:
        return os.tcgetpgrp(fd)
    except OSError:  # its last process is gone
        return 0


def resize_terminal(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
