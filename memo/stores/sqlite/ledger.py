"""Leases and the consolidation ledger in SQLite. The fence is checked in the transaction that writes.

The functions run inside a transaction of the caller; the class is a mixin for the store.
"""

from __future__ import annotations

import sqlite3

from memo.documents import Document
from memo.errors import Corrupt
from memo.ids import SessionId, TenantId, UserRef
from memo.leases import Held, Lease, check_fence, grant, let_go, prolong
from memo.ledger import Json, LedgerEntry, PendingUser, SessionRevision, Settlement
from memo.messages import decode_object, encode_object
from memo.stores.options import StoreOptions
from memo.stores.prepared_text import PreparedText, check_author, off_loop, prepare_document
from memo.stores.sqlite import documents
from memo.stores.sqlite.contents import decoded
from memo.stores.sqlite.database import Database
from memo.stores.sqlite.sessions import readable
from memo.stores.timestamps import from_micros, to_micros


class SQLiteLedger:
    options: StoreOptions
    _database: Database

    async def acquire_lease(self, user: UserRef, holder: str, ttl_s: float) -> Lease | Held:
        def acquire(db: sqlite3.Connection) -> Lease | Held:
            granted = grant(read_lease(db, user), user, holder, ttl_s, self.options.clock())
            if isinstance(granted, Lease):
                _keep_lease(db, granted)
            return granted

        return await self._database.write(acquire)

    async def renew_lease(self, lease: Lease, ttl_s: float) -> Lease:
        def renew(db: sqlite3.Connection) -> Lease:
            renewed = prolong(read_lease(db, lease.user), lease, ttl_s, self.options.clock())
            _keep_lease(db, renewed)
            return renewed

        return await self._database.write(renew)

    async def release_lease(self, lease: Lease) -> None:
        def release(db: sqlite3.Connection) -> None:
            freed = let_go(read_lease(db, lease.user), lease)
            if freed is not None:
                _keep_lease(db, freed)

        await self._database.write(release)

    async def list_pending(self) -> list[PendingUser]:
        return await self._database.read(list_pending)

    async def list_standings(self, tenant: str | None = None) -> list[tuple[UserRef, Json]]:
        wanted = None if tenant is None else TenantId(tenant)
        return await self._database.read(lambda db: list_standings(db, wanted))

    async def list_session_revisions(self, user: UserRef) -> list[SessionRevision]:
        return await self._database.read(lambda db: list_session_revisions(db, user))

    async def read_ledger(self, user: UserRef) -> LedgerEntry:
        return await self._database.read(lambda db: read_ledger(db, user))

    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        text = None
        if settlement.document is not None:
            check_author(settlement.document.author)
            text = await off_loop(prepare_document, settlement.document.content, self.options)
        return await self._database.write(lambda db: settle(db, lease, settlement, text, self.options))


def read_lease(db: sqlite3.Connection, user: UserRef) -> Lease | None:
    row = db.execute(
        "SELECT holder, token, expires_at FROM leases WHERE tenant = ? AND user_id = ?", _params(user)
    ).fetchone()
    return None if row is None else Lease(user, row[0], row[1], from_micros(row[2]))


def _keep_lease(db: sqlite3.Connection, lease: Lease) -> None:
    db.execute(
        """INSERT INTO leases (tenant, user_id, holder, token, expires_at) VALUES (?, ?, ?, ?, ?)
           ON CONFLICT (tenant, user_id) DO UPDATE SET
           holder = excluded.holder, token = excluded.token, expires_at = excluded.expires_at""",
        (*_params(lease.user), lease.holder, lease.token, to_micros(lease.expires_at)),
    )


def list_pending(db: sqlite3.Connection) -> list[PendingUser]:
    rows = db.execute(
        """SELECT p.tenant, p.user_id, COUNT(*), MAX(p.changed_at), CAST(c.standing AS BLOB) FROM pending_sessions p
           LEFT JOIN consolidations c ON c.tenant = p.tenant AND c.user_id = p.user_id
           GROUP BY p.tenant, p.user_id"""
    )
    return readable(rows, _pending_user, "pending user")


