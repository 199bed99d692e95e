"""Walking the agent's directories: glob and usage. Bounded by entries and by a deadline, and follows no links.

Each directory is opened without following links and checked by its descriptor before it is listed.
"""

from __future__ import annotations

import os
import stat
import time

from . import paths
from .failure import Failure
from .patterns import Pattern, expand_braces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_ENTRIES = 1_000_000
MAX_MATCHES = 100_000
DEADLINE_S = 10.0
MAX_ANSWER_BYTES = 262_144


class Walk:
    """Lists directories until the bounds are reached; then `truncated` is set and nothing more comes."""

    def __init__(self) -> None:
        self._left = MAX_ENTRIES
        self._deadline = time.monotonic() + DEADLINE_S
        self.truncated = False

    def list(self, directory: bytes) -> Iterator[os.DirEntry[str]]:
        """Yield the entries of one directory. One that is gone or unreadable has none."""
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


def glob(pattern: str, path: str, limit: int) -> tuple[dict[str, Any], bytes]:
    """Return the files below `path` that match, newest first; their paths are the data, separated by NUL."""
    if pattern.startswith("/"):
        path, pattern = _split_absolute(pattern)
    patterns = [Pattern(text) for text in expand_braces(pattern)]
    fd = paths.open_any(path, "glob in")
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise Failure("InvalidRequest", f"cannot glob in {path}: it is not a directory")
        base = paths.real_path(fd)
    finally:
        os.close(fd)
    walk = Walk()
    found: list[tuple[float, bytes]] = []
    todo = [(base, [(one, one.start) for one in patterns])]
    while todo and not walk.truncated:
        directory, states = todo.pop()
        for entry in walk.list(directory):
            full = directory + b"/" + os.fsencode(entry.name)
            steps = [(one, *one.step(state, entry.name)) for one, state in states]
            if entry.is_dir(follow_symlinks=False):
                deeper = [(one, state) for one, state, _match in steps if state]
                if deeper:
                    todo.append((full, deeper))
            elif any(match for _one, _state, match in steps):
                found.append((_modified_at(entry), full))
                if len(found) >= MAX_MATCHES:
                    walk.truncated = True
                    break
    found.sort(key=lambda item: (-item[0], item[1]))
    return _bounded([full for _when, full in found], limit, walk.truncated)


def _split_absolute(pattern: str) -> tuple[str, str]:
    """Split an absolute pattern where its first special character is: the walk starts at what is plain before it."""
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


def _bounded(found: list[bytes], limit: int, truncated: bool) -> tuple[dict[str, Any], bytes]:
    kept: list[bytes] = []
    room = MAX_ANSWER_BYTES
    for full in found[:limit]:
        text = full.decode("utf-8", "replace").encode("utf-8")
        room -= len(text) + 1
        if room < 0:
            break
        kept.append(text)
    return {"count": len(kept), "truncated": truncated or len(kept) < len(found)}, b"\0".join(kept)


def measure_usage() -> tuple[dict[str, Any], bytes]:
    """Return what the workspace holds, without the memo mirror, which is not the agent's."""
    walk = Walk()
    total, inodes = 0, 0
    linked: set[tuple[int, int]] = set()
    todo = [b"/workspace"]
    while todo and not walk.truncated:
        directory = todo.pop()
        for entry in walk.list(directory):
            if directory == b"/workspace" and entry.name == "memo":
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                todo.append(directory + b"/" + os.fsencode(entry.name))
            elif status.st_nlink > 1:
                if (status.st_dev, status.st_ino) in linked:
                    continue
                linked.add((status.st_dev, status.st_ino))
            total += status.st_blocks * 512
            inodes += 1
    return {"bytes": total, "inodes": inodes}, b""
