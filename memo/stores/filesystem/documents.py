"""Documents and their revisions on disk. Every function works on a locked place, whose commits are finished.

The file everybody sees holds the newest revision; the hidden directory holds the text of every one. What a change
means is decided by `memo.documents`; this only keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass

from memo.documents import (
    Author,
    Document,
    DocumentEntry,
    DocumentKey,
    DocumentName,
    Expected,
    Revision,
    conflict,
    is_expected,
    redacted_error,
    redaction_targets,
    summary_of,
)
from memo.errors import Absent
from memo.ids import SessionId
from memo.stores.filesystem import outside
from memo.stores.filesystem.commits import Commit, Redaction, Version
from memo.stores.filesystem.finishing import commit, keep_text, read_text
from memo.stores.filesystem.layout import STAGED
from memo.stores.filesystem.owners import Place
from memo.stores.prepared import PreparedText, prepare_document


@dataclass(frozen=True, slots=True)
class Draft:
    """A revision on its way to the disk."""

    version: Version
    encoded: bytes


def read(place: Place | None, key: DocumentKey, revision: int | None) -> Document | None:
    if place is None:
        return None
    if revision is None:
        current = outside.reconcile(place, key.name)
        return None if current is None else current.document
    versions = place.state.documents.get(key.name, [])
    if not 1 <= revision <= len(versions):
        return None
    return document_of(place, versions[revision - 1])


def write(place: Place, key: DocumentKey, text: PreparedText, expected: Expected, author: Author) -> Document:
    repeated = _repeated(place, key, author)
    if repeated is not None:
        return repeated
    current = outside.reconcile(place, key.name)
    if not is_expected(current.version.revision.revision if current else None, expected):
        raise conflict(key, expected, current.document if current else None)
    return _commit(place, draft_of(place, key.name, text, author), text.text)


def append(place: Place, key: DocumentKey, added: str, author: Author) -> Document:
    repeated = _repeated(place, key, author)
    if repeated is not None:
        return repeated
    current = outside.reconcile(place, key.name)
    text = prepare_document((current.document.content if current else "") + added, place.options)
    return _commit(place, draft_of(place, key.name, text, author), text.text)


def list_of(place: Place | None) -> list[DocumentEntry]:
    if place is None:
        return []
    newest = [outside.reconcile(place, name) for name in outside.document_files(place)]
    return [_entry(place, current) for current in newest if current is not None]


def history(place: Place | None, key: DocumentKey, limit: int | None) -> list[Revision]:
    if place is None:
        return []
    outside.reconcile(place, key.name)
    return [version.revision for version in reversed(place.state.documents.get(key.name, []))][:limit]


def redact(place: Place, key: DocumentKey, revision: int, author: Author) -> list[int]:
    outside.reconcile(place, key.name)
    revisions = [version.revision for version in place.state.documents.get(key.name, [])]
    targets = redaction_targets(revisions, revision)
    if not targets:
        raise Absent(f"cannot find revision {revision} of {key.name}")
    redaction = Redaction(key.name, tuple(targets), revisions[revision - 1].sha256, author.actor, author.reason)
    commit(place, Commit(place.state.next_number, place.log.end(), redaction=redaction))
    return targets


def draft_of(place: Place, name: str, text: PreparedText, author: Author, *, outside: bool = False) -> Draft:
    revision = Revision(
        revision=len(place.state.documents.get(name, [])) + 1,
        actor=author.actor,
        session=None if author.session is None else SessionId(author.session),
        reason=author.reason,
        at=place.options.clock(),
        sha256=text.sha256,
        size_bytes=text.size_bytes,
    )
    version = Version(name, revision, text.tokens, text.tokens_exact, author.request, outside)
    return Draft(version, text.encoded)


def stage(place: Place, draft: Draft) -> None:
    """Make everything durable that the commit will need."""
    keep_text(place, draft.version.name, draft.encoded, draft.version.revision.sha256)
    place.hidden.stage(STAGED, draft.encoded)


def document_of(place: Place, version: Version) -> Document:
    if version.revision.redacted:
        raise redacted_error(DocumentName(version.name), version.revision.revision)
    return Document(read_text(place, version).decode(), version.revision.revision, version.revision.sha256)


def _commit(place: Place, draft: Draft, text: str) -> Document:
    stage(place, draft)
    commit(place, Commit(place.state.next_number, place.log.end(), documents=(draft.version,)))
    return Document(text, draft.version.revision.revision, draft.version.revision.sha256)


def _repeated(place: Place, key: DocumentKey, author: Author) -> Document | None:
    """Return what this request committed before, if it did: a retry is one revision."""
    if author.request is None:
        return None
    versions = place.state.documents.get(key.name, [])
    return next((document_of(place, v) for v in versions if v.request == author.request), None)


def _entry(place: Place, current: outside.Current) -> DocumentEntry:
    version, revision = current.version, current.version.revision
    return DocumentEntry(
        place.owner.key(version.name),
        revision.revision,
        revision.sha256,
        revision.size_bytes,
        revision.at,
        summary_of(current.document.content),
        version.tokens,
        version.tokens_exact,
    )
