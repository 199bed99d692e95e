"""Reads and edits text files in bounded memory, whatever they contain: one huge line, millions of tiny ones, holes.

A file is scanned in blocks through one descriptor. The scan is bounded, and a count of lines that stopped at the bound
says so. Each function here is one job for a worker thread.
"""

from __future__ import annotations

import os
import threading

from . import paths
from .edit_rules import MOST_LINES, why_no_edit, why_no_match
from .failure import Failure, explain
from .files import Draft, too_large

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    Bytes = bytes | bytearray | memoryview

MAX_EDIT_BYTES = 10_485_760
MAX_SCAN_BYTES = 67_108_864
MAX_LINE_CHARACTERS = 2_000
MAX_SLICE_BYTES = 262_144
SNIFF_BYTES = 8_192
BLOCK_BYTES = 65_536
FEW = 64
MANY_AT_ONCE = 1_024
_LINE_BYTES = MAX_LINE_CHARACTERS * 4

# one edit at a time: of two concurrent edits of one file, one would be lost
_editing = threading.Lock()


def read_text(path: str, first_line: int, limit: int) -> tuple[dict[str, Any], bytes]:
    """Return some lines, joined by newlines. The length of a line, the total size and the scan are bounded."""
    fd, status = paths.open_regular(path, "read", public=True)
    try:
        head = os.pread(fd, SNIFF_BYTES, 0)
        if head.count(0) > len(head) // 100:
            message = f"cannot read {path} as text: it is a binary file of {status.st_size} bytes; use Bash"
            raise Failure("InvalidRequest", message)
        start, total, is_exact = _survey(fd, first_line)
        data, count, is_cut = _collect(fd, start, limit) if start >= 0 else (b"", 0, False)
    except OSError as error:
        raise explain(error, "read", path) from None
    finally:
        os.close(fd)
    is_truncated = is_cut or not is_exact or first_line - 1 + count < total
    return {"first": first_line, "count": count, "total": total, "exact": is_exact, "truncated": is_truncated}, data


def _blocks(fd: int, start: int, stop: int) -> Iterator[bytes]:
    while start < stop:
        block = os.pread(fd, min(BLOCK_BYTES, stop - start), start)
        if not block:
            return
        start += len(block)
        yield block


def _survey(fd: int, first_line: int) -> tuple[int, int, bool]:
    """Return the offset of a line (-1 if it is missing), the number of lines counted, and whether that is all."""
    start = 0 if first_line == 1 else -1
    ends = position = 0  # line ends so far, and where the scan is
    last = b"\n"
    for block in _blocks(fd, 0, MAX_SCAN_BYTES):
        found = block.count(b"\n")
        missing = first_line - 1 - ends
        if start < 0 and found >= missing:
            start = position + len(block) - len(block.split(b"\n", missing)[-1])
        ends += found
        position += len(block)
        last = block[-1:]
    is_all = position < MAX_SCAN_BYTES or not os.pread(fd, 1, position)
    total = ends + (last != b"\n")
    return start if first_line <= total else -1, total, is_all


def _collect(fd: int, start: int, limit: int) -> tuple[bytes, int, bool]:
    """Return up to `limit` lines from an offset, their number, and whether any were cut or left out."""
    kept = bytearray()  # not a list of lines, which would take 80 bytes more for each of up to a quarter of a million
    count = 0
    is_cut = False
    line = b""
    for block in _blocks(fd, start, MAX_SCAN_BYTES):
        if count == limit:
            break
        pieces = block.split(b"\n")
        pieces[0] = line + pieces[0]
        line = pieces.pop()[: _LINE_BYTES + 1]
        for piece in pieces:
            if count == limit:
                break
            text, was_cut = _cut_line(piece)
            if len(kept) + len(text) >= MAX_SLICE_BYTES:
                return bytes(kept[:-1]), count, True
            kept += text + b"\n"
            count += 1
            is_cut = is_cut or was_cut
    else:
        if line and count < limit:  # the last line, without a newline
            text, was_cut = _cut_line(line)
            if len(kept) + len(text) >= MAX_SLICE_BYTES:
                return bytes(kept[:-1]), count, True
            return bytes(kept) + text, count + 1, is_cut or was_cut
    return bytes(kept[:-1]), count, is_cut


