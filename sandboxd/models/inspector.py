"""What the inspector's read API returns: the overview, sessions, the timeline of one, search results and statistics."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from sandboxd.models.event import Event
from sandboxd.models.health import Check
from sandboxd.models.ids import Tenant, User
from sandboxd.models.sandbox import SandboxView
from sandboxd.models.trace import JsonObject
from sandboxd.models.wire import AnswerModel, QueryModel

MAX_SESSIONS = 1000
MAX_ENTRIES = 20_000
MAX_HITS = 200


class InspectorSessionsQuery(QueryModel):
    tenant: Tenant | None = Field(default=None, description="Only sessions of this tenant.")
    user: User | None = Field(default=None, description="Only sessions of this user.")
    q: str | None = Field(default=None, max_length=200, description="Only sessions with this text in an id.")
    limit: int = Field(default=100, ge=1, le=MAX_SESSIONS)
    cursor: str | None = Field(default=None, max_length=400, description="Continue after this place: `next`.")


class InspectedSession(AnswerModel):
    """A session, or why it cannot be read: then `error` is set and the rest may be unknown."""

    model_config = ConfigDict(title="InspectedSessionAnswer")

    tenant: str | None
    session: str | None
    user: str | None = None
    agent: str | None = None
    state: str | None = Field(default=None, description="The state of its sandbox; null if it has none.")
    turns: int | None = None
    tokens: int | None = None
    message_count: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    error: str | None = None


class InspectedSessionList(AnswerModel):
    model_config = ConfigDict(title="InspectedSessionsAnswer")

    items: list[InspectedSession]
    next: str | None = Field(default=None, description="The cursor of the next page; null on the last one.")


class SessionDetails(InspectedSession):
    model_config = ConfigDict(title="SessionDetailsAnswer")

    sandbox: SandboxView | None = None
    parent: str | None = Field(default=None, description="The session that it was forked from.")
    forks: list[str] = Field(default_factory=list, description="The sessions that were forked from it.")


class MessagePage(AnswerModel):
    model_config = ConfigDict(title="InspectedMessagesAnswer")

    items: list[JsonObject] = Field(description="Oldest first, archived ones included.")
    total: int


class TimelineQuery(QueryModel):
    after: str | None = Field(default=None, max_length=400, description="Only entries after the one with this id.")
    limit: int = Field(default=1000, ge=1, le=MAX_ENTRIES)


class TimelineEntry(AnswerModel):
    """One thing that happened in a session. Fields without a value are left out."""

    model_config = ConfigDict(title="TimelineEntryAnswer")

    id: str
    at: datetime | None = None
    kind: str = Field(
        description="message, exec, tool, memo, mirror, messages, sandbox, egress, consolidation, process, context, "
        "or trace, which is an agent's own envelope."
    )
    lane: str = Field(description="user, assistant, toolResult, commands, memory, sandbox, network or trace.")
    title: str = Field(description="Plain text of at most 200 characters.")
    actor: str | None = None
    ok: bool | None = None
    duration_ms: float | None = None
    tokens: int | None = None
    tokens_in: int | None = Field(default=None, description="Of a turn: what the model read.")
    tokens_out: int | None = Field(default=None, description="Of a turn: what the model wrote.")
    size: int | None = None


class EntryDetails(TimelineEntry):
    model_config = ConfigDict(title="TimelineDetailsAnswer")

    detail: dict[str, Any] = Field(description="Everything known: the message, or the envelope.")


class Timeline(AnswerModel):
    model_config = ConfigDict(title="TimelineAnswer")

    items: list[TimelineEntry] = Field(description="Oldest first.")
    next: str | None
    total: int


class SearchQuery(QueryModel):
    q: str = Field(min_length=1, max_length=200)
    tenant: Tenant | None = Field(default=None, description="Search only in this tenant.")
    limit: int = Field(default=50, ge=1, le=MAX_HITS)


class SearchHit(AnswerModel):
    model_config = ConfigDict(title="SearchHitAnswer")

    type: Literal["session", "message", "document", "artifact"]
    tenant: str
    session: str | None = None
    user: str | None = None
    name: str | None = Field(default=None, description="The document or artifact.")
    at: datetime | None = None
    snippet: str
    index: int | None = Field(default=None, description="The message's place in the full history, from 0.")


class SearchResult(AnswerModel):
    model_config = ConfigDict(title="SearchAnswer")

    items: list[SearchHit]
    incomplete: bool = Field(description="Whether the search ended before it had looked at everything.")


class OverviewSandbox(AnswerModel):
    model_config = ConfigDict(title="OverviewSandboxAnswer")

    tenant: str
    session: str
    user: str
    state: str
    cause: str | None = None
    created_at: datetime
    idle_since: datetime | None = None


class PoolState(AnswerModel):
    model_config = ConfigDict(title="PoolAnswer")

    warm: int
    target: int


class StoreState(Check):
    model_config = ConfigDict(title="StoreStateAnswer")

    unsupported: list[str] = Field(default_factory=list, description="What this store cannot do.")


class Overview(AnswerModel):
    model_config = ConfigDict(title="OverviewAnswer")

    version: str
    now: datetime
    engine: Check
    store: StoreState
    ready: bool
    checks: list[Check]
    states: dict[str, int]
    pool: PoolState
    sessions: int | None = Field(description="How many sessions the store has; null if it cannot tell.")
    sandboxes: list[OverviewSandbox]
    failures: list[Event] = Field(description="The newest events that report a failure, newest first.")


class HostStats(AnswerModel):
    model_config = ConfigDict(title="HostStatsAnswer")

    cpu_percent: float | None
    memory_used: int
    memory_total: int
    disk_used: int
    disk_total: int


class SandboxStats(AnswerModel):
    model_config = ConfigDict(title="SandboxStatsAnswer")

    tenant: str
    session: str
    cpu_percent: float | None = Field(description="Percent of one CPU; null in the first sample.")
    memory_bytes: int
    memory_limit_bytes: int
    processes: int
    disk_bytes: int | None = None


class StatsSample(AnswerModel):
    model_config = ConfigDict(title="StatsSampleAnswer")

    at: datetime
    host: HostStats
    sandboxes: list[SandboxStats]
