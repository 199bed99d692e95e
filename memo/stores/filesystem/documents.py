"""Documents on disk: the visible file holds the newest revision, the hidden directory the text of every revision.

The visible file may be edited with any program. A file that differs from the newest revision is newer, and is committed
as a revision by the actor `outside`; a file that was removed becomes a deletion, which can be restored. A file that
cannot be read, is not UTF-8 or exceeds the limit raises an error until it is repaired, and is never overwritten. Every
function works on a locked home; what a change means is decided in `memo.documents`.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, replace
from typing import Final

from memo.document_names import DocumentName, check_new_name, clashes, count_limited, name_exists
from memo.documents import (
    ANY,
    Author,
    Document,
    DocumentEntry,
    DocumentKey,
    Expected,
    MovedDocument,
    Revision,
    check_deletion,
    conflict,
    deletion_of,
    is_expected,
    redacted_error,
    redaction_targets,
    reused_request,
    sha256_of,
    summary_of,
)
from memo.errors import Absent, Corrupt, InvalidKey
from memo.ids import SessionId
from memo.stores.filesystem.commit_log import Redaction, Version
from memo.stores.filesystem.directory import closing, disk_errors, read_all
from memo.stores.filesystem.document_files import find_files, open_parent, split
from memo.stores.filesystem.home import Home, NeedsExclusiveLock, StillChanging
from memo.stores.filesystem.layout import STAGED, is_adoptable
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
    if not 1 <= revision <= len(versions) or versions[revision - 1].revision.deleted:
        return None
    return document_of(home, versions[revision - 1])


def write(home: Home, key: DocumentKey, text: PreparedText, expected: Expected, author: Author) -> Document:
    repeated = find_request(home, key, author.request)
    if repeated is not None:
        return repeated
    current = reconcile(home, key.name)
    newest = home.state.newest(key.name)
    is_deleted = newest is not None and newest.revision.deleted
    number = newest.revision.revision if newest else None
    if not is_expected(number, expected, deleted=is_deleted):
        raise conflict(key, expected, current.document if current else None, deletion=number if is_deleted else None)
    if current is None:
        check_creation(home, key.name)
    return _commit(home, draft_of(home, key.name, text, author), text.text)


def append(home: Home, key: DocumentKey, added: str, author: Author) -> Document:
    repeated = find_request(home, key, author.request)
    if repeated is not None:
        return repeated
    current = reconcile(home, key.name)
    text = prepare_document((current.document.content if current else "") + added, home.options)
    return write(home, key, text, ANY, author)


def delete(home: Home, key: DocumentKey, expected: Expected, author: Author) -> Revision:
    repeated = _find_deletion(home, key, author.request)
    if repeated is not None:
        return repeated
    current = reconcile(home, key.name)
    _check_deletion("delete", home, key, current, expected)
    deletion = _deletion(home, key.name, author)
    home.commit(documents=(deletion,))
    return deletion.revision


def move(home: Home, key: DocumentKey, to: DocumentName, expected: Expected, author: Author) -> MovedDocument:
    repeated = _find_deletion(home, key, author.request)
    if repeated is not None:
        again = find_request(home, replace(key, name=to), author.request)
        if again is None:
            raise reused_request(key.name)
        return MovedDocument(repeated, again)
    if to == key.name:
        raise InvalidKey(f"cannot move {to}: both names are the same")
    current = reconcile(home, key.name)
    before = _check_deletion("move", home, key, current, expected)
    if reconcile(home, to) is not None:
        raise name_exists(to)
    check_creation(home, to, instead_of=key.name)
    deletion = _deletion(home, key.name, author, moved=to)
    draft = draft_of(home, to, prepare_document(before.content, home.options), author, moved=key.name)
    stage(home, draft)
    home.commit(documents=(deletion, draft.version))  # in this order: `a` may become the directory of `a/b`
    return MovedDocument(
        deletion.revision, Document(before.content, draft.version.revision.revision, draft.version.revision.sha256)
    )


def check_creation(home: Home, name: DocumentName, instead_of: str | None = None) -> None:
    """Raise NameTaken or TooMany if a document of this name cannot be created."""
    for other in list(clashes(name, home.state.live_names() - {instead_of})):
        reconcile(home, other)  # its file may have been removed by another program
    check_new_name(name, home.state.live_names() - {instead_of}, home.options.limits.documents)


def _check_deletion(verb: str, home: Home, key: DocumentKey, current: Current | None, expected: Expected) -> Document:
    newest = home.state.newest(key.name)
    document = None if current is None else current.document
    return check_deletion(verb, key, None if newest is None else newest.revision, document, expected)


def _deletion(
    home: Home, name: str, author: Author, *, moved: DocumentName | None = None, outside: bool = False
) -> Version:
    number = len(home.state.documents.get(name, [])) + 1
    revision = deletion_of(number, author, home.options.clock(), moved)
    return Version(name, revision, 0, True, author.request, outside)


def list_of(home: Home | None, prefix: str = "") -> list[DocumentEntry]:
    if home is None:
        return []
    newest = [reconcile(home, name) for name in document_files(home) if name.startswith(prefix)]
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


def draft_of(
    home: Home,
    name: str,
    text: PreparedText,
    author: Author,
    *,
    outside: bool = False,
    moved: DocumentName | None = None,
) -> Draft:
    revision = Revision(
        revision=len(home.state.documents.get(name, [])) + 1,
        actor=author.actor,
        session=None if author.session is None else SessionId(author.session),
        reason=author.reason,
        at=home.options.clock(),
        sha256=text.sha256,
        size_bytes=text.size_bytes,
        moved=moved,
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
    version = _version_of(home, key, request)
    if version is not None and version.revision.deleted:
        raise reused_request(key.name)
    return None if version is None else document_of(home, version)


def _find_deletion(home: Home, key: DocumentKey, request: str | None) -> Revision | None:
    version = _version_of(home, key, request)
    if version is not None and not version.revision.deleted:
        raise reused_request(key.name)
    return None if version is None else version.revision


def _version_of(home: Home, key: DocumentKey, request: str | None) -> Version | None:
    if request is None:
        return None
    return next((v for v in home.state.documents.get(key.name, []) if v.request == request), None)


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


def look(home: Home, name: str, newest: Version | None) -> Seen:
    """Look at the visible file. A directory in its place counts as missing, unless the document exists."""
    file = split(name)[1]
    parent, is_there = open_parent(home.directory, name)
    with parent:
        is_expected_there = newest is not None and not newest.revision.deleted
        if not is_there or (not is_expected_there and parent.is_directory(file)):
            return Seen(None, os.fstat(parent.fd).st_mtime_ns)
        fd = parent.open_file(file)
        if fd is None:
            return Seen(None, os.fstat(parent.fd).st_mtime_ns)
        with closing(fd), disk_errors(f"read {parent.where(file)}"):
            content = read_all(fd, home.options.limits.document_bytes)
            return Seen(content, os.fstat(fd).st_mtime_ns)


def is_current(version: Version | None, seen: Seen) -> bool:
    """Return whether the file is the newest revision."""
    if version is None or version.revision.deleted:
        return seen.content is None
    return seen.content is not None and sha256_of(seen.content) == version.revision.sha256


def reconcile(home: Home, name: str) -> Current | None:
    """Return the newest revision; commit an outside edit first. Raise StillChanging if the edit is too recent."""
    newest = home.state.newest(name)
    seen = look(home, name, newest)
    if is_current(newest, seen):
        return None if newest is None or seen.content is None else Current(newest, seen.content)
    if not home.is_exclusive:
        raise NeedsExclusiveLock
    if 0 <= time.time_ns() - seen.changed_at_ns < home.settle_s * 1e9:
        raise StillChanging  # an editor may have truncated the file and not yet written it
    return _adopt(home, name, seen, newest)


def _adopt(home: Home, name: str, seen: Seen, newest: Version | None) -> Current | None:
    if seen.content is None:
        home.commit(documents=(_deletion(home, name, Author(OUTSIDE, reason="file deleted"), outside=True),))
        return None
    is_new = newest is None or newest.revision.deleted
    if is_new:
        for other in list(clashes(DocumentName(name), home.state.live_names())):
            reconcile(home, other)  # its file is gone, because this one has its place
    text = prepare_document(_decoded(home, name, seen.content), home.options)
    draft = draft_of(home, name, text, Author(OUTSIDE, reason="file found" if is_new else "file edited"), outside=True)
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
    """Return the names of all documents: the known ones, and new files that look like documents.

    New files over the limit of documents stay files: another program must not make more than a caller may.
    """
    known, live = home.state.documents, home.state.live_names()
    found = [
        name
        for name, status in find_files(home.directory)
        if name not in live and is_adoptable(name) and (name in known or stat.S_ISREG(status.st_mode))
    ]
    room = max(home.options.limits.documents - count_limited(live), 0)
    return sorted(live.union(found[:room]))
