"""Bells: how a feed hears of a commit without looking for it.

`LocalBell` rings inside one event loop. `FileBell` rings across processes: a writer reads a file, and the kernel wakes
whoever watches it; a slow periodic wake-up is the safety net for a writer that died before it could ring.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from pathlib import Path

import anyio

from memo.errors import Unavailable

_log = logging.getLogger("memo.bell")


class LocalBell:
    def __init__(self) -> None:
        self._rung = 0
        self._event = anyio.Event()

    def ring(self) -> None:
        self._rung += 1
        event, self._event = self._event, anyio.Event()
        event.set()

    def listen(self) -> LocalListener:
        return LocalListener(self)

    async def rung_after(self, heard: int) -> int:
        while self._rung == heard:
            await self._event.wait()
        return self._rung

    @property
    def rung(self) -> int:
        return self._rung


class LocalListener:
    def __init__(self, bell: LocalBell) -> None:
        self._bell = bell
        self._heard = bell.rung

    async def wait(self) -> None:
        self._heard = await self._bell.rung_after(self._heard)

    def close(self) -> None:
        self._bell.ring()  # whoever still waits wakes up and finds the stream closed


class FileBell:
    """Owns the open file that is read. Ring from any thread, after the commit is visible to readers.

    A ring is a read, not a write: a write makes an inode dirty, and the sync of the next commit has to wait for it.
    """

    _fd = -1

    def __init__(self, path: Path, check_s: float) -> None:
        self.path = path
        self.check_s = check_s
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.pwrite(self._fd, b"!", 0)  # there must be something to read: reading nothing wakes nobody
        except OSError as error:
            self.close()
            raise Unavailable(f"cannot open the bell of the change feed: {error.strerror}") from error

    def ring(self) -> None:
        try:
            os.pread(self._fd, 1, 0)
        except OSError as error:
            # The change is committed, so its writer must not hear of a failure; the periodic look will find it.
            _log.warning("cannot ring %s: %s", self.path.name, error.strerror)

    def listen(self) -> FileListener:
        return FileListener(self.path, self.check_s)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_IN_ACCESS = 0x1


class FileListener:
    """Owns one inotify descriptor. Where the kernel has none, only the periodic wake-up is left, and is quicker."""

    WITHOUT_INOTIFY_CHECK_S = 0.2

    _fd = -1

    def __init__(self, path: Path, check_s: float) -> None:
        self._fd = _watch(path)
        self._check_s = check_s if self._fd >= 0 else min(check_s, self.WITHOUT_INOTIFY_CHECK_S)

    async def wait(self) -> None:
        with anyio.move_on_after(self._check_s):
            if self._fd < 0:
                await anyio.sleep_forever()
            try:
                await anyio.wait_readable(self._fd)
            except anyio.ClosedResourceError:
                return  # closed by another task; the stream sees that for itself
            os.read(self._fd, 65_536)  # any number of rings is one wake-up: the feed reads all there is

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            anyio.notify_closing(fd)
            os.close(fd)

    def __del__(self) -> None:
        if self._fd >= 0:  # dropped without aclose: nobody can be waiting, so there is nobody to notify
            os.close(self._fd)


def _watch(path: Path) -> int:
    """Return an inotify descriptor on the file, or -1 where there is none to be had."""
    if not sys.platform.startswith("linux"):
        return -1
    libc = ctypes.CDLL(None)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _IN_ACCESS) < 0:
        os.close(fd)
        return -1
    return fd
