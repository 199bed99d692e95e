"""A document of a session or a user: queries, revisions, and the outcomes of a write, a deletion and a move."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import ConfigDict, Field

from memo import documents
from memo.document_names import MOST_NAME_BYTES
from sandboxd.models.wire import AnswerModel, BodyModel, QueryModel

MAX_REVISION = 2**63 - 1


class ScopeQuery(QueryModel):
    scope: Literal["session", "user"] = Field(
        default="session", description="`user` selects the documents of the session's user."
    )


class ListQuery(ScopeQuery):
    prefix: str = Field(
        default="", max_length=MOST_NAME_BYTES, description="Only documents whose names start with this."
    )


class ReadQuery(ScopeQuery):
    revision: int | None = Field(
        default=None, ge=1, le=MAX_REVISION, description="An old revision; the newest by default."
    )


class WriteQuery(ScopeQuery):
    merge: bool = Field(
        default=False, description="If the document has changed, try a three-way merge from If-Match's revision."
    )


class HistoryQuery(ScopeQuery):
    limit: int | None = Field(
        default=None, ge=1, le=MAX_REVISION, description="Return at most this many, newest first."
    )


class DiffQuery(ScopeQuery):
    before: int | None = Field(
        default=None,
        alias="from",
        ge=0,
        le=MAX_REVISION,
        description="The revision before `to` by default; 0 is the empty text.",
    )
    after: int | None = Field(default=None, alias="to", ge=1, le=MAX_REVISION, description="The newest by default.")


class RestoreBody(BodyModel):
    revision: int = Field(ge=1, le=MAX_REVISION)


class DocumentMove(BodyModel):
    source: str = Field(alias="from", description="The name of the document.")
    target: str = Field(alias="to", description="Its new name, which no other document has.")


class Document(AnswerModel):
    """A document's text and revision, which are the body and the ETag of an answer."""

    text: str
    revision: int


class Written(AnswerModel):
    """The outcome of a write. A queued one waits for an unavailable store and has no revision yet."""

    revision: int | None = None
    sha256: str | None = None
    queued: bool = False
    merged: bool = Field(default=False, description="Whether this revision also merges a change by another writer.")


class WrittenRevision(Written):
    """A write that the store has committed."""

    model_config = ConfigDict(title="WrittenAnswer")

    revision: int
    sha256: str


class QueuedWrite(Written):
    """A write that waits for the store."""

    model_config = ConfigDict(title="QueuedAnswer")

    queued: Literal[True] = Field(
        default=True, description="The store is unavailable; the write is saved and delivered later, in order."
    )


class Deletion(AnswerModel):
    """A deleted document. An earlier revision can be restored."""

    model_config = ConfigDict(title="DeletionAnswer")

    name: str
    revision: int = Field(description="The revision that is the deletion.")


class Moved(AnswerModel):
    """A document under its new name."""

    model_config = ConfigDict(title="MovedAnswer")

    name: str
    revision: int
    sha256: str


class DocumentInfo(AnswerModel):
    """A document as lists show it, without its text."""

    model_config = ConfigDict(title="DocumentAnswer")

    name: str
    revision: int
    sha256: str
    size: int
    updated_at: datetime
    summary: str
    tokens: int
    tokens_exact: bool = True

    @classmethod
    def of(cls, entry: documents.DocumentEntry) -> Self:
        return cls(
            name=entry.key.name,
            revision=entry.revision,
            sha256=entry.sha256,
            size=entry.size_bytes,
            updated_at=entry.updated_at,
            summary=entry.summary,
            tokens=entry.tokens,
            tokens_exact=entry.tokens_exact,
        )


class DocumentList(AnswerModel):
    model_config = ConfigDict(title="DocumentsAnswer")

    items: list[DocumentInfo]


class Revision(AnswerModel):
    """One revision of a document: who wrote it, when and why."""

    model_config = ConfigDict(title="RevisionAnswer")

    revision: int
    actor: str
    session: str | None
    reason: str
    at: datetime
    sha256: str
    size: int
    redacted: bool = False
    deleted: bool = Field(default=False, description="Whether this revision deleted the document.")
    moved_to: str | None = Field(default=None, description="The new name, if this deletion is part of a move.")
    moved_from: str | None = Field(default=None, description="The old name, if a move made this revision.")

    @classmethod
    def of(cls, revision: documents.Revision) -> Self:
        return cls(
            revision=revision.revision,
            actor=revision.actor,
            session=revision.session,
            reason=revision.reason,
            at=revision.at,
            sha256=revision.sha256,
            size=revision.size_bytes,
            redacted=revision.redacted,
            deleted=revision.deleted,
            moved_to=revision.moved if revision.deleted else None,
            moved_from=None if revision.deleted else revision.moved,
        )


class History(AnswerModel):
    model_config = ConfigDict(title="HistoryAnswer")

    items: list[Revision] = Field(description="Newest first.")
