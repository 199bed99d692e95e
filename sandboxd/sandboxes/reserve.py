"""Disk space reserved in the data directory, so that operations that free space work on a full disk.

It consists of preallocated files, which keep bytes and inodes. They are released one by one for a write that frees
space, and made again once there is room. While some are missing, the daemon creates no new sandboxes.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import structlog

from sandboxd.errors import HostFull

T = TypeVar("T")

_log = structlog.get_logger()

PIECES = 16
PIECE_BYTES = 1024 * 1024
_LARGEST_SHARE = 8
"""On a small filesystem the reserve takes at most this fraction: one in this many bytes."""
_HEADROOM_BYTES = 2 * PIECE_BYTES
_HEADROOM_INODES = 16


class Reserve:
    """Owns the preallocated files. Every method is a few system calls, so none needs a thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_whole = False

    @property
    def is_whole(self) -> bool:
        """Whether the reserve is complete; if not, the disk is or was full."""
        return self._is_whole

    def fill(self, *, partly: bool = False) -> bool:
        """Make the missing files if there is room, or with `partly` those that fit; return whether it is complete."""
        was_whole = self._is_whole
        try:
            self._is_whole = self._fill(partly)
        except OSError:
            self._is_whole = False
        if self._is_whole and not was_whole:
            _log.info("disk reserve is held", bytes=len(self._pieces()) * PIECE_BYTES)
        return self._is_whole

    def _fill(self, partly: bool) -> bool:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        status = os.statvfs(self._directory)
        wanted = min(PIECES, status.f_blocks * status.f_frsize // (_LARGEST_SHARE * PIECE_BYTES))
        held = self._pieces()
        missing = [name for name in map(str, range(wanted)) if name not in held]
        if not missing:
            return True
        free_bytes = status.f_bavail * status.f_frsize
        # A filesystem that creates inodes on demand reports a total of 0.
        is_short_of_inodes = status.f_files and status.f_favail < len(missing) + _HEADROOM_INODES
        fitting = max(free_bytes - _HEADROOM_BYTES, 0) // PIECE_BYTES
        is_enough = fitting >= len(missing) and not is_short_of_inodes
        if is_enough or partly:
            for name in missing[:fitting]:
                self._make(self._directory / name)
        return is_enough

    def _make(self, piece: Path) -> None:
        draft = piece.with_suffix(".new")
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, PIECE_BYTES)
            draft.rename(piece)
        except OSError:
            draft.unlink()
            raise
        finally:
            os.close(fd)

    def spend(self) -> bool:
        """Release one file; return False if none is left."""
        held = self._pieces()
        if not held:
            return False
        if self._is_whole:
            _log.warning("the disk is full: the reserve is used to free space, and no new sandboxes are created")
        self._is_whole = False
        (self._directory / max(held)).unlink(missing_ok=True)
        return True

    def has_room(self) -> bool:
        """Return whether new sandboxes may be created: the reserve is complete, and there is more room."""
        return (self._is_whole or self.fill()) and not self._is_short()

    def spend_if_short(self) -> None:
        """Release everything if the disk is full, because a starting daemon needs a little room."""
        if self._is_short():
            while self.spend():
                pass

    def _is_short(self) -> bool:
        try:
            status = os.statvfs(self._directory)
        except OSError:
            return False  # there is no directory yet
        is_short_of_inodes = bool(status.f_files) and status.f_favail < _HEADROOM_INODES
        return status.f_bavail * status.f_frsize < _HEADROOM_BYTES or is_short_of_inodes

    async def spend_on(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do work that frees space. On a full disk, release one file at a time and retry until it succeeds."""
        while True:
            try:
                return await work()
            except HostFull:
                if not self.spend():
                    raise

    def _pieces(self) -> set[str]:
        try:
            return {name for name in os.listdir(self._directory) if name.isdecimal()}
        except OSError:
            return set()
