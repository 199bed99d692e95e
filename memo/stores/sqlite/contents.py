"""Texts by hash, kept once, whoever refers to them.

A text nobody refers to any more is deleted. A text that is not what was written is never handed out.
"""

from __future__ import annotations

import sqlite3

from memo.documents import sha256_of
from memo.errors import Corrupt
from memo.stores.prepared import PreparedText
from memo.stores.sqlite.texts import decoded


def keep(db: sqlite3.Connection, text: PreparedText) -> None:
    db.execute(
        "INSERT INTO contents (sha256, size_bytes, body) VALUES (?, ?, ?) ON CONFLICT (sha256) DO NOTHING",
        (text.sha256, text.size_bytes, text.encoded),
    )


def fetch(db: sqlite3.Connection, sha256: str, place: str) -> str:
    row = db.execute("SELECT body FROM contents WHERE sha256 = ?", (sha256,)).fetchone()
    return verified(None if row is None else row[0], sha256, place)


def verified(body: bytes | None, sha256: str, place: str) -> str:
    """Decode a text, and see that it is the one that was written: SQLite does not notice a changed byte in a blob."""
    text = present(body, place)
    if sha256_of(text) != sha256:
        raise Corrupt(f"cannot read {place}: what is stored is not what was written")
    return decoded(text, place)


def present(body: bytes | None, place: str) -> bytes:
    """Return a text that must be there: lost is not the same as never written (I4)."""
    if body is None:
        raise Corrupt(f"cannot read {place}: its text is not in the store")
    return body


def drop_unreferenced(db: sqlite3.Connection, sha256: str) -> None:
    db.execute(
        """DELETE FROM contents WHERE sha256 = :sha256
           AND NOT EXISTS (SELECT 1 FROM revisions WHERE sha256 = :sha256 AND redacted = 0)
           AND NOT EXISTS (SELECT 1 FROM artifacts WHERE sha256 = :sha256)""",
        {"sha256": sha256},
    )
