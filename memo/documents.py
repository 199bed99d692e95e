"""Documents and artifacts as values: keys, revisions, and the rules of compare-and-swap, deletion and redaction.

Pure. A store keeps these values and follows the decisions of the functions below.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import Final, Literal, NamedTuple, Self

from memo.content import Document, sha256_of, summary_of, unified_diff
from memo.document_names import RESERVED_NAMES, DocumentName
from memo.errors import Absent, InvalidContent, InvalidKey, Redacted, RevisionConflict
from memo.ids import OwnerId, SessionId, SessionRef, TenantId, ToolCallId, UserId

__all__ = [
    "ABSENT",
    "ANY",
    "EMPTY_SHA256",
    "HOST",
    "NOTES",
    "RESERVED_NAMES",
    "TODO",
    "USER",
    "ArtifactEntry",
    "ArtifactKey",
    "Author",
    "Document",
    "DocumentEntry",
    "DocumentKey",
    "DocumentName",
    "Expect",
    "Expected",
    "MovedDocument",
    "Revision",
    "Scope",
    "absent_error",
    "check_deletion",
    "conflict",
    "deletion_of",
    "is_expected",
    "redacted_error",
    "redaction_targets",
    "reused_request",
    "sha256_of",
    "summary_of",
    "unified_diff",
]


class Scope(StrEnum):
    SESSION = "session"
    USER = "user"

    @classmethod
    def parse(cls, text: object) -> Scope:
        if isinstance(text, str) and text in ("session", "user"):
            return cls(text)
        raise InvalidKey("cannot use this scope: it must be session or user")


NOTES: Final = DocumentName("NOTES.md")
TODO: Final = DocumentName("TODO.md")
USER: Final = DocumentName("USER.md")
EMPTY_SHA256: Final = sha256_of(b"")


@dataclass(frozen=True, slots=True, order=True)
class DocumentKey:
    tenant: TenantId
    owner: OwnerId
    scope: Scope
    name: DocumentName

    def __str__(self) -> str:
        return f"{self.tenant}/{self.scope}/{self.owner}/{self.name}"

    @classmethod
    def of(cls, tenant: str, owner: str, scope: str, name: str) -> Self:
        """Parse four plain strings, in the order of `read_memory_document`."""
        return cls(TenantId(tenant), OwnerId(owner), Scope.parse(scope), DocumentName(name))

    @classmethod
    def of_session(cls, session: SessionRef, name: str) -> Self:
        return cls(session.tenant, OwnerId(session.session), Scope.SESSION, DocumentName(name))

    @classmethod
    def of_user(cls, tenant: TenantId, user: UserId, name: str) -> Self:
        return cls(tenant, OwnerId(user), Scope.USER, DocumentName(name))


class ArtifactKey(NamedTuple):
    """A named tuple, like its entry, because it is fast to construct and a session may have thousands."""

    session: SessionRef
    tool_call: ToolCallId

    def __str__(self) -> str:
        return f"{self.session}/{self.tool_call}"

    @classmethod
    def of(cls, session: SessionRef | str, tool_call: str) -> Self:
        return cls(SessionRef.parse(session), ToolCallId(tool_call))


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a write and the reason for it. `request` makes retries safe: it commits only once."""

    actor: str = "host"
    session: SessionId | None = None
    reason: str = ""
    request: str | None = None


HOST: Final = Author()


@dataclass(frozen=True, slots=True)
class Revision:
    """The metadata of one committed state, without its text. A deletion is a revision with an empty text."""

    revision: int
    actor: str
    session: SessionId | None
    reason: str
    at: datetime
    sha256: str
    size_bytes: int
    redacted: bool = False
    deleted: bool = False
    moved: DocumentName | None = None
    """The other name of a move: where a deleted document went, or where this text came from."""


class MovedDocument(NamedTuple):
    """The outcome of a move: the deletion of the old name, and the document under the new one."""

    deletion: Revision
    document: Document