def _cut_line(line: bytes) -> tuple[bytes, bool]:
    text = line[:_LINE_BYTES].decode("utf-8", "replace")
    is_cut = len(text) > MAX_LINE_CHARACTERS or len(line) > _LINE_BYTES
    return text[:MAX_LINE_CHARACTERS].encode("utf-8"), is_cut


def edit(path: str, old: Bytes, new: Bytes, replace_all: bool) -> dict[str, Any]:
    """Replace text in a file atomically: a reader sees the old file or the new one."""
    _refuse_for(why_no_edit(path, old, new))
    with _editing:
        fd, status = paths.open_regular(path, "edit")
        try:
            if status.st_size > MAX_EDIT_BYTES:
                raise Failure("InvalidRequest", too_large("edit", path, status.st_size, MAX_EDIT_BYTES))
            found, size = _replace(fd, old, b"", lambda _piece: None)
            lines = _match_lines(fd, old) if found > 1 and not replace_all else ()
            _check_found(path, found, size, size + found * (len(new) - len(old)), replace_all, lines)
            draft = Draft(path, False, "edit")  # without its size: the old file is read until the new one is complete
            try:
                replaced, size = _replace(fd, old, new, draft.write)
                # the file may have been written to since the matches were counted
                _check_found(path, replaced, size, size + replaced * (len(new) - len(old)), replace_all)
                return {"replacements": replaced, "size": draft.commit()["size"]}
            finally:
                draft.discard()
        except OSError as error:
            raise explain(error, "edit", path) from None
        finally:
            os.close(fd)


def _check_found(path: str, found: int, size: int, new_size: int, replace_all: bool, lines: Sequence[int] = ()) -> None:
    if size > MAX_EDIT_BYTES:
        raise Failure("InvalidRequest", too_large("edit", path, size, MAX_EDIT_BYTES))
    _refuse_for(why_no_match(path, found, replace_all, lines))
    if new_size > MAX_EDIT_BYTES + size:
        most = MAX_EDIT_BYTES + size
        raise Failure("InvalidRequest", f"cannot edit {path}: the result would exceed {most} bytes")


def _refuse_for(reason: str | None) -> None:
    if reason is not None:
        raise Failure("InvalidRequest", reason)


def _replace(fd: int, old: Bytes, new: Bytes, write: Callable[[Bytes], object]) -> tuple[int, int]:
    """Write a file with every match replaced; return the number of matches and the size of the file as it was."""
    found = size = 0
    window = bytearray()
    for block in _blocks(fd, 0, MAX_EDIT_BYTES + 1):
        size += len(block)
        window += block
        matches = window.count(old)
        found += matches
        if matches <= FEW:
            start = 0
            for _ in range(matches):
                end = window.find(old, start)
                write(window[start:end])
                write(new)
                start = end + len(old)
        else:  # many matches in a window are short
            pieces = bytes(window).split(old)
            for first in range(0, matches, MANY_AT_ONCE):
                some = pieces[first : min(first + MANY_AT_ONCE, matches)]
                write(bytes(new).join([*some, b""]))
            start = len(window) - len(pieces[-1])
        safe = max(start, len(window) - len(old) + 1)  # a match may begin after this and end in the next block
        write(window[start:safe])
        del window[:safe]
    write(window)
    return found, size


def _match_lines(fd: int, old: Bytes) -> list[int]:
    """Return the lines on which the first matches begin, counted from 1."""
    lines: list[int] = []
    line = 1  # of the first byte of the window
    window = bytearray()
    for block in _blocks(fd, 0, MAX_EDIT_BYTES + 1):
        window += block
        start = 0
        while (found := window.find(old, start)) >= 0:
            lines.append(line + window.count(b"\n", 0, found))
            if len(lines) == MOST_LINES:
                return lines
            start = found + len(old)
        safe = max(start, len(window) - len(old) + 1)
        line += window.count(b"\n", 0, safe)
        del window[:safe]
    return lines
