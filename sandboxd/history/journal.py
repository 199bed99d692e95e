"""EventJournal: events on their way to the database, one line each, in two files that are written in turn.

A line is in the kernel when `append` returns, so it survives the end of the process, however that comes; it does not
survive a power cut. A file is emptied once the database has everything in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from sandboxd.permissions import PRIVATE_FILE, tighten

NAMES = ("events-a.journal", "events-b.journal")


class _JournalFile:
    """One of the two files. `last` is the id of its newest line; 0 if it is empty."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.descriptor = os.open(path, flags, PRIVATE_FILE)
        tighten(path)
        self.size = os.fstat(self.descriptor).st_size
        self.last = 0

    def append(self, number: int, line: bytes) -> None:
        written = 0
        try:
            written = os.write(self.descriptor, line)
        finally:
            if written != len(line):  # a full disk: no half line may stay
                with contextlib.suppress(OSError):
                    os.ftruncate(self.descriptor, self.size)
        if written != len(line):
            raise OSError("the line was not written completely")
        self.size += written
        self.last = number

    def empty(self) -> None:
        os.ftruncate(self.descriptor, 0)
        self.size = self.last = 0

    def lines(self) -> Iterator[bytes]:
        """Return the complete lines. A write that was cut off leaves a part without a line feed, which is dropped."""
        content = bytearray()
        while part := os.pread(self.descriptor, 1 << 20, len(content)):
            content += part
        *lines, rest = bytes(content).split(b"\n")
        if rest:
            os.ftruncate(self.descriptor, self.size - len(rest))
            self.size -= len(rest)
        return iter(lines)


class EventJournal:
    """Owns the two files in a directory. Everything raises OSError if the disk refuses."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: list[_JournalFile] = []
        self._active = 0

    def open(self) -> list[bytes]:
        """Open the files, and return the lines that an earlier daemon left in them."""
        self._files = [_JournalFile(self._directory / name) for name in NAMES]
        return [line for file in self._files for line in file.lines()]

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop().descriptor)

    def hold(self, number: int) -> None:
        """Keep what the files have now until the database has this id."""
        for file in self._files:
            if file.size:
                file.last = number

    def append(self, number: int, line: bytes) -> None:
        if self._files:
            self._files[self._active].append(number, line)

    def turn(self) -> None:
        """Write to the other file from now on if that is empty, so that this one can be emptied soon."""
        if self._files and not self._files[1 - self._active].size:
            self._active = 1 - self._active

    def release(self, number: int) -> None:
        """Empty every file whose newest line has at most this id: the database has all of it."""
        for file in self._files:
            if file.size and file.last <= number:
                file.empty()
