"""A summary without a model: an outline of what the user said. Pure and deterministic.

Used for a compaction without another summariser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memo.compaction import SUMMARY_PREFIX
from memo.messages import message_text

LINE_CHARS = 200
MAX_LINES = 60
_LEFT_OUT = " earlier lines left out]"


def outline(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the first line of each user message and all lines of an earlier outline, oldest first."""
    lines = [line for message in messages if message.get("role") == "user" for line in _lines(message)]
    if not lines:
        return f"{len(messages)} messages in which the user said nothing."
    left_out = len(lines) - MAX_LINES
    if left_out > 0:
        lines = [f"[{left_out}{_LEFT_OUT}", *lines[-MAX_LINES:]]
    return "\n".join(f"- {line}" for line in lines)


def _lines(message: Mapping[str, Any]) -> list[str]:
    text, _ = message_text(message)
    said = [line.strip() for line in text.splitlines() if line.strip()]
    if said and said[0].startswith(SUMMARY_PREFIX):
        said[0] = said[0].removeprefix(SUMMARY_PREFIX)
        return [_short(line.removeprefix("- ")) for line in said if not line.endswith(_LEFT_OUT)]
    return [_short(line) for line in said[:1]]


def _short(line: str) -> str:
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"
