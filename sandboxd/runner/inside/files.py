"""Reading and writing files for the agent. Each function here is one job for a worker thread.

A write is a temporary file in the same directory and a rename: readers see the old file or the new one. The
temporary file never stays behind, whoever gives up. Sizes are bounded before anything is read.
"""

from __future__ import annotations

import os
import stat

from . import paths
from .failure import Failure, explain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FILE_BYTES = 1_073_741_824


def describe(path: str, status: os.stat_result) -> dict[str, Any]:
    return {"path": path, "size": status.st_size, "mode": status.st_mode, "mtime": status.st_mtime}


def look_at(path: str) -> dict[str, Any]:
    fd = paths.open_any(path, "stat")
    try:
        return describe(path, os.fstat(fd))
    finally:
        os.close(fd)


def open_for_reading(path: str) -> tuple[int, dict[str, Any]]:
    fd, status = paths.open_regular(path, "read")
    if status.st_size > MAX_FILE_BYTES:
        os.close(fd)
        raise Failure("InvalidRequest", too_large("read", path, status.st_size, MAX_FILE_BYTES))
    return fd, describe(path, status)


def too_large(action: str, path: str, size: int, most: int) -> str:
    return f"cannot {action} {path}: it has {size} bytes, the most is {most}"


class Draft:
    """A file being written: a temporary file beside its target until `commit`."""

    def __init__(self, path: str, make_parents: bool, action: str = "write") -> None:
        self._action = action
        self._path = path
        self._target = paths.open_target(path, make_parents, action)
        self._name = b".sandboxd-%s.tmp" % os.urandom(8).hex().encode()
        self._size = 0
        self._fd = -1
        try:
            # the directory is already checked; O_PATH descriptors serve as dir_fd but make nothing by themselves
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._name, flags, 0o644, dir_fd=self._target.directory)
            existing = self._target.existing
            if existing is not None:
                os.fchmod(self._fd, stat.S_IMODE(existing.st_mode) & 0o777)
        except OSError as error:
            self.discard()
            raise explain(error, action, path) from None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        if self._fd < 0:
            raise Failure("InvalidRequest", f"cannot {self._action} {self._path}: it was given up")
        self._size += len(data)
        if self._size > MAX_FILE_BYTES:
            self.discard()
            raise Failure("InvalidRequest", f"cannot {self._action} {self._path}: more than {MAX_FILE_BYTES} bytes")
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self.discard()
            raise explain(error, self._action, self._path) from None
        return len(data)

    def commit(self) -> dict[str, Any]:
        if self._fd < 0:
            raise Failure("InvalidRequest", f"cannot {self._action} {self._path}: it was given up")
        directory = self._target.directory
        try:
            status = os.fstat(self._fd)
            os.rename(self._name, self._target.name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError as error:
            self.discard()
            raise explain(error, self._action, self._path) from None
        os.close(self._fd)
        os.close(directory)
        self._fd = self._target.directory = -1
        return describe(self._path, status)

    def discard(self) -> None:
        """Leave nothing behind. Safe to call again, and after `commit`."""
        directory, self._target.directory = self._target.directory, -1
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _remove(self._name, directory)
        if directory >= 0:
            os.close(directory)


def _remove(name: bytes, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return  # the agent may remove what is in its directory
