"""Compaction as pure decisions: when to compact, where to cut, and what replaces the messages that were cut.

A store carries the decisions out in one transaction. Nothing here reads or writes a store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self

from memo.errors import InvalidContent
from memo.messages import Message, StoredMessage, unanswered_before

SUMMARY_PREFIX = "[Conversation summary]: "


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    trigger_tokens: int = 80_000
    compact_fraction: float = 0.5
    min_messages: int = 20
    force: bool = False
    workspace_snapshot: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.compact_fraction <= 1:
            raise InvalidContent("cannot compact: compact_fraction must be more than 0 and at most 1")

    @classmethod
    def parse(cls, options: CompactionOptions | Mapping[str, Any] | None = None, **named: Any) -> Self:
        """Parse options given as one object, as keywords, or as both; a keyword takes precedence.

        The names of an object may be written like `triggerTokens`. What is None or missing has its default.
        """
        given: dict[str, Any] = {}
        if isinstance(options, CompactionOptions):
            given = {field.name: getattr(options, field.name) for field in fields(options)}
        elif isinstance(options, Mapping):
            given = {_OPTION_NAMES.get(name, name): value for name, value in options.items() if name not in _HINTS}
        elif options is not None:
            raise InvalidContent("cannot compact: the options are not an object")
        given.update({name: value for name, value in named.items() if value is not None})
        unknown = sorted(set(given) - set(_OPTION_NAMES.values()))
        if unknown:
            raise InvalidContent(f"cannot compact: there is no option {unknown[0]}")
        return cls(**{name: value for name, value in given.items() if value is not None})

    def spelled(self) -> dict[str, Any]:
        """Return the options as one object for a store of another program: each name in both spellings."""
        return {name: getattr(self, snake) for camel, snake in _OPTION_NAMES.items() for name in (camel, snake)}


_OPTION_NAMES = {
    "triggerTokens": "trigger_tokens",
    "compactFraction": "compact_fraction",
    "minMessages": "min_messages",
    "force": "force",
    "workspaceSnapshot": "workspace_snapshot",
}
_HINTS = ("preloadedMessages", "preloaded_messages")  # messages that a caller has loaded; a store reads its own


@dataclass(frozen=True, slots=True)
class Compaction:
    """One transaction of a store: archive positions `first` to `last`, put the summary there, extend the notes.

    Valid only while the visible log still begins with exactly these `count` messages.
    """

    first: int
    last: int
    count: int
    summary: Message
    notes_section: str


def is_due(message_count: int, message_tokens: int, options: CompactionOptions) -> bool:
    if options.force:
        return message_count > 1
    return message_count >= max(options.min_messages, 2) and message_tokens >= options.trigger_tokens


def cut_index(log: Sequence[StoredMessage], fraction: float) -> int:
    """Return how many of the oldest messages to cut, 0 if no cut is possible.

    The cut is at floor(n · fraction), moved back, or else forward, until no tool result loses its call. The newest
    message always stays. An earlier summary is never cut alone: that would summarise a summary.
    """
    least = 2 if log and log[0].expands is not None else 1
    most = len(log) - 1
    if most < least:
        return 0
    splits = unanswered_before([stored.message for stored in log])
    wanted = min(max(int(len(log) * fraction), least), most)
    candidates = [*range(wanted, least - 1, -1), *range(wanted + 1, most + 1)]
    return next((cut for cut in candidates if not splits[cut]), 0)


def summary_message(summary: str, workspace_snapshot: str | None) -> Message:
    text = f"{SUMMARY_PREFIX}{summary}"
    if workspace_snapshot:
        text += f"\n\n[Workspace]: {workspace_snapshot}"
    return {"role": "user", "content": text}


def notes_section(summary: str, now: datetime) -> str:
    return f"\n## Conversation summary, {now:%Y-%m-%d %H:%M} UTC\n\n{summary.strip()}\n"


def plan_compaction(
    log: Sequence[StoredMessage], cut: int, summary: object, options: CompactionOptions, now: datetime
) -> Compaction | None:
    """Return what to commit, or None if the summary is empty, in which case nothing may change."""
    if not isinstance(summary, str) or not summary.strip():
        return None
    return Compaction(
        first=log[0].position,
        last=log[cut - 1].position,
        count=cut,
        summary=summary_message(summary.strip(), options.workspace_snapshot),
        notes_section=notes_section(summary, now),
    )


def full_history(
    archives: Mapping[int, Sequence[StoredMessage]], visible: Sequence[StoredMessage]
) -> list[dict[str, Any]]:
    """Return every message, with each summary replaced by the archived messages it stands for."""
    history: list[dict[str, Any]] = []
    waiting = list(reversed(visible))  # a stack, not recursion: the archives of a long session are deeply nested
    while waiting:
        stored = waiting.pop()
        if stored.expands is None:
            history.append(stored.message)
        else:
            waiting.extend(reversed(archives[stored.expands]))
    return history
