"""One page of a directory: its entries after a name, in the order of their names.

A directory may have a million entries, and only those of the page are held in memory. Each page reads the whole
directory, because the kernel lists names in no particular order.
"""

from __future__ import annotations

import os
import stat
import time

from . import paths, wire
from .failure import Failure, explain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_PATHS_BYTES = 1_048_576
"""The bound of a page's paths: every entry repeats the path of its directory."""
DEADLINE_S = 10.0
_CHECK_EVERY = 1_024


def list_directory(path: str, after: str, limit: int, is_cancelled: Callable[[], bool]) -> tuple[dict[str, Any], bytes]:
    """Return a page of packed entries, and whether more follow. A link is an entry itself and is not followed."""
    fd = _open(path)
    try:
        page = Page(after.encode("utf-8", "surrogateescape"), limit, len(path.encode("utf-8", "surrogateescape")))
        deadline = time.monotonic() + DEADLINE_S
        with os.scandir(fd) as entries:
            for position, entry in enumerate(entries):
                page.add(os.fsencode(entry.name))
                if position % _CHECK_EVERY == 0 and (is_cancelled() or time.monotonic() > deadline):
                    raise Failure("ToolTimeout", f"cannot list {path}: it took longer than {DEADLINE_S:g} s")
        names = page.close()
        packed = b"".join(_pack(fd, name) for name in names)
        last = names[-1].decode("utf-8", "surrogateescape") if page.has_more else ""
        return {"next": last}, packed
    except OSError as error:
        raise explain(error, "list", path) from None
    finally:
        os.close(fd)


def _open(path: str) -> int:
    named = paths.open_any(path, "list")
    try:
        if not stat.S_ISDIR(os.fstat(named).st_mode):
            raise Failure("NotADirectory", f"cannot list {path}: it is not a directory; stat it instead")
        return os.open(b"/proc/self/fd/%d" % named, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise explain(error, "list", path) from None
    finally:
        os.close(named)


class Page:
    """The smallest names after a given one, within the bounds of an answer."""

    def __init__(self, after: bytes, limit: int, directory_bytes: int) -> None:
        self._after = after
        self._limit = min(limit, wire.MAX_PAGE_ENTRIES)
        self._directory_bytes = directory_bytes
        self._names: list[bytes] = []
        self._last: bytes | None = None
        self.has_more = False

    def add(self, name: bytes) -> None:
        if name <= self._after:
            return
        if self._last is not None and name > self._last:
            self.has_more = True
            return
        self._names.append(name)
        if len(self._names) >= 2 * self._limit:
            self._cut()

    def close(self) -> list[bytes]:
        self._cut()
        return self._names

    def _cut(self) -> None:
        """Sort the names and drop those that do not fit into the page."""
        self._names.sort()
        room, paths_room = wire.MAX_DATA_BYTES, MAX_PATHS_BYTES
        for position, name in enumerate(self._names):
            room -= wire.ENTRY.size + len(name)
            paths_room -= self._directory_bytes + 1 + len(name)
            if position >= self._limit or room < 0 or paths_room < 0:
                del self._names[position:]
                self._last = self._names[-1]
                self.has_more = True
                return


def _pack(directory: int, name: bytes) -> bytes:
    """Return one entry; nothing if it was removed in the meantime."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return b""
    return wire.ENTRY.pack(len(name), status.st_mode, status.st_size, status.st_mtime) + name
