"""Transcripts: a session's full history as numbered lines of text, in parts that fit a budget of tokens.

Only what was said: media, tool arguments and the rest of a long tool result are left out, and counted. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memo.compaction import SUMMARY_PREFIX
from memo.ids import SessionId
from memo.tokens import estimate_tokens

Role = Literal["user", "assistant", "tool"]
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "toolResult": "tool"}
_ENTRY_OVERHEAD_TOKENS = 8


@dataclass(frozen=True, slots=True)
class TranscriptLimits:
    part_tokens: int = 24_000
    parts: int = 8
    entry_chars: int = 8_000
    tool_chars: int = 400


@dataclass(frozen=True, slots=True)
class Entry:
    """One message. `number` is its place in the full history, from 1."""

    number: int
    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """One part of a session. `omitted` messages fell out between its entries and those of other parts."""

    session: SessionId
    revision: int
    entries: tuple[Entry, ...]
    tokens: int
    omitted: int = 0

    def has(self, number: int) -> bool:
        return any(entry.number == number for entry in self.entries)


def make_transcripts(
    session: SessionId, revision: int, history: Sequence[Mapping[str, Any]], limits: TranscriptLimits | None = None
) -> list[Transcript]:
    """Return the parts, oldest first. Of more than fit, the first and the newest are kept."""
    limits = limits or TranscriptLimits()
    parts: list[list[Entry]] = [[]]
    room = limits.part_tokens
    for number, message in enumerate(history[:revision], start=1):
        entry = _entry(number, message, limits)
        if entry is None:
            continue
        tokens = _tokens(entry)
        if tokens > room and parts[-1]:
            parts.append([])
            room = limits.part_tokens
        parts[-1].append(entry)
        room -= tokens
    filled = [part for part in parts if part]
    left_out = filled[1 : len(filled) - limits.parts + 1] if len(filled) > limits.parts else []
    kept = [part for part in filled if part not in left_out] if left_out else filled
    omitted = sum(map(len, left_out))
    return [Transcript(session, revision, tuple(part), sum(map(_tokens, part)), omitted) for part in kept]


def _tokens(entry: Entry) -> int:
    return estimate_tokens(entry.text) + _ENTRY_OVERHEAD_TOKENS


def _entry(number: int, message: Mapping[str, Any], limits: TranscriptLimits) -> Entry | None:
    role = _ROLES.get(str(message.get("role")))
    text = said(message).strip()
    if role is None or not text or text.startswith(SUMMARY_PREFIX):
        return None  # a summary stands for messages that are in the history themselves
    most = limits.tool_chars if role == "tool" else limits.entry_chars
    return Entry(number, role, text if len(text) <= most else text[: most - 1] + "…")


def said(message: Mapping[str, Any]) -> str:
    """Return the text of a message, without media, calls and whatever else is in it."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    return "\n".join(text for text in texts if isinstance(text, str))
