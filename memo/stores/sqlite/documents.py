"""Documents and their revisions in SQLite.

Every function runs inside a transaction of the caller. The rules of compare-and-swap are in `memo.documents`.
"""

from __future__ import annotations

import sqlite3

from memo.documents import (
    Author,
    Document,
    DocumentEntry,
    DocumentKey,
    DocumentName,
    Expected,
    Revision,
    Scope,
    conflict,
    is_expected,
    redacted_error,
    redaction_targets,
)
from memo.errors import Absent
from memo.ids import OwnerId, SessionId, TenantId
from memo.stores.options import StoreOptions
from memo.stores.prepared_text import PreparedText, prepare_document
from memo.stores.sqlite import change_log, contents
from memo.stores.timestamps import from_micros, to_micros

MOST_REVISIONS = 2**53


def read(db: sqlite3.Connection, key: DocumentKey, revision: int | None) -> Document | None:
    if revision is None:
        head = db.execute(
            "SELECT revision, sha256 FROM documents WHERE tenant = ? AND scope = ? AND owner = ? AND name = ?",
            _params(key),
        ).fetchone()
        return None if head is None else Document(_text(db, key, *head), *head)
    if not 1 <= revision < MOST_REVISIONS:
        return None
    row = db.execute(
        """SELECT revision, sha256, redacted FROM revisions
           WHERE tenant = ? AND scope = ? AND owner = ? AND name = ? AND revision = ?""",
        (*_params(key), revision),
    ).fetchone()
    if row is None:
        return None
    if row[2]:
        raise redacted_error(key.name, revision)
    return Document(_text(db, key, row[0], row[1]), row[0], row[1])


def body_of(db: sqlite3.Connection, key: DocumentKey) -> bytes | None:
    """Return the newest text without checking its hash; None if it was never written."""
    row = db.execute(
        """SELECT body FROM documents LEFT JOIN contents ON contents.sha256 = documents.sha256
           WHERE tenant = ? AND scope = ? AND owner = ? AND name = ?""",
        _params(key),
    ).fetchone()
    return None if row is None else contents.present(row[0], key.name)


def write(
    db: sqlite3.Connection,
    key: DocumentKey,
    text: PreparedText,
    expected: Expected,
    author: Author,
    options: StoreOptions,
) -> Document:
    repeated = find_request(db, key, author.request)
    if repeated is not None:
        return repeated
    row = db.execute(
        "SELECT revision FROM documents WHERE tenant = ? AND scope = ? AND owner = ? AND name = ?", _params(key)
    ).fetchone()
    current = None if row is None else int(row[0])
    if not is_expected(current, expected):
        raise conflict(key, expected, read(db, key, None))
    return _commit(db, key, text, (current or 0) + 1, author, options)


def append(db: sqlite3.Connection, key: DocumentKey, added: str, author: Author, options: StoreOptions) -> Document:
    repeated = find_request(db, key, author.request)
    if repeated is not None:
        return repeated
    before = read(db, key, None)
    text = prepare_document((before.content if before else "") + added, options)
    return _commit(db, key, text, (before.revision if before else 0) + 1, author, options)


def list_of(db: sqlite3.Connection, tenant: TenantId, owner: OwnerId, scope: Scope) -> list[DocumentEntry]:
    rows = db.execute(
        """SELECT name, revision, sha256, size_bytes, updated_at, summary, tokens, tokens_exact FROM documents
           WHERE tenant = ? AND scope = ? AND owner = ? ORDER BY name""",
        (tenant, str(scope), owner),
    )
    return [
        DocumentEntry(
            DocumentKey(tenant, owner, scope, DocumentName(name)),
            revision,
            sha256,
            size_bytes,
            from_micros(at),
            summary,
            tokens,
            bool(tokens_exact),
        )
        for name, revision, sha256, size_bytes, at, summary, tokens, tokens_exact in rows
    ]


def history(db: sqlite3.Connection, key: DocumentKey, limit: int | None) -> list[Revision]:
    rows = db.execute(
        """SELECT revision, actor, session, reason, at, sha256, size_bytes, redacted FROM revisions
            WHERE tenant = ? AND scope = ? AND owner = ? AND name = ? ORDER BY revision DESC LIMIT ?""",
        (*_params(key), MOST_REVISIONS if limit is None else max(limit, 0)),
    )
    return [
        Revision(
            revision,
            actor,
            None if session is None else SessionId(session),
            reason,
            from_micros(at),
            sha256,
            size_bytes,
            bool(redacted),
        )
        for revision, actor, session, reason, at, sha256, size_bytes, redacted in rows
    ]


def redact(db: sqlite3.Connection, key: DocumentKey, revision: int) -> list[int]:
    revisions = history(db, key, None)
    targets = redaction_targets(revisions, revision)
    if not targets:
        raise Absent(f"cannot find revision {revision} of {key.name}")
    db.executemany(
        "UPDATE revisions SET redacted = 1 WHERE tenant = ? AND scope = ? AND owner = ? AND name = ? AND revision = ?",
        [(*_params(key), target) for target in targets],
    )
    contents.drop_unreferenced(db, next(r.sha256 for r in revisions if r.revision == revision))
    return targets


def _commit(
    db: sqlite3.Connection, key: DocumentKey, text: PreparedText, revision: int, author: Author, options: StoreOptions
) -> Document:
    at = to_micros(options.clock())
    contents.keep(db, text)
    db.execute(
        """INSERT INTO documents
           (tenant, scope, owner, name, revision, sha256, size_bytes, updated_at, summary, tokens, tokens_exact)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT (tenant, scope, owner, name) DO UPDATE SET
           revision = excluded.revision, sha256 = excluded.sha256, size_bytes = excluded.size_bytes,
           updated_at = excluded.updated_at, summary = excluded.summary, tokens = excluded.tokens,
           tokens_exact = excluded.tokens_exact""",
        (
            *_params(key),
            revision,
            text.sha256,
            text.size_bytes,
            at,
            text.summary,
            text.tokens,
            int(text.tokens_exact),
        ),
    )
    db.execute(
        """INSERT INTO revisions
           (tenant, scope, owner, name, revision, sha256, size_bytes, at, actor, session, reason, request)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            *_params(key),
            revision,
            text.sha256,
            text.size_bytes,
            at,
            author.actor,
            author.session,
            author.reason,
            author.request,
        ),
    )
    change_log.announce(db, key, revision, text.sha256, at)
    return Document(text.text, revision, text.sha256)


def find_request(db: sqlite3.Connection, key: DocumentKey, request: str | None) -> Document | None:
    """Return the revision that this request already committed, if any: a retry commits nothing."""
    if request is None:
        return None
    row = db.execute(
        "SELECT revision FROM revisions WHERE tenant = ? AND scope = ? AND owner = ? AND name = ? AND request = ?",
        (*_params(key), request),
    ).fetchone()
    return None if row is None else read(db, key, row[0])


def _text(db: sqlite3.Connection, key: DocumentKey, revision: int, sha256: str) -> str:
    return contents.fetch(db, sha256, f"revision {revision} of {key.name}")


def _params(key: DocumentKey) -> tuple[str, str, str, str]:
    return (key.tenant, str(key.scope), key.owner, key.name)
