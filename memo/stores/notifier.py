"""Notifiers wake a change feed after a commit, without polling.

`LocalNotifier` works within one event loop. `FileNotifier` works across processes: a writer reads one byte of a file,
and inotify wakes every process that watches it. A slow periodic wake-up covers a writer that died before notifying.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from pathlib import Path

import anyio

from memo.errors import Unavailable

_log = logging.getLogger("memo.stores")


class LocalNotifier:
    def __init__(self) -> None:
        self._count = 0
        self._event = anyio.Event()

    def notify(self) -> None:
        self._count += 1
        event, self._event = self._event, anyio.Event()
        event.set()

    def listen(self) -> LocalListener:
        return LocalListener(self)

    async def wait_after(self, seen: int) -> int:
        while self._count == seen:
            await self._event.wait()
        return self._count

    @property
    def count(self) -> int:
        return self._count


class LocalListener:
    def __init__(self, notifier: LocalNotifier) -> None:
        self._notifier = notifier
        self._seen = notifier.count

    async def wait(self) -> None:
        self._seen = await self._notifier.wait_after(self._seen)

    def close(self) -> None:
        self._notifier.notify()  # wakes every waiting stream; this one then notices that it is closed


class FileNotifier:
    """Owns the open file. Call `notify` from any thread, after the commit is visible to readers.

    Notifying reads instead of writing: a write dirties the inode, and the sync of the next commit would wait for it.
    """

    _fd = -1

    def __init__(self, path: Path, check_s: float) -> None:
        self.path = path
        self.check_s = check_s
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.pwrite(self._fd, b"!", 0)  # reading an empty file would not wake a watcher
        except OSError as error:
            self.close()
            raise Unavailable(f"cannot open {path.name}, which wakes the change feed: {error.strerror}") from error

    def notify(self) -> None:
        try:
            os.pread(self._fd, 1, 0)
        except OSError as error:
            # The change is committed, so this must not fail the write; the periodic wake-up finds the change.
            _log.warning("cannot notify readers through %s: %s", self.path.name, error.strerror)

    def listen(self) -> FileListener:
        return FileListener(self.path, self.check_s)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_IN_ACCESS = 0x1


class FileListener:
    """Owns one inotify descriptor. If the kernel offers none, it relies on a more frequent periodic wake-up."""

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
                return  # closed by another task; the stream checks for that itself
            os.read(self._fd, 65_536)  # several notifications make one wake-up: the feed reads all new changes

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            anyio.notify_closing(fd)
            os.close(fd)

    def __del__(self) -> None:
        if self._fd >= 0:  # dropped without aclose: no task can be waiting for it
            os.close(self._fd)


def _watch(path: Path) -> int:
    """Return an inotify descriptor on the file, or -1 where inotify is not available."""
    if not sys.platform.startswith("linux"):
        return -1
    libc = ctypes.CDLL(None)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _IN_ACCESS) < 0:
        os.close(fd)
        return -1
    return fd
