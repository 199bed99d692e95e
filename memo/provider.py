"""The contract of a memo provider: small capabilities, all optional except the first.

Any object with the methods is a provider; there is no base class to inherit. `capabilities_of` determines once what a
provider can do. In every method None means "never written" or "deleted"; every failure is an exception.
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
    DocumentName,
    Expected,
    MovedDocument,
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
        """Add to the end, atomically: of two concurrent appends, neither is lost."""


class ArtifactReader(Protocol):
    async def read_tool_result_artifact(self, session_ref: SessionRef | str, tool_call_id: str) -> str | None:
        """Return the full text of one tool result, or None if it was never written."""


class ArtifactWriter(Protocol):
    async def write_tool_result_artifact(self, session_ref: SessionRef | str, tool_call_id: str, content: str) -> None:
        """Store the full text of one tool result. Writing the same text again changes nothing."""


class ArtifactLister(Protocol):
    async def list_tool_result_artifact_ids(self, session_ref: SessionRef | str) -> list[str]:
        """Return the ids of all artifacts of the session."""


class RevisionedDocuments(Protocol):
    """Documents with revisions and compare-and-swap."""

    async def read_document(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        """Return the newest revision, or the given one; None if it was never written, or is a deletion."""

    async def write_document(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Document:
        """Commit a new revision if the newest is `expected`, else raise RevisionConflict and change nothing.

        A deleted document is absent and is created again; its revisions continue to grow. A name cannot be both a
        document and a directory of documents: raise NameTaken. Raise TooMany over the limit of documents.
        """

    async def append_document(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Document:
        """Commit the newest text plus `content` as a new revision, atomically."""


class RequestFinder(Protocol):
    """Optional addition to RevisionedDocuments: distinguishes a retry from a new request without writing."""

    async def find_request(self, key: DocumentKey, request: str) -> Document | None:
        """Return the revision of the document that this request id committed, or None if it committed none."""


class DocumentDeleter(Protocol):
    """Deletion as a revision. Only for stores with revisions."""

    async def delete_document(self, key: DocumentKey, *, expected: Expected = ANY, author: Author = HOST) -> Revision:
        """Commit a deletion if the newest revision is `expected`, else raise RevisionConflict and change nothing.

        Then the document reads as None and is not listed; its history stays and can be restored. Raise Absent if there
        is no document.
        """


class DocumentMover(Protocol):
    """Renaming within an owner. Only for stores with revisions."""

    async def move_document(
        self, key: DocumentKey, to: DocumentName, *, expected: Expected = ANY, author: Author = HOST
    ) -> MovedDocument:
        """Delete the document and commit its text under the other name, in one step, if it is at `expected`.

        Raise Absent if there is no document, and NameTaken if the other name has one.
        """


class DocumentLister(Protocol):
    async def list_documents(self, tenant: TenantId, owner: OwnerId, scope: Scope) -> list[DocumentEntry]:
        """Return every document of the owner, by name.

        The library's own stores also take `prefix`, and then return only the names that start with it.
        """


class DocumentHistory(Protocol):
    async def document_history(self, key: DocumentKey, limit: int | None = None) -> list[Revision]:
        """Return the metadata of every revision, newest first."""

    async def diff_document(self, key: DocumentKey, before: int, after: int) -> str:
        """Return the unified diff between two revisions; 0 is the state before the first."""

    async def restore_document(self, key: DocumentKey, revision: int, *, author: Author = HOST) -> Document:
        """Commit the text of an old revision as a new one."""

    async def redact_document(self, key: DocumentKey, revision: int, *, author: Author = HOST) -> list[int]:
        """Erase the text of an old revision and of every copy, and return their revisions. Metadata stays."""


class RichArtifacts(Protocol):
    async def write_artifact(self, key: ArtifactKey, content: str) -> ArtifactEntry:
        """Store the text; if it is already stored for the key, the revision stays the same."""

    async def read_artifacts(self, session: SessionRef, tool_calls: Iterable[str]) -> dict[ToolCallId, str]:
        """Return the texts of the artifacts that exist, in one call."""

    async def read_artifact_range(self, key: ArtifactKey, start: int, length: int) -> bytes | None:
        """Return up to `length` bytes of the UTF-8 text from byte `start`; None if it was never written."""

    async def list_artifacts(self, session: SessionRef) -> list[ArtifactEntry]:
        """Return every artifact of the session, by id."""


ArtifactLine = tuple[str, int, str, int]
"""An artifact's id, revision, sha256 and size in bytes. A plain tuple, because a session may have thousands."""


class SessionMemory(NamedTuple):
    """Everything that a session's agent may see, except the texts."""

    documents: list[DocumentEntry]
    artifacts: list[ArtifactLine]


class MemorySnapshots(Protocol):
    """The whole memory of a session in two calls, for a caller that writes it out as files."""

    async def list_memory(self, session: SessionRef, user: UserId) -> SessionMemory:
        """Return every document of the session, every document of the user, and every artifact, each by name."""

    async def read_memory(self, keys: Sequence[DocumentKey | ArtifactKey]) -> list[bytes | None]:
        """Return the newest texts in UTF-8, in the order of the keys; None for a text that was never written.

        The store need not verify them: the caller compares them with the hashes of `list_memory`.
        """


class MemoProvider(
    MemoReader,
    MemoWriter,
    MemoAppender,
    ArtifactReader,
    ArtifactWriter,
    ArtifactLister,
    RevisionedDocuments,
    RequestFinder,
    DocumentDeleter,
    DocumentMover,
    DocumentLister,
    DocumentHistory,
    RichArtifacts,
    MemorySnapshots,
    ChangeFeed,
    Protocol,
):
    """All capabilities, which every store of this library has."""


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
    delete_documents: bool
    move_documents: bool

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
    "delete_documents": ("delete_document",),
    "move_documents": ("move_document",),
}


def capabilities_of(provider: object) -> Capabilities:
    """Return what a provider can do, or raise Unsupported if it cannot even read a document."""

    def has(capability: str) -> bool:
        return all(callable(getattr(provider, method, None)) for method in _METHODS[capability])

    if not has("read"):
        raise Unsupported(f"cannot use {type(provider).__name__} as a provider: it has no read_memory_document")
    return Capabilities(**{capability: has(capability) for capability in _METHODS})
