"""Pipes between the runner and the agent's processes: feeds stdin, and drains what finished calls left open.

It never blocks, and buffers a bounded amount for each pipe.
"""

from __future__ import annotations

import os

from .hub import READABLE, WRITABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .hub import Hub

MAX_LEFTOVERS = 64
DROP_BYTES = 65_536


def open_pipe() -> tuple[int, int]:
    """Return a pipe whose reading end does not block; the writing end is for a child, so it blocks."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read_end, False)
    return read_end, write_end


def close_all(*fds: int) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)


class Feeder:
    """Writes into a process's stdin as fast as it reads. Owns the descriptor."""

    def __init__(self, hub: Hub, fd: int, on_written: Callable[[int], None]) -> None:
        self._hub = hub
        self._fd = fd
        self._on_written = on_written
        self._unwritten = bytearray()
        self.written_bytes = 0
        """How many bytes the process's pipe has taken so far."""
        self._ending = False
        self._watched = False
        os.set_blocking(fd, False)

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    @property
    def is_full(self) -> bool:
        """Whether data still waits for the process to read it."""
        return bool(self._unwritten)

    def feed(self, data: bytes) -> None:
        if self._fd < 0 or not data:
            return
        self._unwritten += data
        self._write()

    def end(self) -> None:
        """Close once everything is written."""
        self._ending = True
        if not self._unwritten:
            self.close()

    def withdraw(self) -> None:
        """Drop what the process has not read; it can be written again later."""
        self._unwritten.clear()
        if self._watched:
            self._watched = False
            self._hub.unwatch(self._fd)

    def close(self) -> None:
        if self._fd < 0:
            return
        if self._watched:
            self._hub.unwatch(self._fd)
        os.close(self._fd)
        self._fd = -1
        self._unwritten.clear()

    def _write(self) -> None:
        try:
            written = os.write(self._fd, self._unwritten)
        except BlockingIOError:
            written = 0
        except OSError:  # the process closed its stdin or is gone
            self.close()
            self._on_written(0)
            return
        self.written_bytes += written
        del self._unwritten[:written]
        if self._unwritten:
            if not self._watched:
                self._watched = True
                self._hub.watch(self._fd, WRITABLE, self._write)
        else:
            if self._watched:
                self._watched = False
                self._hub.unwatch(self._fd)
            if self._ending:
                self.close()
        if written:
            self._on_written(written)


class Leftovers:
    """Pipes that outlived their call. Their output is read and dropped, so that `server &` neither blocks nor dies."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._fds: dict[int, None] = {}

    def adopt(self, fd: int) -> None:
        if len(self._fds) >= MAX_LEFTOVERS:
            self._close(next(iter(self._fds)))
        self._fds[fd] = None
        self._hub.watch(fd, READABLE, lambda: self._drop(fd))

    def _drop(self, fd: int) -> None:
        try:
            if os.read(fd, DROP_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:  # a terminal reports an error once its last process is gone
            pass
        self._close(fd)

    def _close(self, fd: int) -> None:
        del self._fds[fd]
        self._hub.unwatch(fd)
        os.close(fd)
