"""Sessions in session.jsonl as other programs of this layout write it: a line `init`, then lines `turn` and `update`.

Such a file says who and when, but not how much of messages.jsonl counts: all complete lines do. It is only read here.
Our next write appends a line with the totals, after which the session is like any other.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from memo.errors import Corrupt, InvalidContent, InvalidKey
from memo.ids import SessionRef
from memo.sessions import Usage
from memo.stores.filesystem.directory import Directory, closing, disk_errors, end_of_lines, read_all
from memo.stores.filesystem.layout import ARCHIVES, MESSAGES, SESSION, archive_name
from memo.stores.filesystem.session_state import SessionRecord, SessionState, head_of, state_of

_ARCHIVE = re.compile(r"Archive ID:\s*(\d{4,8})\b")
_PLACEHOLDER = "[Conversation compacted at "
_BYTES_PER_TOKEN = 4


def replay(directory: Directory, ref: SessionRef, content: bytes) -> SessionRecord:
    """Return the session that these complete lines describe. A line that is not JSON raises Corrupt and is named."""
    head: dict[str, Any] | None = None
    state = SessionState(updated_at=0)
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            if head is None:
                head = event
                state = replace(state, updated_at=head_of(event, ref).created_at)
            state = _after(state, event)
        except (ValueError, KeyError, TypeError, AttributeError, InvalidKey, InvalidContent):
            raise Corrupt(f"cannot read {directory.where(SESSION)}: line {number} is damaged") from None
    if head is None:
        raise Corrupt(f"cannot read {directory.where(SESSION)}: it is empty")
    return replace(head_of(head, ref), state=_measured(directory, state))


def _after(state: SessionState, event: dict[str, Any]) -> SessionState:
    if "state" in event:
        return state_of(event)
    at = event.get("updatedAt")
    if at is not None:
        state = replace(state, updated_at=max(state.updated_at, int(at) * 1000))
    if event.get("type") == "turn":
        state = replace(state, turns=state.turns + 1, tokens=state.tokens + Usage.parse(event).total)
    return state


def _measured(directory: Directory, state: SessionState) -> SessionState:
    """Return the state with what messages.jsonl and the archives hold now. Its tokens are estimated from its size."""
    fd = directory.open_file(MESSAGES)
    if fd is None:
        return state
    with closing(fd), disk_errors(f"read {directory.where(MESSAGES)}"):
        end = end_of_lines(fd)
        content = read_all(fd)
    count = content.count(b"\n")
    if end < len(content):
        where = directory.where(MESSAGES)
        raise Corrupt(f"cannot read {where}: line {count + 1} does not end with a newline; add one if it is complete")
    archive = _archive_of(content.partition(b"\n")[0])
    first = sum(_archived(directory, archive)) if archive else 1
    return replace(
        state, count=count, message_tokens=end // _BYTES_PER_TOKEN, bytes=end, first=max(first, 1), archive=archive
    )


def _archive_of(line: bytes) -> int:
    """Return the number of the archive that the first message stands for, or 0."""
    try:
        text = json.loads(line).get("content")
    except (ValueError, AttributeError):
        return 0  # reading the message reports it
    if not isinstance(text, str) or not text.startswith(_PLACEHOLDER):
        return 0
    found = _ARCHIVE.search(text)
    return int(found[1]) if found else 0


def _archived(directory: Directory, last: int) -> Iterator[int]:
    """Yield how many messages each archive adds: all of the first, and all but the leading summary of the others."""
    archives = directory.child(ARCHIVES)
    if archives is None:
        return
    with archives:
        for number in range(1, last + 1):
            fd = archives.open_file(archive_name(number))
            if fd is not None:
                with closing(fd), disk_errors(f"read {archives.where(archive_name(number))}"):
                    yield _lines_of(fd) - (number > 1)


def _lines_of(fd: int) -> int:
    os.lseek(fd, 0, os.SEEK_SET)
    return read_all(fd).count(b"\n")
