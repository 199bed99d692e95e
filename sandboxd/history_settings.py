"""HistoryOptions: the settings `SANDBOXD_HISTORY__<NAME>`, or the table `[history]` of the file.

They bound the log of events and say what its texts may contain. Nothing here reads or writes events.
"""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, field_validator


class HistoryOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    max_events: int = Field(default=100_000, ge=1000, le=10_000_000)
    """The most events kept. Beyond it the oldest are removed."""
    max_age_s: float = Field(default=30 * 86_400, ge=0)
    """Events older than this many seconds are removed; 0 means never."""
    commands: bool = True
    """Whether events hold the text of commands, at most 2,000 characters of each, and traces a part of the output."""
    redact: tuple[str, ...] = ()
    """More regular expressions (Python's `re`) of what must not be kept in the texts of events: each match is replaced
    by `[redacted]`, or only its group `secret` if it has one. The built-in rules always apply."""
    traces: bool = True
    """Whether the events of a session are also added to the session's trace in the store."""

    @field_validator("redact")
    @classmethod
    def _is_a_pattern(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                found = re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
            if found.match(""):
                raise ValueError(f"{pattern!r} matches an empty text; every event would be redacted")
        return patterns
