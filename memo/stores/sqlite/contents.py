"""The contents table: texts by hash, each kept once and shared by every document and artifact that has it.

A text is deleted with its last reference. A stored text is checked before it is returned: damage raises Corrupt and
names the place, because SQLite's own error does not name the row and quotes the text.
"""

from __future__ import annotations

import sqlite3

from memo.documents import sha256_of
from memo.errors import Corrupt
from memo.stores.prepared_text import PreparedText


def keep(db: sqlite3.Connection, text: PreparedText) -> None:
    db.execute(
        "INSERT INTO contents (sha256, size_bytes, body) VALUES (?, ?, ?) ON CONFLICT (sha256) DO NOTHING",
        (text.sha256, text.size_bytes, text.encoded),
    )


def fetch(db: sqlite3.Connection, sha256: str, place: str) -> str:
    row = db.execute("SELECT body FROM contents WHERE sha256 = ?", (sha256,)).fetchone()
    return verified(None if row is None else row[0], sha256, place)


def verified(body: bytes | None, sha256: str, place: str) -> str:
    """Check the hash of a text and decode it: SQLite does not notice a changed byte in a blob."""
    text = present(body, place)
    if sha256_of(text) != sha256:
        raise Corrupt(f"cannot read {place}: the stored text does not match its hash")
    return decoded(text, place)


def present(body: bytes | None, place: str) -> bytes:
    """Return the text, or raise Corrupt if it is missing: lost differs from never written (I4)."""
    if body is None:
        raise Corrupt(f"cannot read {place}: its text is missing from the store")
    return body


def drop_unreferenced(db: sqlite3.Connection, sha256: str) -> None:
    db.execute(
        """DELETE FROM contents WHERE sha256 = :sha256
           AND NOT EXISTS (SELECT 1 FROM revisions WHERE sha256 = :sha256 AND redacted = 0 AND deleted = 0)
           AND NOT EXISTS (SELECT 1 FROM artifacts WHERE sha256 = :sha256)""",
        {"sha256": sha256},
    )


def decoded(body: bytes, place: str) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"cannot read {place}: the stored text is not UTF-8 at byte {error.start}") from None
