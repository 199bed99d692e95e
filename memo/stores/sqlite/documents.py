"""Documents and their revisions in SQLite.

Every function runs inside a transaction of the caller. The rules of compare-and-swap are in `memo.documents`.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import NamedTuple

from memo.document_names import WELL_KNOWN, name_exists, name_taken, too_many
from memo.documents import (
    ANY,
    EMPTY_SHA256,
    Author,
    Document,
    DocumentEntry,
    DocumentKey,
    DocumentName,
    Expected,
    MovedDocument,
    Revision,
    Scope,
    check_deletion,
    conflict,
    deletion_of,
    is_expected,
    redacted_error,
    redaction_targets,
    reused_request,
)
from memo.errors import Absent, InvalidKey
from memo.ids import OwnerId, SessionId, TenantId
from memo.stores.options import StoreOptions
from memo.stores.prepared_text import PreparedText, prepare_document
from memo.stores.sqlite import change_log, contents
from memo.stores.timestamps import from_micros, to_micros

MOST_REVISIONS = 2**53


class _Head(NamedTuple):
    """The newest revision of a document; a deletion too."""

    revision: int
    sha256: str
    is_deleted: bool


def _head(db: sqlite3.Connection, key: DocumentKey) -> _Head | None:
    row = db.execute(
        "SELECT revision, sha256, deleted FROM documents WHERE tenant = ? AND scope = ? AND owner = ? AND name = ?",
        _params(key),
    ).fetchone()
    return None if row is None else _Head(int(row[0]), row[1], bool(row[2]))


def read(db: sqlite3.Connection, key: DocumentKey, revision: int | None) -> Document | None:
    if revision is None:
        head = _head(db, key)
        if head is None or head.is_deleted:
            return None
        return Document(_text(db, key, head.revision, head.sha256), head.revision, head.sha256)
    if not 1 <= revision < MOST_REVISIONS:
        return None
    row = db.execute(
        """SELECT revision, sha256, redacted, deleted FROM revisions
           WHERE tenant = ? AND scope = ? AND owner = ? AND name = ? AND revision = ?""",
        (*_params(key), revision),
    ).fetchone()
    if row is None or row[3]:
        return None
    if row[2]:
        raise redacted_error(key.name, revision)
    return Document(_text(db, key, row[0], row[1]), row[0], row[1])


def body_of(db: sqlite3.Connection, key: DocumentKey) -> bytes | None:
    """Return the newest text without checking its hash; None if there is none."""
    row = db.execute(
        """SELECT body FROM documents LEFT JOIN contents ON contents.sha256 = documents.sha256
           WHERE tenant = ? AND scope = ? AND owner = ? AND name = ? AND deleted = 0""",
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
    moved: DocumentName | None = None,
) -> Document:
    repeated = find_request(db, key, author.request)
    if repeated is not None:
        return repeated
    head = _head(db, key)
    is_deleted = head is not None and head.is_deleted
    if not is_expected(head.revision if head else None, expected, deleted=is_deleted):
        raise conflict(key, expected, read(db, key, None), deletion=head.revision if head and is_deleted else None)
    if head is None or is_deleted:
        _check_new_name(db, key, options)
    return _commit(db, key, text, (head.revision if head else 0) + 1, author, options, moved)


def append(db: sqlite3.Connection, key: DocumentKey, added: str, author: Author, options: StoreOptions) -> Document:
    repeated = find_request(db, key, author.request)
    if repeated is not None:
        return repeated
    before = read(db, key, None)
    text = prepare_document((before.content if before else "") + added, options)
    return write(db, key, text, ANY, author, options)


def delete(
    db: sqlite3.Connection,
    key: DocumentKey,
    expected: Expected,
    author: Author,
    options: StoreOptions,
    moved: DocumentName | None = None,
) -> Revision:
    repeated = _find_deletion(db, key, author.request)
    if repeated is not None:
        return repeated
    newest = next(iter(history(db, key, 1)), None)
    verb = "delete" if moved is None else "move"
    current = check_deletion(verb, key, newest, read(db, key, None), expected)
    deletion = deletion_of(current.revision + 1, author, options.clock(), moved)
    db.execute(
        """UPDATE documents SET revision = ?, sha256 = ?, size_bytes = 0, updated_at = ?, summary = '', tokens = 0,
           deleted = 1 WHERE tenant = ? AND scope = ? AND owner = ? AND name = ?""",
        (deletion.revision, EMPTY_SHA256, to_micros(deletion.at), *_params(key)),
    )
    _keep_revision(db, key, deletion, author.request)
    change_log.announce(db, key, deletion.revision, EMPTY_SHA256, to_micros(deletion.at), deleted=True)
    return deletion


def move(
    db: sqlite3.Connection,
    key: DocumentKey,
    to: DocumentName,
    expected: Expected,
    author: Author,
    options: StoreOptions,
) -> MovedDocument:
    target = replace(key, name=to)
    repeated = _find_deletion(db, key, author.request)
    if repeated is not None:
        document = find_request(db, target, author.request)
        if document is None:
            raise reused_request(key.name)
        return MovedDocument(repeated, document)
    if to == key.name:
        raise InvalidKey(f"cannot move {to}: both names are the same")
    before = read(db, key, None)
    deletion = delete(db, key, expected, author, options, to)
    assert before is not None  # noqa: S101  # else there was nothing to delete
    head = _head(db, target)
    if head is not None and not head.is_deleted:
        raise name_exists(to)
    text = prepare_document(before.content, options)
    return MovedDocument(deletion, write(db, target, text, ANY, author, options, key.name))


def _check_new_name(db: sqlite3.Connection, key: DocumentKey, options: StoreOptions) -> None:
    """Raise NameTaken or TooMany if the document cannot be created. The rules are in `memo.document_names`."""
    owner = (key.tenant, str(key.scope), key.owner)
    live = "FROM documents WHERE tenant = ? AND scope = ? AND owner = ? AND deleted = 0"
    for ancestor in key.name.ancestors:
        if db.execute(f"SELECT 1 {live} AND name = ?", (*owner, ancestor)).fetchone() is not None:
            raise name_taken(key.name, ancestor)
    below = db.execute(
        f"SELECT name {live} AND name > ? AND name < ? LIMIT 1",
        (*owner, f"{key.name}/", f"{key.name}0"),  # 0 follows / in ASCII
    ).fetchone()
    if below is not None:
        raise name_taken(key.name, below[0])
    if key.name in WELL_KNOWN:
        return
    marks = ", ".join("?" * len(WELL_KNOWN))
    (count,) = db.execute(f"SELECT count(*) {live} AND name NOT IN ({marks})", (*owner, *WELL_KNOWN)).fetchone()
    if count >= options.limits.documents:
        raise too_many(key.name, options.limits.documents)


def list_of(
    db: sqlite3.Connection, tenant: TenantId, owner: OwnerId, scope: Scope, prefix: str = ""
) -> list[DocumentEntry]:
    rows = db.execute(
        """SELECT name, revision, sha256, size_bytes, updated_at, summary, tokens, tokens_exact FROM documents
           WHERE tenant = ? AND scope = ? AND owner = ? AND deleted = 0 ORDER BY name""",
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
        if name.startswith(prefix)
    ]


def history(db: sqlite3.Connection, key: DocumentKey, limit: int | None) -> list[Revision]:
    rows = db.execute(
        """SELECT revision, actor, session, reason, at, sha256, size_bytes, redacted, deleted, moved FROM revisions
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
            bool(deleted),
            None if moved is None else DocumentName(moved),
        )
        for revision, actor, session, reason, at, sha256, size_bytes, redacted, deleted, moved in rows
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
    db: sqlite3.Connection,
    key: DocumentKey,
    text: PreparedText,
    number: int,
    author: Author,
    options: StoreOptions,
    moved: DocumentName | None,
) -> Document:
    now = options.clock()
    session = None if author.session is None else SessionId(author.session)
    revision = Revision(number, author.actor, session, author.reason, now, text.sha256, text.size_bytes, moved=moved)
    contents.keep(db, text)
    db.execute(
        """INSERT INTO documents
           (tenant, scope, owner, name, revision, sha256, size_bytes, updated_at, summary, tokens, tokens_exact)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT (tenant, scope, owner, name) DO UPDATE SET
           revision = excluded.revision, sha256 = excluded.sha256, size_bytes = excluded.size_bytes,
           updated_at = excluded.updated_at, summary = excluded.summary, tokens = excluded.tokens,
           tokens_exact = excluded.tokens_exact, deleted = 0""",
        (
            *_params(key),
            number,
            text.sha256,
            text.size_bytes,
            to_micros(now),
            text.summary,
            text.tokens,
            int(text.tokens_exact),
        ),
    )
    _keep_revision(db, key, revision, author.request)
    change_log.announce(db, key, number, text.sha256, to_micros(now))
    return Document(text.text, number, text.sha256)


