"""Reads and writes files for the agent. Each function here is one job for a worker thread.

A write is a temporary file in the same directory and a rename: readers see the old file or the new one. `Draft` names
the two exceptions. The temporary file is never left behind, whichever side cancels. Sizes are bounded before anything
is read.
"""

from __future__ import annotations

import errno
import os
import stat

from . import paths
from .container_paths import VAR_TMP
from .failure import FULL, Failure, explain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FILE_BYTES = 1_073_741_824
LARGE_BYTES = 1_048_576
"""A smaller file is never removed to make room for its next version."""
BLOCK_BYTES = 262_144
_SPOOL_PLACE = VAR_TMP.encode()
_CREATE = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def describe(path: str, status: os.stat_result) -> dict[str, Any]:
    return {"path": path, "size": status.st_size, "mode": status.st_mode, "mtime": status.st_mtime}


def look_at(path: str, follow: bool = True) -> dict[str, Any]:
    fd = paths.open_any(path, "stat", public=True, follow=follow)
    try:
        return describe(path, os.fstat(fd))
    finally:
        os.close(fd)


def open_for_reading(path: str) -> tuple[int, dict[str, Any]]:
    fd, status = paths.open_regular(path, "read", public=True)
    if status.st_size > MAX_FILE_BYTES:
        os.close(fd)
        raise Failure("InvalidRequest", too_large("read", path, status.st_size, MAX_FILE_BYTES))
    return fd, describe(path, status)


def too_large(action: str, path: str, size: int, most: int) -> str:
    return f"cannot {action} {path}: it has {size} bytes, and the limit is {most}"


