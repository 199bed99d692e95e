"""The baseline of the stores: a bare sqlite3 connection that changes the file as SQLiteStore does.

The schema, the pragmas and the statements of a write are the store's. It has no threads, checks nothing, counts no
tokens and notifies no reader; it hashes the text only because the hash is a column.
"""

from __future__ import annotations

import sqlite3
import time
from hashlib import sha256
from pathlib import Path

from memo import DocumentKey
from memo.stores.sqlite.file import open_file


class Plain:
    """Owns one connection."""

    def __init__(self, path: Path) -> None:
        open_file(path).close()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("PRAGMA cache_size=-8192")

    def write(self, key: DocumentKey, text: str) -> None:
        db, body = self._db, text.encode()
        place, digest, size = (key.tenant, str(key.scope), key.owner, key.name), sha256(body).hexdigest(), len(body)
        db.execute("BEGIN IMMEDIATE")
        row = db.execute(
            "SELECT revision FROM documents WHERE tenant = ? AND scope = ? AND owner = ? AND name = ?", place
        ).fetchone()
        revision, at = (row[0] + 1 if row else 1), time.time_ns() // 1000
        db.execute("INSERT INTO contents VALUES (?, ?, ?) ON CONFLICT (sha256) DO NOTHING", (digest, size, body))
        db.execute(
            """INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
               ON CONFLICT (tenant, scope, owner, name) DO UPDATE SET
               revision = excluded.revision, sha256 = excluded.sha256, size_bytes = excluded.size_bytes,
               updated_at = excluded.updated_at, summary = excluded.summary, tokens = excluded.tokens,
               tokens_exact = excluded.tokens_exact""",
            (*place, revision, digest, size, at, text[:40], size // 4, 0),
        )
        db.execute(
            "INSERT INTO revisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'host', NULL, '', NULL, 0)",
            (*place, revision, digest, size, at),
        )
        db.execute(
            "INSERT INTO changes VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
            (str(key.scope), key.tenant, key.owner, key.name, revision, digest, at),
        )
        db.execute("COMMIT")

    def read(self, key: DocumentKey) -> str:
        row = self._db.execute(
            """SELECT body FROM documents JOIN contents ON contents.sha256 = documents.sha256
               WHERE tenant = ? AND scope = ? AND owner = ? AND name = ?""",
            (key.tenant, str(key.scope), key.owner, key.name),
        ).fetchone()
        text: str = row[0].decode()
        return text

    def rows_by_document(self) -> dict[str, tuple[int, int, int]]:
        """Return how many revisions, changes and texts each owner has: what a run has written."""
        found = self._db.execute(
            """SELECT owner, COUNT(*), COUNT(DISTINCT sha256),
               (SELECT COUNT(*) FROM changes WHERE changes.owner = revisions.owner) FROM revisions GROUP BY owner"""
        )
        return {owner: (revisions, texts, changes) for owner, revisions, texts, changes in found}

    def close(self) -> None:
        self._db.close()
