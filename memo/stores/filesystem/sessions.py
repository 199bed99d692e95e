"""Sessions on disk: creating, finding and listing them, by user without a walk over all sessions.

A user's directory names the user's sessions, durably, before the session itself exists; a name without a session was
left by a killed process and is ignored. `.memo/pending/T/S` is an empty file for each session that has messages which
no consolidation has settled. It is written before the message and removed under the session's lock, so that no message
is ever without it; an extra file only costs one check.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress

from memo.documents import Scope
from memo.errors import Corrupt, InvalidKey
from memo.ids import AgentId, OwnerId, SessionId, SessionRef, TenantId, UserId, UserRef
from memo.sessions import DamagedSession, Session, SessionMeta
from memo.stores.filesystem import session_log
from memo.stores.filesystem.directory import Directory
from memo.stores.filesystem.home import Home
from memo.stores.filesystem.layout import HIDDEN, TENANTS, USER_SESSIONS, Owner
from memo.stores.filesystem.session_state import SessionRecord, SessionState
from memo.stores.options import session_taken
from memo.stores.timestamps import from_micros

_log = logging.getLogger("memo.stores")


def make(root: Directory, home: Home, user: UserId, agent: AgentId, now: int) -> Session:
    ref = home.owner.session
    record = session_log.load(home.directory, ref)
    if record is None:
        _name_for_user(root, UserRef(ref.tenant, user), ref.session)
        record = SessionRecord(ref, user, agent, now, SessionState(updated_at=now))
        session_log.create(home.directory, home.hidden, record)
    elif record.user != user:
        raise session_taken(ref)
    else:
        _name_for_user(root, UserRef(ref.tenant, user), ref.session)  # another program may have made the session
    return record.session()


def get(home: Home | None, ref: SessionRef) -> Session | None:
    record = None if home is None else session_log.load(home.directory, ref)
    return None if record is None else record.session()


def list_all(root: Directory, tenant: TenantId | None) -> list[Session]:
    owners = (o for o in owners_of(root, tenant) if o.scope is Scope.SESSION)
    found = [record.session() for record in (listed(root, owner.session) for owner in owners) if record]
    return sorted(found, key=lambda s: (s.updated_at, s.session), reverse=True)


def list_damaged(root: Directory, tenant: TenantId | None) -> list[DamagedSession]:
    damaged = []
    for owner in owners_of(root, tenant):
        if owner.scope is Scope.SESSION:
            try:
                record_of(root, owner.session)
            except Corrupt as error:
                damaged.append(DamagedSession(owner.session.tenant, owner.session.session, str(error)))
    return damaged


def list_of_user(root: Directory, user: UserRef) -> list[SessionMeta]:
    found = [(r.state.updated_at, r.ref.session) for r in _records_of(root, user)]
    return [SessionMeta(session, from_micros(at)) for at, session in sorted(found, reverse=True)]


def list_users(root: Directory) -> list[UserRef]:
    users = (UserRef(o.tenant, UserId(o.owner)) for o in owners_of(root) if o.scope is Scope.USER)
    return sorted(user for user in users if next(_records_of(root, user), None))


def owners_of(root: Directory, tenant: TenantId | None = None) -> Iterator[Owner]:
    """Yield every owner that has a directory, of one tenant or of all."""
    tenants = [tenant] if tenant is not None else _names(root, TENANTS)
    for found in tenants:
        for kind in ("sessions", "users"):
            for name in _names(root, TENANTS, found, kind):
                owner = Owner.at(found, kind, name)
                if owner is not None:
                    yield owner


def _records_of(root: Directory, user: UserRef) -> Iterator[SessionRecord]:
    for name in _names(root, *Owner.of_user(user).path, HIDDEN, USER_SESSIONS):
        try:
            ref = SessionRef(user.tenant, SessionId(name))
        except InvalidKey:
            continue  # not a session
        record = listed(root, ref)
        if record is not None and record.user == user.user:
            yield record


def listed(root: Directory, ref: SessionRef) -> SessionRecord | None:
    """Read a session for a list. A damaged one is logged, with its file and line, and left out: the others count."""
    try:
        return record_of(root, ref)
    except Corrupt as error:
        _log.warning("cannot list session %s: %s", ref, error)
        return None


def record_of(root: Directory, ref: SessionRef) -> SessionRecord | None:
    """Read the session without a lock: complete lines are only added, and the first one never changes."""
    directory = root.descend(*Owner.of_session(ref).path)
    if directory is None:
        return None
    with directory:
        return session_log.load(directory, ref)


def _name_for_user(root: Directory, user: UserRef, session: SessionId) -> None:
    owner = Owner(user.tenant, Scope.USER, OwnerId(user.user))
    with root.make_path(*owner.path, HIDDEN, USER_SESSIONS) as sessions:
        if sessions.stat(session) is None:
            sessions.touch(session)


def _names(root: Directory, *path: str) -> list[str]:
    directory = root.descend(*path)
    if directory is None:
        return []
    with directory:
        return directory.names()


_PENDING = "pending"
_INDEXED = ".indexed-2"


def mark_pending(root: Directory, ref: SessionRef) -> None:
    with root.make_path(HIDDEN, _PENDING, ref.tenant) as marks:
        if marks.stat(ref.session) is None:
            marks.touch(ref.session)


def unmark_pending(root: Directory, ref: SessionRef) -> None:
    """Remove the mark. The caller must hold the session's lock."""
    marks = root.descend(HIDDEN, _PENDING, ref.tenant)
    if marks is not None:
        with marks:
            marks.remove(ref.session)


def is_marked_pending(root: Directory, ref: SessionRef) -> bool:
    marks = root.descend(HIDDEN, _PENDING, ref.tenant)
    if marks is None:
        return False
    with marks:
        return marks.stat(ref.session) is not None


def pending_records(root: Directory) -> Iterator[SessionRecord]:
    """Yield the pending sessions of all tenants."""
    for tenant in _visible_names(root, HIDDEN, _PENDING):
        for name in _visible_names(root, HIDDEN, _PENDING, tenant):
            with suppress(InvalidKey):  # not a session
                record = listed(root, SessionRef(TenantId(tenant), SessionId(name)))
                if record is not None and revision_of(record):
                    yield record


def revision_of(record: SessionRecord) -> int:
    return record.state.first + record.state.count - 1


def index_once(root: Directory) -> None:
    """Mark the sessions from before marks existed, and name for their users those of other programs.

    Runs once per store, when it is opened.
    """
    with root.make_path(HIDDEN, _PENDING) as pending:
        if pending.stat(_INDEXED) is not None:
            return
        for session in list_all(root, None):
            _name_for_user(root, UserRef(session.tenant, session.user), session.session)
            mark_pending(root, session.ref)
        pending.touch(_INDEXED)


def _visible_names(root: Directory, *path: str) -> list[str]:
    return [name for name in _names(root, *path) if not name.startswith(".")]
