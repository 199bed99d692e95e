"""Removes a directory and everything below it, in short steps: any width and depth, no link followed.

It works on descriptors. A directory that is swapped for a link is not entered, and one that lies too deep is moved up
instead, so that the number of open descriptors is bounded.
"""

from __future__ import annotations

import errno
import os
import time

from . import names, paths
from .failure import Failure, explain

DEADLINE_S = 300.0
STEP_S = 0.02
MAX_LEVELS = 16
MAX_PASSES = 10
"""How often a directory is listed again because entries were created in the meantime."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SWAPPED = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Another process removed or replaced the entry. The next pass handles whatever is there then."""


class _Level:
    """A directory being emptied, and the position of its listing."""

    __slots__ = ("entries", "fd", "name", "passes")

    def __init__(self, fd: int, name: bytes) -> None:
        self.fd = fd
        self.name = name
        self.passes = 0
        self.entries = os.scandir(fd)

    def close(self) -> None:
        self.entries.close()
        os.close(self.fd)


class TreeRemoval:
    """Call `step` until it returns True. After an error or a cancellation, `close` leaves what is not removed yet."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._deadline = time.monotonic() + DEADLINE_S
        self._levels: list[_Level] = []
        self._has_begun = self._is_gone = False
        self._parent, self._name = paths.open_parent(path, "remove")

    def step(self) -> bool:
        """Remove entries for a short time; return whether everything is gone."""
        until = time.monotonic() + STEP_S
        try:
            while not self._is_gone:
                if self._levels:
                    self._remove_next(self._levels[-1])
                else:
                    self._begin()
                now = time.monotonic()
                if now > self._deadline and not self._is_gone:
                    why = f"it took longer than {DEADLINE_S:g} s, and part of it is removed; remove the rest again"
                    raise Failure("ToolTimeout", f"cannot remove {self._path}: {why}")
                if now > until:
                    break
        except OSError as error:
            raise explain(error, "remove", self._path_of(error)) from None
        return self._is_gone

    def close(self) -> None:
        """Close every descriptor. Safe to call again."""
        while self._levels:
            self._levels.pop().close()
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1

    def _begin(self) -> None:
        """Remove the name itself, or enter it. Repeated if another process replaces it in the meantime."""
        try:
            names.remove_name(self._parent, self._name)
            self._is_gone = True
        except FileNotFoundError:
            if not self._has_begun:
                raise
            self._is_gone = True
        except NotADirectoryError:
            pass
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            self._descend(self._parent, self._name)
        self._has_begun = True

    def _remove_next(self, level: _Level) -> None:
        entry = next(level.entries, None)
        if entry is None:
            self._finish(level)
            return
        name = os.fsencode(entry.name)
        try:
            if entry.is_dir(follow_symlinks=False):
                os.rmdir(name, dir_fd=level.fd)
            else:
                os.unlink(name, dir_fd=level.fd)
        except _SWAPPED:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            self._descend(level.fd, name)

    def _descend(self, directory: int, name: bytes) -> None:
        if len(self._levels) >= MAX_LEVELS:
            self._move_up(directory, name)
            return
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=directory)
        except OSError as error:
            if isinstance(error, _SWAPPED) or error.errno == errno.ELOOP:
                return
            raise
        try:
            self._levels.append(_Level(fd, name))
        except OSError:
            os.close(fd)
            raise

    def _move_up(self, directory: int, name: bytes) -> None:
        top = self._levels[0]
        moved = b".removed-" + os.urandom(16).hex().encode()
        try:
            os.rename(name, moved, src_dir_fd=directory, dst_dir_fd=top.fd)
        except _SWAPPED:
            return
        top.passes = 0  # the next pass over the top is due to this, not to another process

    def _finish(self, level: _Level) -> None:
        """Remove a directory whose listing is over, or list it again if it is not empty."""
        parent = self._levels[-2].fd if len(self._levels) > 1 else self._parent
        try:
            os.rmdir(level.name, dir_fd=parent)
        except _SWAPPED:
            pass
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                error.filename = None  # the level itself, which `_path_of` names
                raise
            level.passes += 1
            if level.passes > MAX_PASSES:
                why = "entries are created in it as fast as they are removed; end the process that creates them first"
                raise Failure("DirectoryNotEmpty", f"cannot remove {self._path}: {why}") from None
            level.entries = os.scandir(level.fd)
            return
        self._levels.pop().close()

    def _path_of(self, error: OSError) -> str:
        """Return the path of the entry that cannot be removed."""
        parts = [level.name for level in self._levels[1:]]
        if self._levels and isinstance(error.filename, bytes):
            parts.append(error.filename)
        return "/".join([self._path, *(part.decode("utf-8", "surrogateescape") for part in parts)])
