"""Transcript: a session's history as numbered texts, in parts that each fit a token limit.

Only what was said: media and tool arguments are left out, and long tool results are cut. Pure.
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
class TranscriptEntry:
    """One message. `number` is its position in the full history, from 1."""

    number: int
    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """One part of a session. `omitted` counts the messages of the parts that were dropped."""

    session: SessionId
    revision: int
    entries: tuple[TranscriptEntry, ...]
    tokens: int
    omitted: int = 0

    def has(self, number: int) -> bool:
        return any(entry.number == number for entry in self.entries)


def make_transcripts(
    session: SessionId, revision: int, history: Sequence[Mapping[str, Any]], limits: TranscriptLimits | None = None
) -> list[Transcript]:
    """Return the parts, oldest first. If there are too many, keep the first and the newest."""
    limits = limits or TranscriptLimits()
    parts: list[list[TranscriptEntry]] = [[]]
    free_tokens = limits.part_tokens
    for number, message in enumerate(history[:revision], start=1):
        entry = _entry(number, message, limits)
        if entry is None:
            continue
        tokens = _tokens(entry)
        if tokens > free_tokens and parts[-1]:
            parts.append([])
            free_tokens = limits.part_tokens
        parts[-1].append(entry)
        free_tokens -= tokens
    filled = [part for part in parts if part]
    left_out = filled[1 : len(filled) - limits.parts + 1] if len(filled) > limits.parts else []
    kept = [part for part in filled if part not in left_out] if left_out else filled
    omitted = sum(map(len, left_out))
    return [Transcript(session, revision, tuple(part), sum(map(_tokens, part)), omitted) for part in kept]


def _tokens(entry: TranscriptEntry) -> int:
    return estimate_tokens(entry.text) + _ENTRY_OVERHEAD_TOKENS


def _entry(number: int, message: Mapping[str, Any], limits: TranscriptLimits) -> TranscriptEntry | None:
    role = _ROLES.get(str(message.get("role")))
    text = text_of(message).strip()
    if role is None or not text or text.startswith(SUMMARY_PREFIX):
        return None  # the messages it summarises are in the history too
    max_chars = limits.tool_chars if role == "tool" else limits.entry_chars
    return TranscriptEntry(number, role, text if len(text) <= max_chars else text[: max_chars - 1] + "…")


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, without media, tool calls and other blocks."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    return "\n".join(text for text in texts if isinstance(text, str))
