"""Directories and files by descriptor: durable replacement, append-only logs of lines, and file locks.

Every name is one path component and is opened without following links, so a planted link cannot lead out of the tree.
A missing file is None; every other failure is an exception. Blocking; independent of documents.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from memo.errors import Corrupt, Unavailable

_FIRST_BLOCK = 4096
_LARGEST_BLOCK = 1 << 18
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # NONBLOCK: a planted FIFO must not block
_PLANTED = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)


@contextmanager
def disk_errors(action: str) -> Iterator[None]:
    """Translate OSError. Use it only around work that changes nothing when it fails."""
    try:
        yield
    except OSError as error:
        if error.errno in _PLANTED:
            raise Corrupt(
                f"cannot {action}: an unexpected kind of file is in its place ({error.strerror}); remove it"
            ) from error
        raise Unavailable(f"cannot {action}: {error.strerror}") from error


class Directory:
    """Owns one open directory. `path` is relative to the store's root, for messages."""

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path

    @classmethod
    def open(cls, path: str) -> Directory:
        """Open the root of a store. Links are followed only here, because the operator chose the path."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), ".")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def where(self, name: str) -> str:
        return name if self.path == "." else f"{self.path}/{name}"

    def child(self, name: str) -> Directory | None:
        """Open a directory below this one; None if it does not exist."""
        with disk_errors(f"open {self.where(name)}"):
            try:
                fd = os.open(name, _READ | os.O_DIRECTORY, dir_fd=self.fd)
            except FileNotFoundError:
                return None
        return Directory(fd, self.where(name))

    def make_child(self, name: str) -> Directory:
        """Open a directory below this one, created durably if it does not exist."""
        found = self.child(name)
        if found is not None:
            return found
        with disk_errors(f"make {self.where(name)}"), suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.fd)
            os.fsync(self.fd)
        found = self.child(name)
        if found is None:
            raise Unavailable(f"cannot make {self.where(name)}: it was removed at the same time; retry")
        return found

    def descend(self, *names: str) -> Directory | None:
        here: Directory | None = Directory(os.dup(self.fd), self.path)
        for name in names:
            if here is None:
                return None
            with here:
                here = here.child(name)
        return here

    def make_path(self, *names: str) -> Directory:
        here = Directory(os.dup(self.fd), self.path)
        for name in names:
            with here:
                here = here.make_child(name)
        return here

    def names(self) -> list[str]:
        with disk_errors(f"list {self.path}"):
            return sorted(os.listdir(self.fd))

    def stat(self, name: str) -> os.stat_result | None:
        with disk_errors(f"inspect {self.where(name)}"):
            try:
                return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            except FileNotFoundError:
                return None

    def is_file(self, name: str) -> bool:
        found = self.stat(name)
        return found is not None and stat.S_ISREG(found.st_mode)

    def is_directory(self, name: str) -> bool:
        found = self.stat(name)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def open_file(self, name: str, flags: int = 0) -> int | None:
        """Return a descriptor of a regular file, None if it does not exist. Any other kind of file is Corrupt."""
        with disk_errors(f"open {self.where(name)}"):
            try:
                fd = os.open(name, _READ | flags, 0o600, dir_fd=self.fd)
            except FileNotFoundError:
                return None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Corrupt(f"cannot open {self.where(name)}: it is not a regular file")
        return fd

    def check_file(self, name: str) -> None:
        """Raise Corrupt if the name exists and is not a regular file."""
        fd = self.open_file(name)
        if fd is not None:
            os.close(fd)

    def read(self, name: str, limit_bytes: int | None = None) -> bytes | None:
        """Return the file, at most one byte past the limit, or None if it does not exist."""
        fd = self.open_file(name)
        if fd is None:
            return None
        with closing(fd), disk_errors(f"read {self.where(name)}"):
            return read_all(fd, limit_bytes)

    def stage(self, name: str, *parts: bytes) -> None:
        """Write a new file and make its bytes durable, replacing any file of that name."""
        with disk_errors(f"write {self.where(name)}"):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.fd)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600, dir_fd=self.fd)
            with closing(fd):
                for part in parts:
                    write_all(fd, part)
                os.fsync(fd)

    def touch(self, name: str) -> None:
        """Make sure that a file of that name exists, durably. Two callers at once both succeed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with disk_errors(f"write {self.where(name)}"), closing(os.open(name, flags, 0o600, dir_fd=self.fd)):
            os.fsync(self.fd)

    def move(self, name: str, target: Directory, new_name: str) -> None:
        """Move a staged file into place, durably. A reader sees the old file or the new one, never a part of either."""
        with disk_errors(f"write {target.where(new_name)}"):
            os.rename(name, new_name, src_dir_fd=self.fd, dst_dir_fd=target.fd)
            os.fsync(target.fd)

    def remove(self, name: str) -> bool:
        with disk_errors(f"remove {self.where(name)}"):
            try:
                os.unlink(name, dir_fd=self.fd)
            except FileNotFoundError:
                return False
            return True

    def sync(self) -> None:
        with disk_errors(f"sync {self.path}"):
            os.fsync(self.fd)


@contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def read_all(fd: int, limit_bytes: int | None = None) -> bytes:
    most = None if limit_bytes is None else limit_bytes + 1
    blocks: list[bytes] = []
    size = 0
    while most is None or size < most:
        block = os.read(fd, 1 << 20 if most is None else min(1 << 20, most - size))
        if not block:
            break
        blocks.append(block)
        size += len(block)
    return b"".join(blocks)


def write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def end_of_lines(fd: int) -> int:
    """Return where the last complete line ends; the bytes after it belong to an unfinished write."""
    end, block = os.fstat(fd).st_size, _FIRST_BLOCK
    while end > 0:
        start, block = max(0, end - block), min(block * 4, _LARGEST_BLOCK)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def append_lines(fd: int, lines: bytes, end: int) -> int:
    """Write complete lines at `end`, durably, and return the new end. On failure none of them remain."""
    if os.fstat(fd).st_size > end:
        os.ftruncate(fd, end)  # never acknowledged: every acknowledged line ends at or before `end`
    os.lseek(fd, end, os.SEEK_SET)
    try:
        write_all(fd, lines)
        os.fsync(fd)
    except OSError:
        os.ftruncate(fd, end)
        raise
    return end + len(lines)


def lines_backwards(fd: int, end: int) -> Iterator[bytes]:
    """Yield the lines that end at or before `end`, last line first, without their newlines."""
    rest, size = b"", _FIRST_BLOCK
    is_last = True
    while end > 0:
        start, size = max(0, end - size), min(size * 4, _LARGEST_BLOCK)
        first, *others = (os.pread(fd, end - start, start) + rest).split(b"\n")
        if is_last:
            others, is_last = others[:-1], False  # nothing follows the last newline
        if start > 0:
            rest = first
        else:
            others.insert(0, first)
        yield from reversed(others)
        end = start


LOCK_TIMEOUT_S = 30.0
_FIRST_WAIT_S = 0.0005
_LONGEST_WAIT_S = 0.010


@contextmanager
def locked(fd: int, place: str, *, exclusive: bool, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the flock of an open file, shared or exclusive. Raise Unavailable after the timeout.

    The kernel releases the lock of a dead process. It cannot wait for a lock with a deadline, and a stopped process
    must not block this one, so this polls with a short backoff.
    """
    operation = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
    deadline = time.monotonic() + timeout_s
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            fcntl.flock(fd, operation)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"cannot lock {place}: another process has held it for {timeout_s:g} s; retry"
                ) from None
        time.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311  # jitter, so that two waiters do not stay in step
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def open_lock(directory_fd: int, name: str) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory_fd)
