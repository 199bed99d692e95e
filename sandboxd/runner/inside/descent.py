"""A way down into a directory tree: any depth, few open descriptors, no link followed.

Only the last directories of the way are held open. One further up is opened again through `..` and must then be the
same directory. A listing of entries continues where it was, so its memory depends neither on depth nor on width.
"""

from __future__ import annotations

import ctypes
import os
import struct

from .failure import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_OPEN = 16
_LISTED_BYTES = 8_192
_GETDENTS64 = {"x86_64": 217}.get(os.uname().machine, 61)
"""The number of the system call; every architecture newer than x86-64 has the second one."""
_ENTRY = struct.Struct("=QqHB")  # inode, position after it, bytes of this record, type; then the name
_libc = ctypes.CDLL(None, use_errno=True)


class Level:
    """One directory of the way."""

    __slots__ = ("_names", "_position", "fd", "identity", "name", "note")

    def __init__(self, fd: int, name: bytes) -> None:
        status = os.fstat(fd)
        self.fd = fd
        self.name = name
        self.identity = (status.st_dev, status.st_ino)
        self.note: Any = None
        """What the owner of the descent keeps with this directory."""
        self._position = 0
        self._names: list[tuple[bytes, int]] | None = []
        """Listed names that are not returned yet, the next one last; None at the end of the directory."""

    def next_name(self) -> bytes | None:
        """Return the next entry in the order of the kernel, or None at the end."""
        while self._names is not None:
            if not self._names:
                self._names = self._list()
                continue
            name, self._position = self._names.pop()
            if name not in (b".", b".."):
                return name
        return None

    def suspend(self) -> None:
        """Close the descriptor and remember where the listing is."""
        os.close(self.fd)
        self.fd = -1
        if self._names:
            self._names = []

    def resume(self, fd: int) -> None:
        self.fd = fd
        if self._names is not None and self._position:
            os.lseek(fd, self._position, os.SEEK_SET)

    def _list(self) -> list[tuple[bytes, int]] | None:
        buffer = ctypes.create_string_buffer(_LISTED_BYTES)
        size = int(_libc.syscall(_GETDENTS64, self.fd, buffer, _LISTED_BYTES))
        if size < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        listed = buffer.raw[:size]
        names = []
        start = 0
        while start < size:
            _inode, position, length, _type = _ENTRY.unpack_from(listed, start)
            name = listed[start + _ENTRY.size : start + length]
            names.append((name[: name.index(0)], position))
            start += length
        names.reverse()
        return names or None


class Descent:
    """The directories from a top, which it takes over, down to the current one. `flags` say how each is opened."""

    def __init__(self, top: int, flags: int) -> None:
        self._flags = flags | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._levels = [Level(top, b"")]

    @property
    def current(self) -> Level:
        return self._levels[-1]

    @property
    def depth(self) -> int:
        return len(self._levels) - 1

    def names(self) -> list[bytes]:
        """Return the names of the directories below the top."""
        return [level.name for level in self._levels[1:]]

    def enter(self, name: bytes) -> Level:
        """Open a directory in the current one; raise the kernel's error if it is a link or anything else."""
        fd = os.open(name, self._flags, dir_fd=self.current.fd)
        self._levels.append(Level(fd, name))
        if len(self._levels) > MAX_OPEN and self._levels[-MAX_OPEN - 1].fd >= 0:
            self._levels[-MAX_OPEN - 1].suspend()
        return self.current

    def leave(self) -> None:
        """Return to the parent. Raise Failure if the directory was moved elsewhere in the meantime."""
        level = self._levels.pop()
        parent = self._levels[-1]
        try:
            if parent.fd < 0:
                fd = os.open(b"..", self._flags, dir_fd=level.fd)
                status = os.fstat(fd)
                if (status.st_dev, status.st_ino) != parent.identity:
                    os.close(fd)
                    why = "a directory was moved in the meantime; try again"
                    raise Failure("InvalidRequest", f"cannot return from {_shown(level.name)}: {why}")
                parent.resume(fd)
        finally:
            os.close(level.fd)

    def close(self) -> None:
        """Close every descriptor. Safe to call again."""
        while self._levels:
            level = self._levels.pop()
            if level.fd >= 0:
                os.close(level.fd)


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
