"""Documents and artifacts as values: their keys, their revisions, and the rules of compare-and-swap and redaction.

Pure. A store keeps these values and follows the decisions of the functions below.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import Final, Literal, NamedTuple, Self

from memo.content import Document, sha256_of, summary_of, unified_diff
from memo.errors import InvalidKey, Redacted, RevisionConflict
from memo.ids import Id, OwnerId, SessionId, SessionRef, TenantId, ToolCallId, UserId

__all__ = [
    "ABSENT",
    "ANY",
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
    "Revision",
    "Scope",
    "conflict",
    "is_expected",
    "redacted_error",
    "redaction_targets",
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


# Names with another meaning in a session's directory, in a mirror or in a filesystem store.
RESERVED_NAMES: Final = frozenset(
    {"tool-results", "session.jsonl", "messages.jsonl", "messages.compactions", "trace", "orchestration"}
)


class DocumentName(Id):
    """A file name that is safe in every directory: one component, ASCII, never hidden, never reserved."""

    __slots__ = ()
    noun = "document name"

    def __new__(cls, text: object) -> Self:
        name = super().__new__(cls, text)
        if name.lower() in RESERVED_NAMES:
            raise InvalidKey(f"cannot use this document name: {name} is reserved")
        return name


NOTES: Final = DocumentName("NOTES.md")
TODO: Final = DocumentName("TODO.md")
USER: Final = DocumentName("USER.md")


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
    """The metadata of one committed state, without its text."""

    revision: int
    actor: str
    session: SessionId | None
    reason: str
    at: datetime
    sha256: str
    size_bytes: int
    redacted: bool = False


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


def is_expected(current: int | None, expected: Expected) -> bool:
    """Return whether a write that expects `expected` may replace revision `current` (None or 0: never written)."""
    if expected is ANY:
        return True
    if expected is ABSENT:
        return current is None
    return (current or 0) == expected


def conflict(key: DocumentKey, expected: Expected, current: Document | None) -> RevisionConflict:
    wanted = f"revision {expected}" if isinstance(expected, int) else expected.value
    found = "it was never written" if current is None else f"it is at revision {current.revision}"
    return RevisionConflict(f"cannot write {key.name}: expected {wanted}, but {found}", current)


def redaction_targets(revisions: list[Revision], revision: int) -> list[int]:
    """Return the revisions that hold the text of `revision`, or [] if it does not exist.

    Every revision with the same text is redacted too, or the secret would survive in a copy. Readers see the newest
    revision, so a write must replace its text first.
    """
    chosen = next((r for r in revisions if r.revision == revision), None)
    if chosen is None:
        return []
    newest = max(revisions, key=lambda r: r.revision)
    if newest.sha256 == chosen.sha256 and not newest.redacted:
        raise RevisionConflict(
            f"cannot redact revision {revision}: revision {newest.revision} has the same text; write a new one first"
        )
    return [r.revision for r in revisions if r.sha256 == chosen.sha256]


def redacted_error(name: DocumentName, revision: int) -> Redacted:
    return Redacted(f"cannot read revision {revision} of {name}: its text was redacted")
