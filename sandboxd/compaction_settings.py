"""AutoCompactionOptions: the settings `SANDBOXD_COMPACTION__<NAME>`, or the table `[compaction]` of the file."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from memo.compaction import CompactionOptions

_DEFAULTS = CompactionOptions()


class AutoCompactionOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = False
    """Whether a turn that makes a conversation long enough is followed by its compaction."""
    trigger_tokens: int = Field(default=_DEFAULTS.trigger_tokens, ge=1)
    """A conversation is compacted at this many tokens."""
    compact_fraction: float = Field(default=_DEFAULTS.compact_fraction, gt=0, le=1)
    """The share of its messages, the oldest, that the summary replaces."""
    min_messages: int = Field(default=_DEFAULTS.min_messages, ge=2)
    """A conversation with fewer messages is never compacted."""
    summariser: Literal["outline", "consolidation"] = "outline"
    """What writes the summary: an `outline` of what the user said, which needs no model, or the model or command of
    `consolidation`."""
    timeout_s: float = Field(default=60, gt=0, le=600)
    """The time, in seconds, that the summariser may add to the answer of a turn."""

    def compaction_options(self) -> CompactionOptions:
        return CompactionOptions(self.trigger_tokens, self.compact_fraction, self.min_messages)
