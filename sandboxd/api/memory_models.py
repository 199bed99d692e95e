"""The bodies, queries and answers of the memory routes, as pydantic models as strict as those in `models`.

Messages are JSON objects that are stored as given, so their contents are not checked here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from memo.compaction import CompactionOptions
from memo.documents import DocumentName
from memo.paths import parse_path
from sandboxd.api.models import Body, Query
from sandboxd.tools.context import CleanText

MAX_REVISION = 2**63 - 1
MAX_TOKENS = 2**53

_DEFAULTS = CompactionOptions()


def _memo_path(path: str) -> str:
    return str(parse_path(path))


def _document_name(name: str) -> str:
    return DocumentName(name)


MemoPath = Annotated[str, AfterValidator(_memo_path)]
Message = dict[str, Any]


class ScopeQuery(Query):
    scope: Literal["session", "user"] = Field(
        default="session", description="`user` selects the documents of the session's user."
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


class MessagesQuery(Query):
    limit: int | None = Field(default=None, ge=0, le=2**31, description="Return only this many of the newest messages.")
    budget: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOKENS,
        description="Return the newest messages within this many tokens; at least one.",
    )
    full: bool = Field(default=False, description="Return every message, archived ones included.")


class SessionsQuery(Query):
    user: str | None = Field(default=None, description="Only the sessions of this user.")


class RestoreBody(Body):
    revision: int = Field(ge=1, le=MAX_REVISION)


class RefreshBody(Body):
    path: MemoPath | None = Field(
        default=None, description="A memo path as the container sees it; all files by default."
    )
    content: CleanText | None = Field(default=None, description="The text to install if it is the newest.")


class UserRefreshBody(Body):
    name: Annotated[str, AfterValidator(_document_name)]
    content: CleanText | None = Field(default=None, description="The text to install if it is the newest.")


class SessionBody(Body):
    user: str
    agent: str | None = None


class MessagesBody(Body):
    messages: list[Message] = Field(max_length=100_000)


class TurnBody(MessagesBody):
    usage: dict[str, Any] = Field(
        default_factory=dict, description="Tokens of the turn: input, output, cache_read, cache_write."
    )


class CompactionBody(Body):
    force: bool = Field(default=False, description="Compact now, even if there are few messages.")
    trigger_tokens: int = Field(default=_DEFAULTS.trigger_tokens, ge=0, le=MAX_TOKENS)
    compact_fraction: float = Field(default=_DEFAULTS.compact_fraction, gt=0, le=1, allow_inf_nan=False)
    min_messages: int = Field(default=_DEFAULTS.min_messages, ge=0, le=2**31)
    workspace_snapshot: CleanText | None = Field(default=None, max_length=65_536)
    summary: CleanText | None = Field(
        default=None, max_length=262_144, description="The summary; an outline made without a model by default."
    )


class ToolResultsBody(MessagesBody):
    max_tokens: int = Field(default=1500, ge=0, le=MAX_TOKENS)
    keep_recent: int = Field(default=2, ge=0, le=2**31)
    recent_max_tokens: int = Field(default=6000, ge=0, le=MAX_TOKENS)


class ConsolidationBody(Body):
    dry_run: bool = Field(default=False, description="Return what would change, and change nothing.")


class WrittenAnswer(BaseModel):
    revision: int
    sha256: str
    merged: bool = Field(default=False, description="Whether this revision also merges a change by another writer.")


class QueuedAnswer(BaseModel):
    queued: Literal[True] = Field(
        description="The store is unavailable; the write is saved and delivered later, in order."
    )


class DocumentAnswer(BaseModel):
    name: str
    revision: int
    sha256: str
    size: int
    updated_at: datetime
    summary: str
    tokens: int
    tokens_exact: bool


class DocumentsAnswer(BaseModel):
    items: list[DocumentAnswer]


class RevisionAnswer(BaseModel):
    revision: int
    actor: str
    session: str | None
    reason: str
    at: datetime
    sha256: str
    size: int
    redacted: bool


class HistoryAnswer(BaseModel):
    items: list[RevisionAnswer] = Field(description="Newest first.")


class ArtifactAnswer(BaseModel):
    id: str
    revision: int | None
    sha256: str | None
    size: int | None
    at: datetime | None


class ArtifactsAnswer(BaseModel):
    items: list[ArtifactAnswer]


class RefreshedAnswer(BaseModel):
    refreshed: int = Field(description="The number of files that changed; 0 when no live sandbox shows them.")


class MirrorFileAnswer(BaseModel):
    path: str
    revision: int
    sha256: str
    size: int
    in_sync: bool
    lag_ms: float = Field(description="How long the revision took to appear, or how overdue it is.")
    pending: bool = Field(description="Shown, but not yet in the store, which is unavailable.")


class RefusedAnswer(BaseModel):
    path: str
    number: int
    size: int
    at: datetime
    why: str


class MirrorAnswer(BaseModel):
    items: list[MirrorFileAnswer]
    refused: list[RefusedAnswer] = Field(description="Queued writes that the store rejected for good; they are kept.")


class SessionAnswer(BaseModel):
    tenant: str
    session: str
    user: str
    agent: str
    created_at: datetime
    updated_at: datetime
    turns: int
    tokens: int
    message_count: int


class SessionsAnswer(BaseModel):
    items: list[SessionAnswer]


class MessagesAnswer(BaseModel):
    items: list[Message] = Field(description="Oldest first.")


class AppendedAnswer(BaseModel):
    appended: int


class CompactionAnswer(BaseModel):
    compacted: bool
    archived: int = Field(description="The number of messages that the summary replaces.")


class ToolResultsAnswer(BaseModel):
    items: list[Message] = Field(description="The messages, each long tool result replaced by a stub.")
    artifacts: list[str] = Field(description="The ids of the artifacts that hold the results.")


class FailedSessionAnswer(BaseModel):
    session: str
    reason: str


class ConsolidationAnswer(BaseModel):
    changed: bool = Field(description="Whether USER.md changed; in a dry run, whether it would.")
    revision: int | None = Field(description="The revision of USER.md; in a dry run, the next one.")
    diff: str
    sessions: list[str] = Field(description="The sessions that the profile draws on, last changed first.")
    outcome: Literal["written", "unchanged", "nothing"]
    reason: str
    failed: list[FailedSessionAnswer] = Field(description="Sessions that could not be summarised in this run.")
    dry_run: bool
    calls: int
    tokens: int


class FailureAnswer(BaseModel):
    reason: str
    count: int = Field(description="The number of failures in a row.")
    retry_at: datetime


class SessionFailureAnswer(FailureAnswer):
    session: str


class ConsolidationStateAnswer(BaseModel):
    tenant: str
    user: str
    due: bool
    why: str = Field(description="Why a run is due or not.")
    look_again_at: datetime | None = Field(description="When `due` may next change without new messages.")
    changed_sessions: int
    last_activity: datetime | None
    runs: int
    last_run_at: datetime | None
    last_outcome: str | None
    unfinished: bool = Field(description="The last run stopped at its budget.")
    revision: int | None
    held_by: str | None = Field(description="The holder of the user's lease; null in lists.")
    failure: FailureAnswer | None
    failed_sessions: list[SessionFailureAnswer]
    background: bool = Field(description="Whether this daemon runs due users in the background.")


class ConsolidationStatesAnswer(BaseModel):
    items: list[ConsolidationStateAnswer]