def _keep_revision(db: sqlite3.Connection, key: DocumentKey, r: Revision, request: str | None) -> None:
    db.execute(
        """INSERT INTO revisions
           (tenant, scope, owner, name, revision, sha256, size_bytes, at, actor, session, reason, request,
            deleted, moved)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            *_params(key),
            r.revision,
            r.sha256,
            r.size_bytes,
            to_micros(r.at),
            r.actor,
            r.session,
            r.reason,
            request,
            int(r.deleted),
            r.moved,
        ),
    )


def find_request(db: sqlite3.Connection, key: DocumentKey, request: str | None) -> Document | None:
    """Return the revision that this request already committed, if any: a retry commits nothing."""
    found = _find_request(db, key, request)
    if found is None:
        return None
    if found[1]:
        raise reused_request(key.name)
    return read(db, key, found[0])


def _find_deletion(db: sqlite3.Connection, key: DocumentKey, request: str | None) -> Revision | None:
    found = _find_request(db, key, request)
    if found is None:
        return None
    if not found[1]:
        raise reused_request(key.name)
    return next(r for r in history(db, key, None) if r.revision == found[0])


def _find_request(db: sqlite3.Connection, key: DocumentKey, request: str | None) -> tuple[int, bool] | None:
    if request is None:
        return None
    row = db.execute(
        """SELECT revision, deleted FROM revisions
           WHERE tenant = ? AND scope = ? AND owner = ? AND name = ? AND request = ?""",
        (*_params(key), request),
    ).fetchone()
    return None if row is None else (int(row[0]), bool(row[1]))


def _text(db: sqlite3.Connection, key: DocumentKey, revision: int, sha256: str) -> str:
    return contents.fetch(db, sha256, f"revision {revision} of {key.name}")


def _params(key: DocumentKey) -> tuple[str, str, str, str]:
    return (key.tenant, str(key.scope), key.owner, key.name)
