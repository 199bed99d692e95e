"""Sessions in SQLite: visible messages, turns, and the archives that compaction creates.

Every function runs inside a transaction of the caller. `memo.messages` decides what fits a budget, and
`memo.compaction` what is cut.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from memo.compaction import Compaction, full_history
from memo.documents import NOTES, Author, DocumentKey
from memo.errors import Corrupt, InvalidKey, TooLarge
from memo.ids import AgentId, SessionId, SessionRef, TenantId, UserId, UserRef
from memo.messages import EncodedMessage, Message, StoredMessage, decode_object, newest_within
from memo.sessions import Session, SessionMeta, Usage
from memo.stores.options import StoreOptions, notes_do_not_fit, session_taken, unknown_session
from memo.stores.sqlite import documents
from memo.stores.sqlite.contents import decoded
from memo.stores.timestamps import from_micros, to_micros

_log = logging.getLogger("memo.stores")

T = TypeVar("T")

_DAMAGE = (InvalidKey, TypeError, ValueError, OverflowError)
"""What reading a row raises if another program has written something else into it."""
_MOST_MESSAGES = 2**53


def get(db: sqlite3.Connection, ref: SessionRef) -> Session | None:
    row = db.execute(
        """SELECT tenant, session, user_id, agent, created_at, updated_at, turns, tokens, message_count
           FROM sessions WHERE tenant = ? AND session = ?""",
        _params(ref),
    ).fetchone()
    try:
        return None if row is None else _session(row)
    except _DAMAGE:
        raise Corrupt(f"cannot read session {ref}: its row is damaged") from None


def make(db: sqlite3.Connection, ref: SessionRef, user: UserId, agent: AgentId, now: int) -> Session:
    db.execute(
        """INSERT INTO sessions (tenant, session, user_id, agent, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?)
           ON CONFLICT (tenant, session) DO NOTHING""",
        (*_params(ref), user, agent, now, now),
    )
    session = get(db, ref)
    if session is None or session.user != user:
        raise session_taken(ref)
    return session


def list_all(db: sqlite3.Connection, tenant: TenantId | None) -> list[Session]:
    rows = db.execute(
        """SELECT tenant, session, user_id, agent, created_at, updated_at, turns, tokens, message_count
           FROM sessions WHERE tenant = COALESCE(?, tenant) ORDER BY updated_at DESC, session DESC""",
        (tenant,),
    )
    return readable(rows, _session, "session")


def list_of_user(db: sqlite3.Connection, tenant: TenantId, user: UserId) -> list[SessionMeta]:
    rows = db.execute(
        """SELECT session, updated_at FROM sessions WHERE tenant = ? AND user_id = ?
           ORDER BY updated_at DESC, session DESC""",
        (tenant, user),
    )
    return readable(rows, lambda row: SessionMeta(SessionId(row[0]), from_micros(row[1])), "session")


def list_users(db: sqlite3.Connection) -> list[UserRef]:
    rows = db.execute("SELECT DISTINCT tenant, user_id FROM sessions ORDER BY tenant, user_id")
    return readable(rows, lambda row: UserRef.of(*row), "user")


def readable(rows: Iterable[tuple[Any, ...]], parse: Callable[[Any], T], noun: str) -> list[T]:
    """Parse the rows of a list. A damaged row is logged and left out: it must not hide the others."""
    found: list[T] = []
    for row in rows:
        try:
            found.append(parse(row))
        except _DAMAGE:
            _log.warning("cannot list a %s: the row of %.200r is damaged", noun, row[:2])
    return found


def visible_size(db: sqlite3.Connection, ref: SessionRef) -> tuple[int, int]:
    row = db.execute(
        "SELECT message_count, message_tokens FROM sessions WHERE tenant = ? AND session = ?", _params(ref)
    ).fetchone()
    if row is None:
        raise unknown_session(ref)
    return int(row[0]), int(row[1])


def tail(db: sqlite3.Connection, ref: SessionRef, limit: int | None) -> list[StoredMessage]:
    return list(_newest_first(db, ref, limit))[::-1]


def within(db: sqlite3.Connection, ref: SessionRef, token_budget: int) -> list[StoredMessage]:
    return newest_within(_newest_first(db, ref, None), token_budget)


def commit_turn(
    db: sqlite3.Connection,
    ref: SessionRef,
    messages: list[EncodedMessage],
    usage: Usage | None,
    request: str | None,
    now: int,
) -> None:
    row = db.execute(
        "SELECT next_position, turns, updated_at FROM sessions WHERE tenant = ? AND session = ?", _params(ref)
    ).fetchone()
    if row is None:
        raise unknown_session(ref)
    position, turns, updated_at = row
    if request is not None and not _is_first(db, ref, request, now):
        return
    db.executemany(
        "INSERT INTO messages (tenant, session, position, body, tokens) VALUES (?, ?, ?, ?, ?)",
        [(*_params(ref), position + i, m.body, m.tokens) for i, m in enumerate(messages)],
    )
    if usage is not None:
        db.execute(
            """INSERT INTO turns (tenant, session, turn, input, output, cache_read, cache_write, at)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
            (*_params(ref), turns + 1, usage.input, usage.output, usage.cache_read, usage.cache_write, now),
        )
    db.execute(
        """UPDATE sessions SET updated_at = ?, next_position = next_position + ?,
           message_count = message_count + ?, message_tokens = message_tokens + ?,
           turns = turns + ?, tokens = tokens + ? WHERE tenant = ? AND session = ?""",
        (
            max(updated_at, now),  # sessions must stay in order even if the clock is set back
            len(messages),
            len(messages),
            sum(m.tokens for m in messages),
            int(usage is not None),
            usage.total if usage else 0,
            *_params(ref),
        ),
    )


