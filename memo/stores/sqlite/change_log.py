"""The changes table, which the change feed reads.

A cursor is assigned inside the write transaction, so cursors are in commit order. Rows are only added.
"""

from __future__ import annotations

import sqlite3

from memo.changes import Change
from memo.documents import ArtifactKey, DocumentKey
from memo.stores.timestamps import from_micros


def announce(
    db: sqlite3.Connection,
    key: DocumentKey | ArtifactKey,
    revision: int,
    sha256: str,
    at_micros: int,
    *,
    deleted: bool = False,
) -> None:
    kind, tenant, owner, name = (
        ("artifact", key.session.tenant, key.session.session, key.tool_call)
        if isinstance(key, ArtifactKey)
        else (str(key.scope), key.tenant, key.owner, key.name)
    )
    db.execute(
        """INSERT INTO changes (kind, tenant, owner, name, revision, sha256, at, deleted)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
        (kind, tenant, owner, name, revision, sha256, at_micros, int(deleted)),
    )


def read(db: sqlite3.Connection, since: int, limit: int) -> list[Change]:
    rows = db.execute(
        """SELECT cursor, kind, tenant, owner, name, revision, sha256, at, deleted FROM changes
           WHERE cursor > ? ORDER BY cursor LIMIT ?""",
        (since, limit),
    )
    return [
        Change(cursor, _key(kind, tenant, owner, name), revision, sha256, from_micros(at), bool(deleted))
        for cursor, kind, tenant, owner, name, revision, sha256, at, deleted in rows
    ]


def last(db: sqlite3.Connection) -> int:
    (cursor,) = db.execute("SELECT COALESCE(MAX(cursor), 0) FROM changes").fetchone()
    return int(cursor)


def _key(kind: str, tenant: str, owner: str, name: str) -> DocumentKey | ArtifactKey:
    if kind == "artifact":
        return ArtifactKey.of(f"{tenant}:{owner}", name)
    return DocumentKey.of(tenant, owner, kind, name)
