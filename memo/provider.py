"""The contract of a memo provider: small capabilities, all optional but the first.

Any object with the methods will do; nothing needs to be inherited. What a provider can do is found out once, by
`capabilities_of`. In every method None means "never written"; whatever else goes wrong is an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

from memo.changes import ChangeFeed
from memo.documents import (
    ANY,
    HOST,
    ArtifactEntry,
    ArtifactKey,
    Author,
    Document,
    DocumentEntry,
    DocumentKey,
    Expected,
    Revision,
    Scope,
)
from memo.errors import Unsupported
from memo.ids import OwnerId, SessionRef, TenantId, ToolCallId, UserId


class MemoReader(Protocol):
    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        """Return the newest committed text, or None if it was never written. Raise if unsure."""


class MemoWriter(Protocol):
    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        """Replace the text. When this returns the text is durable; when it raises nothing has changed."""


class MemoAppender(Protocol):
    async def append_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        """Add to the end, atomically: of two appends at once, both are there afterwards."""


class ArtifactReader(Protocol):
    async def read_tool_result_artifact(self, session_ref: SessionRef | str, tool_call_id: str) -> str | None:
        """Return the full text of one tool result, or None if it was never written."""


class ArtifactWriter(Protocol):
    async def write_tool_result_artifact(self, session_ref: SessionRef | str, tool_call_id: str, content: str) -> None:
        """Keep the full text of one tool result. The same text again changes nothing."""


class ArtifactLister(Protocol):
    async def list_tool_result_artifact_ids(self, session_ref: SessionRef | str) -> list[str]:
        """Return the ids of every artifact of the session."""


class RevisionedDocuments(Protocol):
    """Reading and writing with revisions; compare-and-swap."""

    async def read_document(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        """Return the newest committed document, or the given revision of it; None if that was never written."""

    async def write_document(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Document:
        """Commit a new revision if the newest is `expected`, else raise RevisionConflict and change nothing."""

    async def append_document(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Document:
        """Commit the newest text plus `content` as a new revision, atomically."""


class DocumentLister(Protocol):
    async def list_documents(self, tenant: TenantId, owner: OwnerId, scope: Scope) -> list[DocumentEntry]:
        """Return every document of the owner, by name."""


class DocumentHistory(Protocol):
    async def document_history(self, key: DocumentKey, limit: int | None = None) -> list[Revision]:
        """Return what is known of every revision, newest first."""

    async def diff_document(self, key: DocumentKey, before: int, after: int) -> str:
        """Return the unified diff between two revisions; 0 stands for "before the first"."""

    async def restore_document(self, key: DocumentKey, revision: int, *, author: Author = HOST) -> Document:
        """Commit the text of an old revision as a new one."""

    async def redact_document(self, key: DocumentKey, revision: int, *, author: Author = HOST) -> list[int]:
        """Erase the text of an old revision and of its twins; return the revisions erased. Their metadata stays."""


class RichArtifacts(Protocol):
    async def write_artifact(self, key: ArtifactKey, content: str) -> ArtifactEntry:
        """Keep the text; a text already stored for the key keeps its revision."""

    async def read_artifacts(self, session: SessionRef, tool_calls: Iterable[str]) -> dict[ToolCallId, str]:
        """Return the texts of those that exist, in one call."""

    async def read_artifact_range(self, key: ArtifactKey, start: int, length: int) -> bytes | None:
        """Return up to `length` bytes of the UTF-8 text from byte `start`; None if it was never written."""

    async def list_artifacts(self, session: SessionRef) -> list[ArtifactEntry]:
        """Return every artifact of the session, by id."""


ArtifactLine = tuple[str, int, str, int]
"""An artifact's id, revision, sha256 and size in bytes. Bare, for a session may have very many."""


class SessionMemory(NamedTuple):
    """All that a session's agent is to see, without the texts."""

    documents: list[DocumentEntry]
    artifacts: list[ArtifactLine]


class MemorySnapshots(Protocol):
    """For whoever lays a session's whole memory out as files: two calls, however much there is."""

    async def list_memory(self, session: SessionRef, user: UserId) -> SessionMemory:
        """Return every document of the session, every document of the user, and every artifact, each by name."""

    async def read_memory(self, keys: Sequence[DocumentKey | ArtifactKey]) -> list[bytes | None]:
        """Return the newest texts in UTF-8, in the order of the keys; None for one that was never written.

        They may be handed out as they lie in the store: whoever asks compares them with the hashes of a list.
        """


class MemoProvider(
    MemoReader,
    MemoWriter,
    MemoAppender,
    ArtifactReader,
    ArtifactWriter,
    ArtifactLister,
    RevisionedDocuments,
    DocumentLister,
    DocumentHistory,
    RichArtifacts,
    MemorySnapshots,
    ChangeFeed,
    Protocol,
):
    """Everything at once: what our own stores are."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can do. `sandboxd doctor` shows it."""

    read: bool
    write: bool
    append: bool
    read_artifacts: bool
    write_artifacts: bool
    list_artifacts: bool
    revisions: bool
    list_documents: bool
    history: bool
    rich_artifacts: bool
    snapshots: bool
    changes: bool

    def missing(self) -> list[str]:
        return [field.name for field in fields(self) if not getattr(self, field.name)]


_METHODS: dict[str, tuple[str, ...]] = {
    "read": ("read_memory_document",),
    "write": ("write_memory_document",),
    "append": ("append_memory_document",),
    "read_artifacts": ("read_tool_result_artifact",),
    "write_artifacts": ("write_tool_result_artifact",),
    "list_artifacts": ("list_tool_result_artifact_ids",),
    "revisions": ("read_document", "write_document", "append_document"),
    "list_documents": ("list_documents",),
    "history": ("document_history", "diff_document", "restore_document", "redact_document"),
    "rich_artifacts": ("write_artifact", "read_artifacts", "read_artifact_range", "list_artifacts"),
    "snapshots": ("list_memory", "read_memory"),
    "changes": ("changes", "last_change"),
}


def capabilities_of(provider: object) -> Capabilities:
    """Find out what a provider can do. One that cannot read a document is no provider: Unsupported."""

    def has(capability: str) -> bool:
        return all(callable(getattr(provider, method, None)) for method in _METHODS[capability])

    if not has("read"):
        raise Unsupported(f"cannot use {type(provider).__name__} as a provider: it has no read_memory_document")
    return Capabilities(**{capability: has(capability) for capability in _METHODS})
