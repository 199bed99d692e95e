"""Compaction in SQLite: the oldest messages move to an archive, and a summary that names it stands for them.

Every function runs inside a transaction that somebody else ends.
"""

from __future__ import annotations

import sqlite3

from memo.compaction import Compaction, full_history
from memo.documents import NOTES, Author, DocumentKey
from memo.errors import TooLarge
from memo.ids import SessionRef
from memo.messages import EncodedMessage, Message, StoredMessage
from memo.stores.options import StoreOptions, notes_do_not_fit
from memo.stores.sqlite import documents, sessions
from memo.stores.sqlite.times import to_micros


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
        return False  # somebody compacted it meanwhile
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
    except TooLarge:  # raised before anything of it is written
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
        archives.setdefault(archive, []).append(sessions.stored(ref, (row[0], row[1], row[2], row[3])))
    return full_history(archives, sessions.tail(db, ref, None))
