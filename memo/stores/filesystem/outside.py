"""Outside edits: what somebody does to a document's file with an editor, cp or rm becomes a revision like any other.

A file that differs from the newest revision is the newer one, by actor `outside`. A deleted file is an edit too: the
text is empty then, and the history stays; None keeps meaning "never written". A file that cannot be read, is no UTF-8
or is over the limit is an error until somebody mends it, and is never overwritten.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

from memo.documents import Author, Document, sha256_of
from memo.errors import Corrupt
from memo.stores.filesystem import documents
from memo.stores.filesystem.commits import Commit, Version
from memo.stores.filesystem.disk import closing, disk_errors, read_all
from memo.stores.filesystem.finishing import commit, keep_text
from memo.stores.filesystem.layout import document_name, is_adoptable
from memo.stores.filesystem.owners import Place, Stale, Unsettled
from memo.stores.prepared import prepare_document

OUTSIDE: Final = "outside"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is on disk. None: there is no file. `changed_at_ns` is when it, or its absence, came about."""

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


def look(place: Place, name: str) -> Seen:
    fd = place.directory.open_file(name)
    if fd is None:
        return Seen(None, os.fstat(place.directory.fd).st_mtime_ns)
    with closing(fd), disk_errors(f"read {place.directory.where(name)}"):
        content = read_all(fd, place.options.limits.document_bytes)
        return Seen(content, os.fstat(fd).st_mtime_ns)


def is_current(version: Version | None, seen: Seen) -> bool:
    """Say whether the file is the newest revision. A missing file is an empty one, if it was ever written."""
    if version is None:
        return seen.content is None
    return sha256_of(seen.content or b"") == version.revision.sha256


def reconcile(place: Place, name: str) -> Current | None:
    """Return the newest revision, made from the file if somebody changed that. Raise Unsettled if they still do."""
    newest = place.state.newest(name)
    seen = look(place, name)
    if is_current(newest, seen):
        return None if newest is None else Current(newest, seen.content or b"")
    if not place.is_exclusive:
        raise Stale
    if 0 <= time.time_ns() - seen.changed_at_ns < place.settle_s * 1e9:
        raise Unsettled  # an editor may be between truncating and writing
    return _adopt(place, name, seen, newest)


def _adopt(place: Place, name: str, seen: Seen, newest: Version | None) -> Current:
    text = prepare_document(_decoded(place, name, seen.content or b""), place.options)
    reason = "file deleted" if seen.content is None else "file edited" if newest else "file found"
    draft = documents.draft_of(place, name, text, Author(OUTSIDE, reason=reason), outside=True)
    keep_text(place, name, text.encoded, text.sha256)
    commit(place, Commit(place.state.next_number, place.log.end(), documents=(draft.version,)))
    return Current(draft.version, text.encoded)


def _decoded(place: Place, name: str, content: bytes) -> str:
    limit = place.options.limits.document_bytes
    if len(content) > limit:
        raise Corrupt(f"cannot read {place.directory.where(name)}: it is longer than the limit of {limit} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"cannot read {place.directory.where(name)}: it is not UTF-8 at byte {error.start}") from None


def document_files(place: Place) -> list[str]:
    """Return every document of the owner: those written before, and new files that look like one."""
    known = place.state.documents
    found = (name for name in place.directory.names() if document_name(name) and is_adoptable(name))
    return sorted({*known, *(name for name in found if name in known or place.directory.is_file(name))})