class Draft:
    """A file being written: a temporary file in its target's directory until `commit` renames it.

    Two exceptions, both only for a file that exists and may be written:
    - In a directory that may not be written the content is kept elsewhere and copied over the file by `commit`. A
      reader may see old and new bytes mixed while it is copied; until then the file is untouched.
    - Without room for both versions a large file is removed before the new one is complete, if its `size` then
      fits. A reader finds the old file, no file, or the new one; an interrupted write leaves no file.
    """

    def __init__(self, path: str, make_parents: bool, action: str = "write", size: int | None = None) -> None:
        self._action = action
        self._path = path
        self._declared = size
        self._target = paths.open_target(path, make_parents, action)
        self._name = b".sandboxd-%s.tmp" % os.urandom(8).hex().encode()
        self._size = 0
        self._fd = self._in_place = -1
        self._gave_up_old = False
        try:
            self._open()
        except OSError as error:
            self.discard()
            raise explain(error, action, path) from None
        except Failure:
            self.discard()
            raise
        _drafts.add(self)

    def _open(self) -> None:
        existing, directory = self._target.existing, self._target.directory
        if existing is not None and not os.access(self._target.name, os.W_OK, dir_fd=directory):
            is_read_only = os.fstatvfs(directory).f_flag & os.ST_RDONLY
            raise OSError(errno.EROFS if is_read_only else errno.EACCES, "")
        try:
            # the directory is already checked; an O_PATH descriptor serves as dir_fd
            self._fd = os.open(self._name, _CREATE | os.O_WRONLY, 0o644, dir_fd=directory)
        except PermissionError:
            if existing is None:
                raise
            self._in_place, _status = self._open_old()
            spool = _SPOOL_PLACE + b"/" + self._name
            self._fd = os.open(spool, _CREATE | os.O_RDWR, 0o600)
            os.unlink(spool)
            return
        if existing is not None:
            os.fchmod(self._fd, stat.S_IMODE(existing.st_mode) & 0o777)

    def _open_old(self) -> tuple[int, os.stat_result]:
        """Open the file to be replaced for writing, if it is still the one that was found."""
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self._target.name, flags, dir_fd=self._target.directory)
        status, existing = os.fstat(fd), self._target.existing
        if existing is None or (status.st_dev, status.st_ino) != (existing.st_dev, existing.st_ino):
            os.close(fd)
            raise Failure("InvalidRequest", f"cannot {self._action} {self._path}: it has just been replaced; try again")
        return fd, status

    def write(self, data: bytes | bytearray | memoryview) -> int:
        if self._fd < 0:
            raise Failure("InvalidRequest", f"cannot {self._action} {self._path}: the write was cancelled")
        self._size += len(data)
        if self._size > MAX_FILE_BYTES:
            self.discard()
            raise Failure("InvalidRequest", f"cannot {self._action} {self._path}: more than {MAX_FILE_BYTES} bytes")
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError as error:
                if error.errno in FULL and self._give_up_old():
                    continue
                raise self._fail(error) from None
        return len(data)

    def _give_up_old(self) -> bool:
        """Remove the old file to make room for the new one if that frees enough; return whether it was removed."""
        if self._declared is None or self._gave_up_old or self._in_place >= 0 or self._target.existing is None:
            return False
        missing = self._declared - os.fstat(self._fd).st_size
        try:
            fd, status = self._open_old()
        except (OSError, Failure):
            return False  # a running program, or replaced in the meantime
        try:
            freed = status.st_blocks * 512
            # with a second link the content would be lost, or the space would not be freed
            if status.st_nlink != 1 or freed < LARGE_BYTES or missing > freed:
                return False
            os.unlink(self._target.name, dir_fd=self._target.directory)
            self._gave_up_old = True
            os.ftruncate(fd, 0)  # frees the space even if a program has the file open
        except OSError:
            return self._gave_up_old
        finally:
            os.close(fd)
        return True

    def commit(self) -> dict[str, Any]:
        if self._fd < 0:
            raise Failure("InvalidRequest", f"cannot {self._action} {self._path}: the write was cancelled")
        directory = self._target.directory
        try:
            if self._in_place >= 0:
                status = self._copy_over()
            else:
                status = os.fstat(self._fd)
                os.rename(self._name, self._target.name, src_dir_fd=directory, dst_dir_fd=directory)
                os.close(self._fd)
                self._fd = -1
        except OSError as error:
            raise self._fail(error) from None
        self.discard()
        return describe(self._path, status)

    def _copy_over(self) -> os.stat_result:
        """Write the content over the old file. The space is reserved first: a full disk changes nothing."""
        old_size = os.fstat(self._in_place).st_size
        if self._size:
            try:
                os.posix_fallocate(self._in_place, 0, self._size)
            except OSError:
                os.ftruncate(self._in_place, old_size)
                raise
        offset = 0
        while piece := os.pread(self._fd, BLOCK_BYTES, offset):
            offset += os.pwrite(self._in_place, piece, offset)
        os.ftruncate(self._in_place, self._size)
        return os.fstat(self._in_place)

    def _fail(self, error: OSError) -> Failure:
        self.discard()
        failure = explain(error, self._action, self._path)
        if self._gave_up_old:
            failure = Failure(failure.code, f"{failure.message}; the old file was removed to make room and is lost")
        return failure

    def discard(self) -> None:
        """Leave nothing behind. Safe to call again, and after `commit`."""
        _drafts.discard(self)
        directory, self._target.directory = self._target.directory, -1
        fd, self._fd = self._fd, -1
        in_place, self._in_place = self._in_place, -1
        if fd >= 0:
            os.close(fd)
            if in_place < 0:
                _remove(self._name, directory)
        for opened in (in_place, directory):
            if opened >= 0:
                os.close(opened)

    def doubled_bytes(self) -> int:
        """Return how many bytes the old file takes on disk in addition to its next version."""
        existing = self._target.existing
        if existing is None or existing.st_nlink != 1 or self._gave_up_old or self._in_place >= 0:
            return 0
        return min(existing.st_blocks * 512, self._size)


_drafts: set[Draft] = set()


def doubled_bytes() -> int:
    """Return how many bytes current drafts will free when they commit, so that a limit does not count a file twice."""
    return sum(draft.doubled_bytes() for draft in tuple(_drafts))


def _remove(name: bytes, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return  # the agent may remove files in its directory