def _stored(ref: SessionRef, row: tuple[int, bytes, int, int | None]) -> StoredMessage:
    position, body, tokens, expands = row
    place = f"message {position} of session {ref}"
    return StoredMessage(position, decode_object(decoded(body, place), place), tokens, expands)


def _is_first(db: sqlite3.Connection, ref: SessionRef, request: str, now: int) -> bool:
    done = db.execute(
        """INSERT INTO requests (tenant, session, request, at) VALUES (?, ?, ?, ?)
           ON CONFLICT (tenant, session, request) DO NOTHING""",
        (*_params(ref), request, now),
    )
    return done.rowcount == 1


def _newest_first(db: sqlite3.Connection, ref: SessionRef, limit: int | None) -> Iterator[StoredMessage]:
    rows = db.execute(
        """SELECT position, CAST(body AS BLOB), tokens, expands FROM messages WHERE tenant = ? AND session = ?
           ORDER BY position DESC LIMIT ?""",
        (*_params(ref), _MOST_MESSAGES if limit is None else min(limit, _MOST_MESSAGES)),
    )
    try:
        for row in rows:
            yield _stored(ref, row)
    finally:
        rows.close()  # a caller with a budget may stop early


def _session(row: tuple[str, str, str, str, int, int, int, int, int]) -> Session:
    tenant, session, user, agent, created_at, updated_at, turns, tokens, message_count = row
    return Session(
        TenantId(tenant),
        SessionId(session),
        UserId(user),
        AgentId(agent),
        from_micros(created_at),
        from_micros(updated_at),
        turns,
        tokens,
        message_count,
    )


def _params(ref: SessionRef) -> tuple[str, str]:
    return (ref.tenant, ref.session)


def compact(
    db: sqlite3.Connection,
    ref: SessionRef,
    compaction: Compaction,
    summary: EncodedMessage,
    options: StoreOptions,
) -> bool:
    of_ref = (ref.tenant, ref.session)
    first, last, count, tokens = db.execute(
        """SELECT MIN(position), MAX(position), COUNT(*), SUM(tokens) FROM messages
           WHERE tenant = ? AND session = ? AND position <= ?""",
        (*of_ref, compaction.last),
    ).fetchone()
    if (first, last, count) != (compaction.first, compaction.last, compaction.count):
        return False  # compacted by another call in the meantime
    archives, updated_at = db.execute(
        "SELECT archives, updated_at FROM sessions WHERE tenant = ? AND session = ?", of_ref
    ).fetchone()
    archive = archives + 1
    db.execute(
        """INSERT INTO archived_messages (tenant, session, archive, position, body, tokens, expands)
           SELECT tenant, session, ?, position, body, tokens, expands FROM messages
           WHERE tenant = ? AND session = ? AND position <= ?""",
        (archive, *of_ref, compaction.last),
    )
    db.execute("DELETE FROM messages WHERE tenant = ? AND session = ? AND position <= ?", (*of_ref, compaction.last))
    db.execute(
        "INSERT INTO messages (tenant, session, position, body, tokens, expands) VALUES (?, ?, ?, ?, ?, ?)",
        (*of_ref, compaction.last, summary.body, summary.tokens, archive),
    )
    db.execute(
        """UPDATE sessions SET archives = ?, message_count = message_count - ? + 1,
           message_tokens = message_tokens - ? + ?, updated_at = ?
           WHERE tenant = ? AND session = ?""",
        (archive, count, tokens, summary.tokens, max(updated_at, to_micros(options.clock())), *of_ref),
    )
    author = Author("compaction", ref.session, "conversation summary")
    try:
        documents.append(db, DocumentKey.of_session(ref, NOTES), compaction.notes_section, author, options)
    except TooLarge:  # raises before anything is written
        notes_do_not_fit(ref)
    return True


def history(db: sqlite3.Connection, ref: SessionRef) -> list[Message]:
    rows = db.execute(
        """SELECT archive, position, CAST(body AS BLOB), tokens, expands FROM archived_messages
           WHERE tenant = ? AND session = ? ORDER BY archive, position""",
        (ref.tenant, ref.session),
    )
    archives: dict[int, list[StoredMessage]] = {}
    for archive, *row in rows:
        archives.setdefault(archive, []).append(_stored(ref, (row[0], row[1], row[2], row[3])))
    return full_history(archives, tail(db, ref, None))
