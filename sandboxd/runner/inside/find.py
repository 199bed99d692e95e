"""Walks of the agent's directories: glob and usage. Bounded by entries, memory and a deadline; follows no links.

Each directory is opened without following links and checked by its descriptor before it is listed.
"""

from __future__ import annotations

import heapq
import os
import stat
import time

from . import files, paths
from .container_paths import WORKSPACE
from .failure import Failure
from .patterns import Pattern, expand_braces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    States = list[tuple[Pattern, frozenset[int]]]

MAX_ENTRIES = 1_000_000
MAX_PENDING_BYTES = 8_388_608
DEADLINE_S = 10.0
MAX_ANSWER_BYTES = 262_144
_INVERTED = bytes(255 - value for value in range(256))


class Walk:
    """Lists directories until the bounds are reached; then it sets `truncated` and yields no more.

    Directories still to be listed are kept as names below their parent, so that even a million take little memory.
    """

    def __init__(self) -> None:
        self._left = MAX_ENTRIES
        self._room = MAX_PENDING_BYTES
        self._deadline = time.monotonic() + DEADLINE_S
        self._pending: list[tuple[bytes, bytearray, Any]] = []
        self.truncated = False

    def add(self, parent: bytes, names: bytearray, context: Any) -> None:
        """Queue directories for listing; each name ends with a NUL. `context` is returned with each of them."""
        if not names:
            return
        self._room -= len(names) + len(parent)
        if self._room < 0:
            self.truncated = True
        else:
            self._pending.append((parent, names, context))

    def take(self) -> tuple[bytes, str, Any] | None:
        """Return a directory to list next, its name in its parent, and the context it was added with."""
        if not self._pending or self.truncated:
            return None
        parent, names, context = self._pending[-1]
        start = names.rfind(b"\0", 0, -1) + 1
        name = bytes(names[start:-1])
        del names[start:]
        self._room += len(name) + 1
        if not names:
            self._pending.pop()
            self._room += len(parent)
        return parent + b"/" + name, os.fsdecode(name), context

    def list(self, directory: bytes) -> Iterator[os.DirEntry[str]]:
        """Yield the entries of one directory. A missing or unreadable directory has none."""
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        try:
            if not paths.is_inside(paths.real_path(fd)):
                return
            with os.scandir(fd) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0 or (self._left % 256 == 0 and time.monotonic() > self._deadline):
                        self.truncated = True
                    if self.truncated:
                        return
                    yield entry
        except OSError:
            return
        finally:
            os.close(fd)


class Newest:
    """The newest paths, within the bound of an answer."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._heap: list[tuple[float, bytes]] = []  # a heap with the oldest first, and of those the last by name
        self.is_complete = True

    def add(self, modified_at: float, path: bytes) -> None:
        # inverted, which reverses the order of names; no name has a NUL, so the end sorts above every character
        heapq.heappush(self._heap, (modified_at, path.translate(_INVERTED) + b"\xff"))
        self._bytes += len(path) + 1
        while self._heap and (len(self._heap) > self._limit or self._bytes - len(self._heap[0][1]) > MAX_ANSWER_BYTES):
            self._bytes -= len(heapq.heappop(self._heap)[1])
            self.is_complete = False

    def paths(self) -> list[bytes]:
        return [inverted[:-1].translate(_INVERTED) for _when, inverted in sorted(self._heap, reverse=True)]


def glob(pattern: str, path: str, limit: int) -> tuple[dict[str, Any], bytes]:
    """Return the files below `path` that match, newest first; their paths are the data, separated by NUL."""
    if pattern.startswith("/"):
        path, pattern = _split_absolute(pattern)
    patterns = [Pattern(text) for text in expand_braces(pattern)]
    fd = paths.open_any(path, "glob in")
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise Failure("NotADirectory", f"cannot glob in {path}: it is not a directory; use its parent directory")
        base = paths.real_path(fd)
    finally:
        os.close(fd)
    walk, newest = Walk(), Newest(limit)
    _match_entries(walk, newest, base, [(one, one.start) for one in patterns])
    while (found := walk.take()) is not None:
        directory, name, above = found
        states = [(one, one.step(state, name)[0]) for one, state in above]
        _match_entries(walk, newest, directory, [(one, state) for one, state in states if state])
    return _bounded(newest.paths(), walk.truncated or not newest.is_complete)


def _match_entries(walk: Walk, newest: Newest, directory: bytes, states: States) -> None:
    deeper = bytearray()
    for entry in walk.list(directory):
        steps = [one.step(state, entry.name) for one, state in states]
        if entry.is_dir(follow_symlinks=False):
            if any(state for state, _match in steps):
                deeper += os.fsencode(entry.name) + b"\0"
        elif any(match for _state, match in steps):
            newest.add(_modified_at(entry), directory + b"/" + os.fsencode(entry.name))
    walk.add(directory, deeper, states)


def _split_absolute(pattern: str) -> tuple[str, str]:
    """Split an absolute pattern before its first special character; the walk starts at the part before it."""
    parts = pattern.split("/")
    plain = 1
    while plain < len(parts) - 1 and not any(character in parts[plain] for character in "*?[{"):
        plain += 1
    return "/".join(parts[:plain]) or "/", "/".join(parts[plain:])


def _modified_at(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _bounded(found: list[bytes], truncated: bool) -> tuple[dict[str, Any], bytes]:
    kept: list[bytes] = []
    room = MAX_ANSWER_BYTES
    for full in found:
        text = full.decode("utf-8", "replace").encode("utf-8")
        room -= len(text) + 1
        if room < 0:
            break
        kept.append(text)
    return {"count": len(kept), "truncated": truncated or len(kept) < len(found)}, b"\0".join(kept)


def measure_usage() -> tuple[dict[str, Any], bytes]:
    """Return what the workspace and /var/tmp contain, without the memo mirror, which does not belong to the agent.

    Each hard link of a file counts its share: all of them are in the workspace, because links cannot cross filesystems.
    """
    walk = Walk()
    total = inodes = 0.0
    walk.add(b"/var", bytearray(b"tmp\0"), None)
    directory = workspace = WORKSPACE.encode()
    while True:
        deeper = bytearray()
        for entry in walk.list(directory):
            if directory == workspace and entry.name == "memo":
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            links = 1
            if stat.S_ISDIR(status.st_mode):
                deeper += os.fsencode(entry.name) + b"\0"
            else:
                links = max(1, status.st_nlink)
            total += status.st_blocks * 512 / links
            inodes += 1 / links
        walk.add(directory, deeper, None)
        found = walk.take()
        if found is None:
            used = max(0, round(total) - files.doubled_bytes())
            return {"bytes": used, "inodes": round(inodes)}, b""
        directory = found[0]
