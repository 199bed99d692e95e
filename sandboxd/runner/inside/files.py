"""Reading, writing and editing files for the agent. Each function here is one job for a worker thread.

A write is a temporary file in the same directory and a rename: readers see the old file or the new one. The
temporary file never stays behind, whoever gives up. Sizes are bounded before anything is read.
"""

from __future__ import annotations

import os
import stat
import threading

from . import paths
from .failure import Failure, explain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FILE_BYTES = 1_073_741_824
MAX_TEXT_BYTES = 10_485_760
MAX_LINE_CHARACTERS = 2_000
MAX_SLICE_BYTES = 262_144
SNIFF_BYTES = 8_192

# one edit at a time: two that read the same file at once would lose one of their changes
_editing = threading.Lock()


def describe(path: str, status: os.stat_result) -> dict[str, Any]:
    return {"path": path, "size": status.st_size, "mode": status.st_mode, "mtime": status.st_mtime}


def look_at(path: str) -> dict[str, Any]:
    fd = paths.open_any(path, "stat")
    try:
        return describe(path, os.fstat(fd))
    finally:
        os.close(fd)


def open_for_reading(path: str) -> tuple[int, dict[str, Any]]:
    fd, status = paths.open_regular(path, "read")
    if status.st_size > MAX_FILE_BYTES:
        os.close(fd)
        raise Failure("InvalidRequest", _too_large("read", path, status.st_size, MAX_FILE_BYTES))
    return fd, describe(path, status)


def _too_large(action: str, path: str, size: int, most: int) -> str:
    return f"cannot {action} {path}: it has {size} bytes, the most is {most}"


class Draft:
    """A file being written: a temporary file beside its target until `commit`."""

    def __init__(self, path: str, make_parents: bool, action: str = "write") -> None:
        self._action = action
        self._path = path
        self._target = paths.open_target(path, make_parents, action)
        self._name = b".sandboxd-%s.tmp" % os.urandom(8).hex().encode()
        self._size = 0
        self._fd = -1
        try:
            # the directory is already checked; O_PATH descriptors serve as dir_fd but make nothing by themselves
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._name, flags, 0o644, dir_fd=self._target.directory)
            existing = self._target.existing
            if existing is not None:
                os.fchmod(self._fd, stat.S_IMODE(existing.st_mode) & 0o777)
        except OSError as error:
            self.discard()
            raise explain(error, action, path) from None

    def write(self, data: bytes) -> int:
        if self._fd < 0:
            raise Failure("InvalidRequest", f"cannot {self._action} {self._path}: it was given up")
        self._size += len(data)
        if self._size > MAX_FILE_BYTES:
            self.discard()
            raise Failure("InvalidRequest", f"cannot {self._action} {self._path}: more than {MAX_FILE_BYTES} bytes")
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self.discard()
            raise explain(error, self._action, self._path) from None
        return len(data)

    def commit(self) -> dict[str, Any]:
        if self._fd < 0:
            raise Failure("InvalidRequest", f"cannot {self._action} {self._path}: it was given up")
        directory = self._target.directory
        try:
            status = os.fstat(self._fd)
            os.rename(self._name, self._target.name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError as error:
            self.discard()
            raise explain(error, self._action, self._path) from None
        os.close(self._fd)
        os.close(directory)
        self._fd = self._target.directory = -1
        return describe(self._path, status)

    def discard(self) -> None:
        """Leave nothing behind. Safe to call again, and after `commit`."""
        directory, self._target.directory = self._target.directory, -1
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _remove(self._name, directory)
        if directory >= 0:
            os.close(directory)


def _remove(name: bytes, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return  # the agent may remove what is in its directory


def _read_text_bytes(path: str, action: str, most: int) -> tuple[bytes, int]:
    fd, status = paths.open_regular(path, action)
    try:
        pieces = []
        left = most
        while left:
            piece = os.read(fd, min(left, 1_048_576))
            if not piece:
                break
            pieces.append(piece)
            left -= len(piece)
    except OSError as error:
        raise explain(error, action, path) from None
    finally:
        os.close(fd)
    return b"".join(pieces), status.st_size


def read_text(path: str, first_line: int, limit: int) -> dict[str, Any]:
    """Return some lines. Lines and their sum are bounded, and so is what is looked at of a large file."""
    content, size = _read_text_bytes(path, "read", MAX_TEXT_BYTES)
    if content[:SNIFF_BYTES].count(0) > len(content[:SNIFF_BYTES]) // 100:
        raise Failure("InvalidRequest", f"cannot read {path} as text: it is a binary file of {size} bytes")
    raw = content.split(b"\n")
    if raw[-1] == b"":
        raw.pop()
    truncated = size > MAX_TEXT_BYTES
    lines: list[str] = []
    room = MAX_SLICE_BYTES
    for line in raw[first_line - 1 : first_line - 1 + limit]:
        text = line[: MAX_LINE_CHARACTERS * 4].decode("utf-8", "replace")
        if len(text) > MAX_LINE_CHARACTERS or len(line) > MAX_LINE_CHARACTERS * 4:
            text = text[:MAX_LINE_CHARACTERS]
            truncated = True
        room -= len(text.encode("utf-8")) + 1
        if room < 0:
            truncated = True
            break
        lines.append(text)
    if first_line - 1 + len(lines) < len(raw):
        truncated = True
    return {"lines": lines, "first": first_line, "total": len(raw), "truncated": truncated}


def edit(path: str, old: bytes, new: bytes, replace_all: bool) -> dict[str, Any]:
    """Replace text in a file in one step: nobody sees it half edited."""
    if not old:
        raise Failure("InvalidRequest", f"cannot edit {path}: the text to replace is empty")
    if old == new:
        raise Failure("InvalidRequest", f"cannot edit {path}: the new text equals the old text")
    with _editing:
        content, size = _read_text_bytes(path, "edit", MAX_TEXT_BYTES + 1)
        if len(content) > MAX_TEXT_BYTES:
            raise Failure("InvalidRequest", _too_large("edit", path, size, MAX_TEXT_BYTES))
        found = content.count(old)
        if found == 0:
            raise Failure("InvalidRequest", f"cannot edit {path}: the text to replace is not in the file")
        if found > 1 and not replace_all:
            raise Failure("InvalidRequest", f"cannot edit {path}: the text to replace is there {found} times, not once")
        most = MAX_TEXT_BYTES + len(content)
        if len(content) + found * (len(new) - len(old)) > most:
            raise Failure("InvalidRequest", f"cannot edit {path}: the result would have more than {most} bytes")
        draft = Draft(path, False, "edit")
        draft.write(content.replace(old, new))
        return {"replacements": found, "size": draft.commit()["size"]}
