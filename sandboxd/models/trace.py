"""Traces and orchestration of a session: what agents append, and what is returned.

Envelopes, events, states and histories are JSON that is stored as given, so their contents are not checked.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from sandboxd.models.wire import AnswerModel, BodyModel, QueryModel

MAX_ENVELOPES = 10_000

JsonObject = dict[str, Any]


class TraceBody(BodyModel):
    envelopes: list[JsonObject] = Field(max_length=MAX_ENVELOPES, description="Appended in this order.")


class AppendedEntries(AnswerModel):
    model_config = ConfigDict(title="AppendedEntriesAnswer")

    appended: int


class PageQuery(QueryModel):
    after: int = Field(default=0, ge=0, le=2**53, description="How many of the oldest items to leave out.")
    limit: int | None = Field(default=None, ge=0, le=2**31, description="Return at most this many items.")


class EnvelopeList(AnswerModel):
    model_config = ConfigDict(title="TraceAnswer")

    items: list[JsonObject] = Field(description="Oldest first.")


class EventsBody(BodyModel):
    model_config = ConfigDict(title="OrchestrationEventsBody")

    events: list[JsonObject] = Field(max_length=MAX_ENVELOPES, description="Appended in this order.")


class StoredEventList(AnswerModel):
    """Events of a session's orchestration, or of an agent's mailbox."""

    model_config = ConfigDict(title="OrchestrationEventsAnswer")

    items: list[JsonObject] = Field(description="Oldest first.")


class CheckpointBody(BodyModel):
    snapshot: JsonObject = Field(description="It may name the last event that it includes as `lastEventId`.")


class StoredCheckpoint(AnswerModel):
    model_config = ConfigDict(title="CheckpointAnswer")

    snapshot: JsonObject | None = Field(description="The latest checkpoint; null if none was written.")


class OrchestrationState(AnswerModel):
    """The recovered state: apply the events, in order, to the snapshot, or to an empty state if it is null."""

    model_config = ConfigDict(title="OrchestrationStateAnswer")

    snapshot: JsonObject | None
    events: list[JsonObject]
    source: str = Field(description="`checkpoint`, `no checkpoint`, `unknown checkpoint` or `corrupt checkpoint`.")


class MailboxBody(BodyModel):
    model_config = ConfigDict(title="MailboxStateBody")

    state: JsonObject


class MailboxState(AnswerModel):
    model_config = ConfigDict(title="MailboxStateAnswer")

    state: JsonObject = Field(description="Empty if it was never written.")


class HistoryBody(BodyModel):
    model_config = ConfigDict(title="AgentHistoryBody")

    history: list[Any]


class AgentHistory(AnswerModel):
    model_config = ConfigDict(title="AgentHistoryAnswer")

    history: list[Any] = Field(description="Empty if it was never written.")


class AgentList(AnswerModel):
    model_config = ConfigDict(title="OrchestrationAgentsAnswer")

    items: list[str] = Field(description="The agents that have a mailbox or a history.")
