"""Which sessions are pending on disk: .memo/pending/T/S, an empty file for each. An index, so that nobody walks.

The mark is durable before the message that it stands for, and is taken away under the session's lock, so that a
message is never without it. A mark too many costs one look.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from memo.errors import InvalidKey
from memo.ids import SessionId, SessionRef, TenantId
from memo.stores.filesystem import session_log, sessions
from memo.stores.filesystem.disk import Directory, closing, disk_errors
from memo.stores.filesystem.layout import HIDDEN, Owner
from memo.stores.filesystem.session_log import SessionRecord

PENDING = "pending"
_INDEXED = ".indexed"


def mark(root: Directory, ref: SessionRef) -> None:
    with root.make_path(HIDDEN, PENDING, ref.tenant) as marks:
        if marks.stat(ref.session) is not None:
            return
        with disk_errors(f"write {marks.where(ref.session)}"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with closing(os.open(ref.session, flags, 0o600, dir_fd=marks.fd)):
                os.fsync(marks.fd)


def unmark(root: Directory, ref: SessionRef) -> None:
    """Take the mark away. The session must be locked by the caller."""
    marks = root.descend(HIDDEN, PENDING, ref.tenant)
    if marks is not None:
        with marks:
            marks.remove(ref.session)


def is_marked(root: Directory, ref: SessionRef) -> bool:
    marks = root.descend(HIDDEN, PENDING, ref.tenant)
    if marks is None:
        return False
    with marks:
        return marks.stat(ref.session) is not None


def records(root: Directory) -> Iterator[SessionRecord]:
    """Yield the pending sessions, of all tenants."""
    index_once(root)
    for tenant in _names(root, HIDDEN, PENDING):
        for name in _names(root, HIDDEN, PENDING, tenant):
            with suppress(InvalidKey):  # not ours
                record = record_of(root, SessionRef(TenantId(tenant), SessionId(name)))
                if record is not None and revision_of(record):
                    yield record


def record_of(root: Directory, ref: SessionRef) -> SessionRecord | None:
    """Read the state without a lock: complete lines only grow, and the first one never changes."""
    directory = root.descend(*Owner.of_session(ref).path)
    if directory is None:
        return None
    with directory:
        return session_log.load(directory, ref)


def revision_of(record: SessionRecord) -> int:
    return record.state.first + record.state.count - 1


def index_once(root: Directory) -> None:
    """Mark what was there before there were marks. Once in the life of a store."""
    with root.make_path(HIDDEN, PENDING) as pending:
        if pending.stat(_INDEXED) is not None:
            return
        for session in sessions.list_all(root, None):
            mark(root, session.ref)
        pending.stage(_INDEXED)
        pending.sync()


def _names(root: Directory, *path: str) -> list[str]:
    directory = root.descend(*path)
    if directory is None:
        return []
    with directory:
        return [name for name in directory.names() if not name.startswith(".")]