@dataclass(frozen=True, slots=True)
class DocumentEntry:
    """One document of a list. `tokens` is an estimate unless `tokens_exact`."""

    key: DocumentKey
    revision: int
    sha256: str
    size_bytes: int
    updated_at: datetime
    summary: str
    tokens: int
    tokens_exact: bool


class ArtifactEntry(NamedTuple):
    key: ArtifactKey
    revision: int
    sha256: str
    size_bytes: int
    at: datetime


class Expect(Enum):
    ANY = "any revision"
    ABSENT = "no document"


ANY: Final = Expect.ANY
ABSENT: Final = Expect.ABSENT
Expected = int | Literal[Expect.ANY, Expect.ABSENT]


def is_expected(current: int | None, expected: Expected, *, deleted: bool = False) -> bool:
    """Return whether a change that expects `expected` may follow revision `current` (None or 0: never written).

    A document that is `deleted` counts as absent. A caller that expects the revision of the deletion
    knows of it.
    """
    if expected is ANY:
        return True
    if expected is ABSENT or expected == 0:
        return not current or deleted
    return (current or 0) == expected


def conflict(
    key: DocumentKey, expected: Expected, current: Document | None, *, deletion: int | None = None, verb: str = "write"
) -> RevisionConflict:
    wanted = f"revision {expected}" if isinstance(expected, int) else expected.value
    if current is not None:
        found = f"it is at revision {current.revision}"
    elif deletion is not None:
        found = f"it was deleted in revision {deletion}"
    else:
        found = "it was never written"
    return RevisionConflict(
        f"cannot {verb} {key.name}: expected {wanted}, but {found}", current, deletion=None if current else deletion
    )


def absent_error(verb: str, name: DocumentName, deletion: Revision | None = None) -> Absent:
    """Return the error for a document that is needed and does not exist; say so if it was deleted."""
    if deletion is None:
        return Absent(f"cannot {verb} {name}: it does not exist")
    where = f"moved to {deletion.moved}" if deletion.moved is not None else "deleted"
    return Absent(
        f"cannot {verb} {name}: it was {where} in revision {deletion.revision}; an earlier revision can be restored"
    )


def check_deletion(
    verb: str, key: DocumentKey, newest: Revision | None, current: Document | None, expected: Expected
) -> Document:
    """Return the document that a deletion or a move may remove, or raise Absent or RevisionConflict."""
    if newest is None or current is None:
        raise absent_error(verb, key.name, newest)
    if not is_expected(newest.revision, expected):
        raise conflict(key, expected, current, verb=verb)
    return current


def deletion_of(revision: int, author: Author, at: datetime, moved: DocumentName | None = None) -> Revision:
    return Revision(
        revision,
        author.actor,
        None if author.session is None else SessionId(author.session),
        author.reason,
        at,
        EMPTY_SHA256,
        0,
        deleted=True,
        moved=moved,
    )


def reused_request(name: DocumentName) -> InvalidContent:
    """Return the error for a request id that comes again with another verb, which is not a retry."""
    return InvalidContent(f"cannot change {name}: its request id was used for another change; use a new one")


def redaction_targets(revisions: list[Revision], revision: int) -> list[int]:
    """Return the revisions that hold the text of `revision`, or [] if it does not exist.

    Every revision with the same text is redacted too, or the secret would survive in a copy. Readers see the newest
    revision, so a write or a deletion must replace its text first. A deletion has no text.
    """
    texts = [r for r in revisions if not r.deleted]
    chosen = next((r for r in texts if r.revision == revision), None)
    if chosen is None:
        return []
    newest = max(revisions, key=lambda r: r.revision)
    if newest.sha256 == chosen.sha256 and not newest.redacted and not newest.deleted:
        raise RevisionConflict(
            f"cannot redact revision {revision}: revision {newest.revision} has the same text; write a new one first"
        )
    return [r.revision for r in texts if r.sha256 == chosen.sha256]


def redacted_error(name: DocumentName, revision: int) -> Redacted:
    return Redacted(f"cannot read revision {revision} of {name}: its text was redacted")
