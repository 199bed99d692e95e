"""Artifacts in SQLite: one text per tool call, shared by hash with every other use of the same text.

Every function runs inside a transaction of the caller.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from memo.documents import ArtifactEntry, ArtifactKey
from memo.errors import Corrupt
from memo.ids import SessionRef, ToolCallId
from memo.provider import ArtifactLine
from memo.stores.options import StoreOptions
from memo.stores.prepared_text import PreparedText
from memo.stores.sqlite import change_log, contents
from memo.stores.timestamps import from_micros, to_micros

_AT_ONCE = 250
_FAR = 2**53  # larger than any artifact, and still an SQLite integer


def write(db: sqlite3.Connection, key: ArtifactKey, text: PreparedText, options: StoreOptions) -> ArtifactEntry:
    old = db.execute(
        """SELECT revision, sha256, size_bytes, at FROM artifacts WHERE tenant = ? AND session = ? AND tool_call = ?""",
        _params(key),
    ).fetchone()
    if old is not None and old[1] == text.sha256:
        return ArtifactEntry(key, old[0], old[1], old[2], from_micros(old[3]))
    revision = 1 if old is None else old[0] + 1
    at = to_micros(options.clock())
    contents.keep(db, text)
    db.execute(
        """INSERT INTO artifacts (tenant, session, tool_call, revision, sha256, size_bytes, at)
           VALUES (?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT (tenant, session, tool_call) DO UPDATE SET
           revision = excluded.revision, sha256 = excluded.sha256,
           size_bytes = excluded.size_bytes, at = excluded.at""",
        (*_params(key), revision, text.sha256, text.size_bytes, at),
    )
    if old is not None:
        contents.drop_unreferenced(db, old[1])
    change_log.announce(db, key, revision, text.sha256, at)
    return ArtifactEntry(key, revision, text.sha256, text.size_bytes, from_micros(at))


def read_many(db: sqlite3.Connection, session: SessionRef, tool_calls: Iterable[ToolCallId]) -> dict[ToolCallId, str]:
    return {
        ToolCallId(call): contents.verified(body, sha256, f"artifact {call} of session {session}")
        for call, body, sha256 in bodies_of(db, session, list(tool_calls))
    }


def bodies_of(
    db: sqlite3.Connection, session: SessionRef, tool_calls: Sequence[ToolCallId]
) -> list[tuple[str, bytes | None, str]]:
    """Return id, text and hash of the artifacts that exist. The text is None if the store has lost it."""
    rows: list[tuple[str, bytes | None, str]] = []
    for start in range(0, len(tool_calls), _AT_ONCE):
        some = tool_calls[start : start + _AT_ONCE]
        rows += db.execute(
            f"""SELECT tool_call, body, artifacts.sha256
                FROM artifacts LEFT JOIN contents ON contents.sha256 = artifacts.sha256
                WHERE tenant = ? AND session = ? AND tool_call IN ({",".join("?" * len(some))})""",  # noqa: S608
            (session.tenant, session.session, *some),
        ).fetchall()
    return rows


def read_range(db: sqlite3.Connection, key: ArtifactKey, start: int, length: int) -> bytes | None:
    row = db.execute(
        """SELECT substr(body, ?, ?) FROM artifacts LEFT JOIN contents ON contents.sha256 = artifacts.sha256
           WHERE tenant = ? AND session = ? AND tool_call = ?""",
        (min(max(start, 0), _FAR) + 1, min(max(length, 0), _FAR), *_params(key)),
    ).fetchone()
    if row is None:
        return None
    if row[0] is None:
        raise Corrupt(f"cannot read artifact {key}: its text is missing from the store")
    return bytes(row[0])


def list_of(db: sqlite3.Connection, session: SessionRef) -> list[ArtifactEntry]:
    rows = db.execute(
        """SELECT tool_call, revision, sha256, size_bytes, at FROM artifacts
           WHERE tenant = ? AND session = ? ORDER BY tool_call""",
        (session.tenant, session.session),
    )
    return [
        ArtifactEntry(ArtifactKey(session, ToolCallId(call)), revision, sha256, size_bytes, from_micros(at))
        for call, revision, sha256, size_bytes, at in rows
    ]


def lines_of(db: sqlite3.Connection, session: SessionRef) -> list[ArtifactLine]:
    return db.execute(
        """SELECT tool_call, revision, sha256, size_bytes FROM artifacts
           WHERE tenant = ? AND session = ? ORDER BY tool_call""",
        (session.tenant, session.session),
    ).fetchall()


def _params(key: ArtifactKey) -> tuple[str, str, str]:
    return (key.session.tenant, key.session.session, key.tool_call)