def list_standings(db: sqlite3.Connection, tenant: TenantId | None) -> list[tuple[UserRef, Json]]:
    rows = db.execute(
        """SELECT tenant, user_id, CAST(standing AS BLOB) FROM consolidations WHERE tenant = COALESCE(?, tenant)
           ORDER BY tenant, user_id""",
        (tenant,),
    )
    return readable(rows, lambda row: (UserRef.of(row[0], row[1]), _listed_standing(row[2], row[1])), "standing")


def list_session_revisions(db: sqlite3.Connection, user: UserRef) -> list[SessionRevision]:
    rows = db.execute(
        """SELECT s.session, s.next_position - 1, s.updated_at, p.session IS NOT NULL FROM sessions s
           LEFT JOIN pending_sessions p
           ON p.tenant = s.tenant AND p.user_id = s.user_id AND p.session = s.session
           WHERE s.tenant = ? AND s.user_id = ? AND s.next_position > 1
           ORDER BY s.updated_at DESC, s.session DESC""",
        _params(user),
    )
    return readable(rows, _session_revision, "session")


def _pending_user(row: tuple[str, str, int, int, bytes | None]) -> PendingUser:
    tenant, user, changed, at, standing = row
    return PendingUser(UserRef.of(tenant, user), changed, from_micros(at), _listed_standing(standing, user))


def _session_revision(row: tuple[str, int, int, int]) -> SessionRevision:
    session, revision, at, is_pending = row
    return SessionRevision(SessionId(session), int(revision), from_micros(at), bool(is_pending))


def read_ledger(db: sqlite3.Connection, user: UserRef) -> LedgerEntry:
    row = db.execute(
        """SELECT CAST(standing AS BLOB), CAST(memory AS BLOB) FROM consolidations
           WHERE tenant = ? AND user_id = ?""",
        _params(user),
    ).fetchone()
    standing, memory = row or (None, None)
    changed, at = db.execute(
        "SELECT COUNT(*), MAX(changed_at) FROM pending_sessions WHERE tenant = ? AND user_id = ?", _params(user)
    ).fetchone()
    return LedgerEntry(
        _decoded(standing, "standing", user.user),
        _decoded(memory, "memory", user.user),
        changed,
        None if at is None else from_micros(at),
        read_lease(db, user),
    )


def settle(
    db: sqlite3.Connection, lease: Lease, settlement: Settlement, text: PreparedText | None, options: StoreOptions
) -> Document | None:
    check_fence(read_lease(db, lease.user), lease, options.clock())
    change, written = settlement.document, None
    if change is not None and text is not None:
        written = documents.write(db, change.key, text, change.expected, change.author, options)
    limit = options.limits.message_bytes
    standing = encode_object("standing", settlement.standing, limit)
    memory = None if settlement.memory is None else encode_object("memory", settlement.memory, limit)
    db.execute(
        """INSERT INTO consolidations (tenant, user_id, standing, memory) VALUES (?, ?, ?, COALESCE(?, '{}'))
           ON CONFLICT (tenant, user_id) DO UPDATE SET
           standing = excluded.standing, memory = COALESCE(?, memory)""",
        (*_params(lease.user), standing, memory, memory),
    )
    db.executemany(
        "DELETE FROM pending_sessions WHERE tenant = ? AND user_id = ? AND session = ? AND revision <= ?",
        [(*_params(lease.user), session, revision) for session, revision in settlement.settled.items()],
    )
    return written


def _listed_standing(body: bytes | None, user: str) -> Json:
    """Return the standing for one line of a scan; a damaged one must not hide the other users.

    A damaged standing is replaced by a value that no parser accepts, so that using this line raises Corrupt like
    `read_ledger`. It is never empty, which would mean a user without a run (I4).
    """
    try:
        return _decoded(body, "standing", user)
    except Corrupt:
        return {"unreadable": True}


def _decoded(body: bytes | None, noun: str, user: str) -> Json:
    if body is None:
        return {}
    place = f"the consolidation {noun} of user {user}"
    return decode_object(decoded(body, place), place)


def _params(user: UserRef) -> tuple[str, str]:
    return (user.tenant, user.user)
