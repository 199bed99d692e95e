"""Sessions on disk: making them, finding them, listing them by user without walking over everybody's.

A user's directory names the user's sessions, durably, before the session itself exists; a name without a session is
what a killed process left, and counts for nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from memo.documents import Scope
from memo.errors import InvalidKey
from memo.ids import AgentId, OwnerId, SessionId, SessionRef, TenantId, UserId, UserRef
from memo.sessions import Session, SessionMeta
from memo.stores.filesystem import session_log
from memo.stores.filesystem.disk import Directory, closing, disk_errors
from memo.stores.filesystem.layout import HIDDEN, TENANTS, USER_SESSIONS, Owner
from memo.stores.filesystem.owners import Place
from memo.stores.filesystem.session_log import SessionRecord, SessionState
from memo.stores.filesystem.times import from_micros
from memo.stores.options import session_taken


def make(root: Directory, place: Place, user: UserId, agent: AgentId, now: int) -> Session:
    ref = place.owner.session
    record = session_log.load(place.directory, ref)
    if record is None:
        _name_for_user(root, UserRef(ref.tenant, user), ref.session)
        record = SessionRecord(ref, user, agent, now, SessionState(updated_at=now))
        session_log.create(place.directory, place.hidden, record)
    elif record.user != user:
        raise session_taken(ref)
    return record.session()


def get(place: Place | None, ref: SessionRef) -> Session | None:
    record = None if place is None else session_log.load(place.directory, ref)
    return None if record is None else record.session()


def list_all(root: Directory, tenant: TenantId | None) -> list[Session]:
    owners = (o for o in owners_of(root, tenant) if o.scope is Scope.SESSION)
    found = [record.session() for record in (_record(root, owner.session) for owner in owners) if record]
    return sorted(found, key=lambda s: (s.updated_at, s.session), reverse=True)


def list_of_user(root: Directory, user: UserRef) -> list[SessionMeta]:
    found = [(r.state.updated_at, r.ref.session) for r in _records_of(root, user)]
    return [SessionMeta(session, from_micros(at)) for at, session in sorted(found, reverse=True)]


def list_users(root: Directory) -> list[UserRef]:
    users = (UserRef(o.tenant, UserId(o.owner)) for o in owners_of(root) if o.scope is Scope.USER)
    return sorted(user for user in users if next(_records_of(root, user), None))


def owners_of(root: Directory, tenant: TenantId | None = None) -> Iterator[Owner]:
    """Yield whoever has a directory, of one tenant or of all."""
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
            continue  # not ours
        record = _record(root, ref)
        if record is not None and record.user == user.user:
            yield record


def _record(root: Directory, ref: SessionRef) -> SessionRecord | None:
    """Read the state without a lock: complete lines only grow, and the first one never changes."""
    directory = root.descend(*Owner.of_session(ref).path)
    if directory is None:
        return None
    with directory:
        return session_log.load(directory, ref)


def _name_for_user(root: Directory, user: UserRef, session: SessionId) -> None:
    owner = Owner(user.tenant, Scope.USER, OwnerId(user.user))
    with root.make_path(*owner.path, HIDDEN, USER_SESSIONS) as sessions, disk_errors(f"write {sessions.place}"):
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing(os.open(session, flags, 0o600, dir_fd=sessions.fd)):
            os.fsync(sessions.fd)


def _names(root: Directory, *path: str) -> list[str]:
    directory = root.descend(*path)
    if directory is None:
        return []
    with directory:
        return directory.names()
