"""The disk: directories and files by descriptor, durable replacement, logs of lines that only grow.

Every name is one component and is opened without following links, so nothing planted in the tree leads out of it.
A file that is absent is None; whatever else is wrong with it is an exception. Blocking; knows no documents.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from memo.errors import Corrupt, Unavailable

_FIRST_BLOCK = 4096
_LARGEST_BLOCK = 1 << 18
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # NONBLOCK: a planted FIFO must not hang us
_PLANTED = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)


@contextmanager
def disk_errors(action: str) -> Iterator[None]:
    """Turn what the kernel says into our errors. Only for what, when it fails, has changed nothing."""
    try:
        yield
    except OSError as error:
        if error.errno in _PLANTED:
            raise Corrupt(f"cannot {action}: something else is in its place ({error.strerror})") from error
        raise Unavailable(f"cannot {action}: {error.strerror}") from error


class Directory:
    """Owns one open directory. `place` is its path in the store, for messages."""

    def __init__(self, fd: int, place: str) -> None:
        self.fd = fd
        self.place = place

    @classmethod
    def open(cls, path: str) -> Directory:
        """Open the root of a store. Only here are links followed: the path comes from whoever runs the program."""
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
        return name if self.place == "." else f"{self.place}/{name}"

    def child(self, name: str) -> Directory | None:
        """Open a directory below this one; None if there is none."""
        with disk_errors(f"open {self.where(name)}"):
            try:
                fd = os.open(name, _READ | os.O_DIRECTORY, dir_fd=self.fd)
            except FileNotFoundError:
                return None
        return Directory(fd, self.where(name))

    def make_child(self, name: str) -> Directory:
        """Open a directory below this one, made durably if need be."""
        found = self.child(name)
        if found is not None:
            return found
        with disk_errors(f"make {self.where(name)}"), suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.fd)
            os.fsync(self.fd)
        found = self.child(name)
        if found is None:
            raise Unavailable(f"cannot make {self.where(name)}: it vanished")
        return found

    def descend(self, *names: str) -> Directory | None:
        here: Directory | None = Directory(os.dup(self.fd), self.place)
        for name in names:
            if here is None:
                return None
            with here:
                here = here.child(name)
        return here

    def make_path(self, *names: str) -> Directory:
        here = Directory(os.dup(self.fd), self.place)
        for name in names:
            with here:
                here = here.make_child(name)
        return here

    def names(self) -> list[str]:
        with disk_errors(f"list {self.place}"):
            return sorted(os.listdir(self.fd))

    def stat(self, name: str) -> os.stat_result | None:
        with disk_errors(f"look at {self.where(name)}"):
            try:
                return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            except FileNotFoundError:
                return None

    def is_file(self, name: str) -> bool:
        found = self.stat(name)
        return found is not None and stat.S_ISREG(found.st_mode)

    def open_file(self, name: str, flags: int = 0) -> int | None:
        """Return a descriptor of a regular file, None if it is absent. Anything but a regular file is Corrupt."""
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
        """Raise Corrupt if the name is there and is anything but a regular file."""
        fd = self.open_file(name)
        if fd is not None:
            os.close(fd)

    def read(self, name: str, limit_bytes: int | None = None) -> bytes | None:
        """Return the whole file, None if it is absent, one byte more than the limit if it is longer."""
        fd = self.open_file(name)
        if fd is None:
            return None
        with closing(fd), disk_errors(f"read {self.where(name)}"):
            return read_all(fd, limit_bytes)

    def stage(self, name: str, *parts: bytes) -> None:
        """Write a new file and make its bytes durable; whatever had the name is gone."""
        with disk_errors(f"write {self.where(name)}"):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.fd)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600, dir_fd=self.fd)
            with closing(fd):
                for part in parts:
                    write_all(fd, part)
                os.fsync(fd)

    def move(self, name: str, target: Directory, new_name: str) -> None:
        """Put a staged file in its place, durably. A reader sees the old one or the new one, never half of either."""
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
        with disk_errors(f"sync {self.place}"):
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
    """Return where the last complete line ends; what stands after it is the rest of a write that never finished."""
    end, block = os.fstat(fd).st_size, _FIRST_BLOCK
    while end > 0:
        start, block = max(0, end - block), min(block * 4, _LARGEST_BLOCK)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def append_lines(fd: int, lines: bytes, end: int) -> int:
    """Write complete lines at `end`, durably; return the new end. If it cannot, nothing is left of them."""
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
    """Yield the lines that end at or before `end`, the last one first, without their newlines."""
    rest, size = b"", _FIRST_BLOCK
    is_last = True
    while end > 0:
        start, size = max(0, end - size), min(size * 4, _LARGEST_BLOCK)
        first, *others = (os.pread(fd, end - start, start) + rest).split(b"\n")
        if is_last:
            others, is_last = others[:-1], False  # the text after the last newline is nothing
        if start > 0:
            rest = first
        else:
            others.insert(0, first)
        yield from reversed(others)
        end = start
