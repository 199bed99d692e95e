"""Disk space set aside in the data directory, so that what frees space works on a full disk.

It is held as preallocated files, which keep bytes and inodes. They are spent one by one on a write that leads to
freed space, and made again once there is room. While some are missing the daemon takes on nothing new.
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
"""At most one part in so many of a small filesystem."""
_HEADROOM_BYTES = 2 * PIECE_BYTES
_HEADROOM_INODES = 16


class Reserve:
    """Owns the directory of pieces. Every method is a few system calls, so none needs a thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_whole = False

    @property
    def is_whole(self) -> bool:
        """Whether all of it is held: if not, the disk is or was full."""
        return self._is_whole

    def fill(self, *, partly: bool = False) -> bool:
        """Make what is missing if there is room for more than that, or `partly` what fits. True: it is whole."""
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
        # A filesystem that makes inodes as it goes says it has none at all.
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
        """Give one piece back to the filesystem; return False if none is left."""
        held = self._pieces()
        if not held:
            return False
        if self._is_whole:
            _log.warning("the disk is full: the reserve is spent on freeing space, and nothing new is taken on")
        self._is_whole = False
        (self._directory / max(held)).unlink(missing_ok=True)
        return True

    def has_room(self) -> bool:
        """Say whether anything new may be taken on: the reserve is held, and there is room beside it."""
        return (self._is_whole or self.fill()) and not self._is_short()

    def spend_if_short(self) -> None:
        """Give back everything if the disk is full: a daemon that starts needs a little room."""
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
        """Do what leads to freed space. On a full disk, try again with one piece more until it succeeds."""
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
