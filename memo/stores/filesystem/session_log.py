"""session.jsonl: the owner of a session, then one line per turn with the running totals.

The last complete line is the state, so reading it takes the same time however long the session is. The state says how
much of messages.jsonl counts; bytes after that were never acknowledged. A file whose last line has no state was written
by another program (`foreign_session`).
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from dataclasses import asdict, replace
from typing import Any

from memo.errors import Corrupt, InvalidKey
from memo.ids import SessionRef
from memo.stores.filesystem import foreign_session
from memo.stores.filesystem.directory import (
    Directory,
    append_lines,
    closing,
    disk_errors,
    end_of_lines,
    lines_backwards,
    read_all,
)
from memo.stores.filesystem.layout import MESSAGES, SESSION, STAGED, STAGED_MESSAGES, Owner
from memo.stores.filesystem.session_state import SessionRecord, SessionState, head_of, state_of

_FIRST_LINE_BYTES = 4096


def load(directory: Directory, ref: SessionRef) -> SessionRecord | None:
    """Return the session of this directory, or None if it has none."""
    fd = directory.open_file(SESSION)
    if fd is None:
        return None
    with closing(fd), disk_errors(f"read {directory.where(SESSION)}"):
        first = os.pread(fd, _FIRST_LINE_BYTES, 0).partition(b"\n")[0]
        end = end_of_lines(fd)
        last = next(lines_backwards(fd, end), b"")
        is_ours = b'"state"' in last
        content = b"" if is_ours else read_all(fd)[:end]
    if not is_ours:
        return foreign_session.replay(directory, ref, content)
    try:
        head = head_of(json.loads(first), ref)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidKey):
        raise Corrupt(f"cannot read {directory.where(SESSION)}: line 1 is damaged") from None
    try:
        return replace(head, state=state_of(json.loads(last)))
    except (ValueError, KeyError, TypeError):
        number = (directory.read(SESSION) or b"").count(b"\n")
        raise Corrupt(f"cannot read {directory.where(SESSION)}: line {number} is damaged") from None


def create(directory: Directory, hidden: Directory, record: SessionRecord) -> None:
    head = {
        "type": "session",
        "tenant": record.ref.tenant,
        "session": record.ref.session,
        "user": record.user,
        "agent": record.agent,
        "created_at": record.created_at,
        "state": asdict(record.state),
    }
    hidden.stage(STAGED, _line(head))
    hidden.move(STAGED, directory, SESSION)


def append(directory: Directory, record: dict[str, Any], state: SessionState) -> None:
    _append(directory, record | {"state": asdict(state)})


def with_state(record: dict[str, Any], state: SessionState) -> dict[str, Any]:
    return record | {"state": asdict(state)}


def finish_compaction(directory: Directory, hidden: Directory, line: dict[str, Any]) -> None:
    """Move the shortened log into place and append its line, unless that is already done."""
    if hidden.stat(STAGED_MESSAGES) is not None:
        hidden.move(STAGED_MESSAGES, directory, MESSAGES)
    fd = directory.open_file(SESSION)
    if fd is None:
        raise Corrupt(f"cannot find {directory.where(SESSION)}: the file is missing")
    with closing(fd), disk_errors(f"read {directory.where(SESSION)}"):
        last = next(lines_backwards(fd, end_of_lines(fd)), b"")
    if last + b"\n" != _line(line):
        _append(directory, line)


def _requests_after(directory: Directory, offset: int) -> tuple[set[str], int]:
    """Return the requests committed after the offset, and the end of the last line."""
    fd = directory.open_file(SESSION)
    if fd is None:
        return set(), 0
    with closing(fd), disk_errors(f"read {directory.where(SESSION)}"):
        end = end_of_lines(fd)
        lines = os.pread(fd, end - offset, offset) if end > offset else b""
    try:
        found = (json.loads(line).get("request") for line in lines.splitlines())
        return {request for request in found if isinstance(request, str)}, end
    except (ValueError, AttributeError):
        raise Corrupt(f"cannot read {directory.where(SESSION)}: a line after byte {offset} is damaged") from None


def _append(directory: Directory, line: dict[str, Any]) -> None:
    fd = directory.open_file(SESSION, os.O_RDWR)
    if fd is None:
        raise Corrupt(f"cannot find {directory.where(SESSION)}: the file is missing")
    with closing(fd), disk_errors(f"write {directory.where(SESSION)}"):
        append_lines(fd, _line(line), end_of_lines(fd))


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class RequestIndex:
    """The committed requests of recently used sessions, by which a repeated turn is recognised. A cache."""

    SESSIONS = 256

    def __init__(self) -> None:
        self._known: OrderedDict[Owner, tuple[int, int, set[str]]] = OrderedDict()
        self._lock = threading.Lock()

    def is_first(self, owner: Owner, directory: Directory, request: str) -> bool:
        """Return whether the request is new. The caller holds the owner's lock, so the answer stays valid."""
        found = directory.stat(SESSION)
        inode = found.st_ino if found else 0
        with self._lock:
            known_inode, end, requests = self._known.pop(owner, (inode, 0, set()))
            if known_inode != inode:
                end, requests = 0, set()
            new, end = _requests_after(directory, end)
            requests |= new
            self._known[owner] = (inode, end, requests)
            if len(self._known) > self.SESSIONS:
                self._known.popitem(last=False)
            return request not in requests
