"""Documents and artifacts as values: their keys, contents, revisions, and what "if it is still revision N" means.

Everything here is pure. A store keeps these values; it never decides differently from the functions below.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import Final, Literal, NamedTuple, Self

from memo.errors import InvalidKey, Redacted, RevisionConflict
from memo.ids import Id, OwnerId, SessionId, SessionRef, TenantId, ToolCallId, UserId


class Scope(StrEnum):
    SESSION = "session"
    USER = "user"

    @classmethod
    def parse(cls, text: object) -> Scope:
        if isinstance(text, str) and text in ("session", "user"):
            return cls(text)
        raise InvalidKey("cannot use this scope: it must be session or user")


# Names that stand for something else in the directory of a session, in a mirror or in a filesystem store.
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
    """A named tuple, and so is its entry: a session may have very many of them, and these are made fastest."""

    session: SessionRef
    tool_call: ToolCallId

    def __str__(self) -> str:
        return f"{self.session}/{self.tool_call}"

    @classmethod
    def of(cls, session: SessionRef | str, tool_call: str) -> Self:
        return cls(SessionRef.parse(session), ToolCallId(tool_call))


@dataclass(frozen=True, slots=True)
class Document:
    """One committed state of one document."""

    content: str
    revision: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Author:
    """Who writes, on whose behalf and why. `request` makes a retry safe: the same request is one revision."""

    actor: str = "host"
    session: SessionId | None = None
    reason: str = ""
    request: str | None = None


HOST: Final = Author()


@dataclass(frozen=True, slots=True)
class Revision:
    """What is known of one committed state, without its text."""

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
    """One line of a list of documents. `tokens` is exact only if `tokens_exact`."""

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
    """Say whether a write that expects `expected` may replace revision `current` (None: never written, as is 0)."""
    if expected is ANY:
        return True
    if expected is ABSENT:
        return current is None
    return (current or 0) == expected


def conflict(key: DocumentKey, expected: Expected, current: Document | None) -> RevisionConflict:
    wanted = f"revision {expected}" if isinstance(expected, int) else expected.value
    found = "it was never written" if current is None else f"it is at revision {current.revision}"
    return RevisionConflict(f"cannot write {key.name}: expected {wanted}, and {found}", current)


def redaction_targets(revisions: list[Revision], revision: int) -> list[int]:
    """Return the revisions that hold the text of `revision`, or [] if it does not exist.

    Every older copy of the text goes with it, for a secret that survives in a twin is not redacted. The newest
    revision is what readers see, so its text must be replaced by a write first.
    """
    chosen = next((r for r in revisions if r.revision == revision), None)
    if chosen is None:
        return []
    newest = max(revisions, key=lambda r: r.revision)
    if newest.sha256 == chosen.sha256 and not newest.redacted:
        raise RevisionConflict(
            f"cannot redact revision {revision}: revision {newest.revision} shows the same text; write a new one first"
        )
    return [r.revision for r in revisions if r.sha256 == chosen.sha256]


def redacted_error(name: DocumentName, revision: int) -> Redacted:
    return Redacted(f"cannot read revision {revision} of {name}: its text was redacted")


def unified_diff(name: str, before: Document | None, after: Document) -> str:
    """Return the unified diff between two revisions; None stands for "before the first"."""
    old = before.content.splitlines(keepends=True) if before else []
    new = after.content.splitlines(keepends=True)
    lines = difflib.unified_diff(old, new, f"{name}@{before.revision if before else 0}", f"{name}@{after.revision}")
    # A last line without a newline would otherwise run into the line that follows it in the diff.
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


_MARKS = re.compile(r"^[#>*\-+\s\d.]*")
_SUMMARY = re.compile(r"<!-- summary: (.*) -->")


def summary_of(content: str) -> str:
    """Return the first line that says something, without Markdown marks, at most 120 characters.

    A document may say it for itself: a profile opens with a comment `<!-- summary: … -->`.
    """
    for line in content[:4096].splitlines():
        own = _SUMMARY.fullmatch(line.strip())
        text = own[1].strip() if own else _MARKS.sub("", line).strip()
        if text:
            return text if len(text) <= 120 else text[:119] + "…"
    return ""
