"""Documents on disk: the visible file holds the newest revision, the hidden directory the text of every revision.

The visible file may be edited with any program. A file that differs from the newest revision is newer, and is committed
as a revision by the actor `outside`. A deleted file becomes an empty revision, so that None keeps meaning "never
written". A file that cannot be read, is not UTF-8 or exceeds the limit raises an error until it is repaired, and is
never overwritten. Every function works on a locked home; what a change means is decided in `memo.documents`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

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
    sha256_of,
    summary_of,
)
from memo.errors import Absent, Corrupt
from memo.ids import SessionId
from memo.stores.filesystem.commit_log import Redaction, Version
from memo.stores.filesystem.directory import closing, disk_errors, read_all
from memo.stores.filesystem.home import Home, NeedsExclusiveLock, StillChanging
from memo.stores.filesystem.layout import STAGED, document_name, is_adoptable
from memo.stores.prepared_text import PreparedText, prepare_document


@dataclass(frozen=True, slots=True)
class Draft:
    """A revision that is about to be written."""

    version: Version
    encoded: bytes


def read(home: Home | None, key: DocumentKey, revision: int | None) -> Document | None:
    if home is None:
        return None
    if revision is None:
        current = reconcile(home, key.name)
        return None if current is None else current.document
    versions = home.state.documents.get(key.name, [])
    if not 1 <= revision <= len(versions):
        return None
    return document_of(home, versions[revision - 1])


def write(home: Home, key: DocumentKey, text: PreparedText, expected: Expected, author: Author) -> Document:
    repeated = find_request(home, key, author.request)
    if repeated is not None:
        return repeated
    current = reconcile(home, key.name)
    if not is_expected(current.version.revision.revision if current else None, expected):
        raise conflict(key, expected, current.document if current else None)
    return _commit(home, draft_of(home, key.name, text, author), text.text)


def append(home: Home, key: DocumentKey, added: str, author: Author) -> Document:
    repeated = find_request(home, key, author.request)
    if repeated is not None:
        return repeated
    current = reconcile(home, key.name)
    text = prepare_document((current.document.content if current else "") + added, home.options)
    return _commit(home, draft_of(home, key.name, text, author), text.text)


def list_of(home: Home | None) -> list[DocumentEntry]:
    if home is None:
        return []
    newest = [reconcile(home, name) for name in document_files(home)]
    return [_entry(home, current) for current in newest if current is not None]


def history(home: Home | None, key: DocumentKey, limit: int | None) -> list[Revision]:
    if home is None:
        return []
    reconcile(home, key.name)
    return [version.revision for version in reversed(home.state.documents.get(key.name, []))][:limit]


def redact(home: Home, key: DocumentKey, revision: int, author: Author) -> list[int]:
    reconcile(home, key.name)
    revisions = [version.revision for version in home.state.documents.get(key.name, [])]
    targets = redaction_targets(revisions, revision)
    if not targets:
        raise Absent(f"cannot find revision {revision} of {key.name}")
    redaction = Redaction(key.name, tuple(targets), revisions[revision - 1].sha256, author.actor, author.reason)
    home.commit(redaction=redaction)
    return targets


def draft_of(home: Home, name: str, text: PreparedText, author: Author, *, outside: bool = False) -> Draft:
    revision = Revision(
        revision=len(home.state.documents.get(name, [])) + 1,
        actor=author.actor,
        session=None if author.session is None else SessionId(author.session),
        reason=author.reason,
        at=home.options.clock(),
        sha256=text.sha256,
        size_bytes=text.size_bytes,
    )
    version = Version(name, revision, text.tokens, text.tokens_exact, author.request, outside)
    return Draft(version, text.encoded)


def stage(home: Home, draft: Draft) -> None:
    """Make durable everything that the commit needs."""
    home.keep_text(draft.version.name, draft.encoded, draft.version.revision.sha256)
    home.hidden.stage(STAGED, draft.encoded)


def document_of(home: Home, version: Version) -> Document:
    if version.revision.redacted:
        raise redacted_error(DocumentName(version.name), version.revision.revision)
    return Document(home.read_text(version).decode(), version.revision.revision, version.revision.sha256)


def _commit(home: Home, draft: Draft, text: str) -> Document:
    stage(home, draft)
    home.commit(documents=(draft.version,))
    return Document(text, draft.version.revision.revision, draft.version.revision.sha256)


def find_request(home: Home, key: DocumentKey, request: str | None) -> Document | None:
    """Return the revision that this request already committed, if any: a retry commits nothing."""
    if request is None:
        return None
    versions = home.state.documents.get(key.name, [])
    return next((document_of(home, v) for v in versions if v.request == request), None)


def _entry(home: Home, current: Current) -> DocumentEntry:
    version, revision = current.version, current.version.revision
    return DocumentEntry(
        home.owner.key(version.name),
        revision.revision,
        revision.sha256,
        revision.size_bytes,
        revision.at,
        summary_of(current.document.content),
        version.tokens,
        version.tokens_exact,
    )


OUTSIDE: Final = "outside"


@dataclass(frozen=True, slots=True)
class Seen:
    """The visible file; `content` is None if it does not exist. `changed_at_ns` is when it changed or was removed."""

    content: bytes | None
    changed_at_ns: int


@dataclass(frozen=True, slots=True)
class Current:
    """The newest revision, and its text."""

    version: Version
    encoded: bytes

    @property
    def document(self) -> Document:
        return Document(self.encoded.decode(), self.version.revision.revision, self.version.revision.sha256)


def look(home: Home, name: str) -> Seen:
    fd = home.directory.open_file(name)
    if fd is None:
        return Seen(None, os.fstat(home.directory.fd).st_mtime_ns)
    with closing(fd), disk_errors(f"read {home.directory.where(name)}"):
        content = read_all(fd, home.options.limits.document_bytes)
        return Seen(content, os.fstat(fd).st_mtime_ns)


def is_current(version: Version | None, seen: Seen) -> bool:
    """Return whether the file is the newest revision. A missing file counts as an empty one, if it was ever written."""
    if version is None:
        return seen.content is None
    return sha256_of(seen.content or b"") == version.revision.sha256


def reconcile(home: Home, name: str) -> Current | None:
    """Return the newest revision; commit an outside edit first. Raise StillChanging if the edit is too recent."""
    newest = home.state.newest(name)
    seen = look(home, name)
    if is_current(newest, seen):
        return None if newest is None else Current(newest, seen.content or b"")
    if not home.is_exclusive:
        raise NeedsExclusiveLock
    if 0 <= time.time_ns() - seen.changed_at_ns < home.settle_s * 1e9:
        raise StillChanging  # an editor may have truncated the file and not yet written it
    return _adopt(home, name, seen, newest)


def _adopt(home: Home, name: str, seen: Seen, newest: Version | None) -> Current:
    text = prepare_document(_decoded(home, name, seen.content or b""), home.options)
    reason = "file deleted" if seen.content is None else "file edited" if newest else "file found"
    draft = draft_of(home, name, text, Author(OUTSIDE, reason=reason), outside=True)
    home.keep_text(name, text.encoded, text.sha256)
    home.commit(documents=(draft.version,))
    return Current(draft.version, text.encoded)


def _decoded(home: Home, name: str, content: bytes) -> str:
    limit = home.options.limits.document_bytes
    if len(content) > limit:
        raise Corrupt(
            f"cannot read {home.directory.where(name)}: it exceeds the limit of {limit} bytes; shorten the file"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(
            f"cannot read {home.directory.where(name)}: it is not UTF-8 at byte {error.start}; fix the file"
        ) from None


def document_files(home: Home) -> list[str]:
    """Return the names of all documents: the known ones, and new files that look like documents."""
    known = home.state.documents
    found = (name for name in home.directory.names() if document_name(name) and is_adoptable(name))
    return sorted({*known, *(name for name in found if name in known or home.directory.is_file(name))})
