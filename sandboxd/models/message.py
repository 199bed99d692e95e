"""Messages of a session: requests to append, load, compact and shorten them, and the results.

Messages are JSON objects that are stored as given, so their contents are not checked.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from memo.compaction import CompactionOptions
from sandboxd.models.paths import CleanText
from sandboxd.models.wire import AnswerModel, BodyModel, QueryModel

MAX_TOKENS = 2**53

_DEFAULTS = CompactionOptions()

Message = dict[str, Any]


class MessagesQuery(QueryModel):
    limit: int | None = Field(default=None, ge=0, le=2**31, description="Return only this many of the newest messages.")
    budget: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOKENS,
        description="Return the newest messages within this many tokens; at least one.",
    )
    full: bool = Field(default=False, description="Return every message, archived ones included.")


class MessagesBody(BodyModel):
    messages: list[Message] = Field(max_length=100_000)


class TurnBody(MessagesBody):
    usage: dict[str, Any] = Field(
        default_factory=dict, description="Tokens of the turn: input, output, cache_read, cache_write."
    )


class CompactionBody(BodyModel):
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


class MessageList(AnswerModel):
    model_config = ConfigDict(title="MessagesAnswer")

    items: list[Message] = Field(description="Oldest first.")
    tokens: int | None = Field(default=None, description="With `budget`: what these messages cost.")
    tokens_exact: bool | None = Field(default=None, description="With `budget`: whether `tokens` is exact.")


class Appended(AnswerModel):
    model_config = ConfigDict(title="AppendedAnswer")

    appended: int
    compacted: bool = Field(
        default=False,
        description="Whether this turn made the daemon compact the conversation, which is a setting.",
    )


class Compaction(AnswerModel):
    """What a compaction did."""

    model_config = ConfigDict(title="CompactionAnswer")

    compacted: bool
    archived: int = Field(description="The number of messages that the summary replaces.")
    tokens_exact: bool = Field(
        default=False, description="Whether tokens, and so whether a compaction is due, are counted and not estimated."
    )


class ShortenedMessages(AnswerModel):
    """Messages with long tool results replaced by stubs, and the ids of the artifacts that hold the results."""

    model_config = ConfigDict(title="ToolResultsAnswer")

    messages: list[Message] = Field(
        alias="items", description="The messages, each long tool result replaced by a stub."
    )
    artifacts: list[str] = Field(description="The ids of the artifacts that hold the results.")
