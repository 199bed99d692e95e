"""Messages as values: JSON objects with a role, stored unchanged; pairs of calls and results; and token budgets.

Pure. A message is encoded once, before it reaches a store, so that nothing unreadable is ever committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memo.errors import Corrupt, InvalidContent
from memo.limits import encode_text

Message = dict[str, Any]

ROLES = ("user", "assistant", "toolResult")
_CALL_BLOCKS = ("toolCall", "tool_call", "tool_use")
_MEDIA_BLOCKS = ("image", "media", "audio", "file")
MEDIA_TOKENS = 1500
"""An estimate of what an image costs a model; the length of its base64 text is not a measure of that."""
MESSAGE_OVERHEAD_TOKENS = 4
MOST_LEVELS = 200


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message and its position. `expands` is the number of the archive that a summary replaces."""

    position: int
    message: Message
    tokens: int
    expands: int | None = None


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """A message ready to be stored."""

    body: str
    tokens: int
    tokens_exact: bool


def encode_json(noun: str, value: object, limit_bytes: int) -> str:
    """Return compact JSON, or raise InvalidContent or TooLarge."""
    try:
        body = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidContent(f"cannot store this {noun}: it is not JSON: {error}") from None
    encode_text(noun, body, limit_bytes)
    if body.count("[") + body.count("{") > MOST_LEVELS and _levels(value) > MOST_LEVELS:
        # A reader with less stack than the writer could not parse it.
        raise InvalidContent(f"cannot store this {noun}: it is nested more than {MOST_LEVELS} levels deep")
    return body


def _levels(value: object) -> int:
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        current, level = waiting.pop()
        if isinstance(current, dict | list | tuple):
            deepest = max(deepest, level)
            inner = current.values() if isinstance(current, dict) else current
            waiting += [(item, level + 1) for item in inner]
    return deepest


def encode_object(noun: str, value: object, limit_bytes: int) -> str:
    if not isinstance(value, Mapping):
        raise InvalidContent(f"cannot store this {noun}: it is not a JSON object")
    return encode_json(noun, value if isinstance(value, dict) else dict(value), limit_bytes)


def encode_message(message: object, limit_bytes: int) -> str:
    if not isinstance(message, Mapping):
        raise InvalidContent("cannot store this message: it is not a JSON object")
    if message.get("role") not in ROLES:
        raise InvalidContent(f"cannot store this message: its role must be one of {', '.join(ROLES)}")
    return encode_object("message", message, limit_bytes)


def decode_json(body: str | bytes, place: str) -> Any:
    """Parse stored JSON. An unreadable row raises Corrupt and names the row; it never counts as absent."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Corrupt(f"cannot read {place}: the stored data is not JSON") from None


def decode_object(body: str | bytes, place: str) -> dict[str, Any]:
    value = decode_json(body, place)
    if not isinstance(value, dict):
        raise Corrupt(f"cannot read {place}: the stored data is not a JSON object")
    return value


def call_ids(message: Mapping[str, Any]) -> set[str]:
    """Return the ids of the tool calls that a message makes."""
    if message.get("role") != "assistant":
        return set()
    calls = [block for block in _objects(message.get("content")) if block.get("type") in _CALL_BLOCKS]
    for field in ("toolCalls", "tool_calls"):
        calls += _objects(message.get(field))
    ids = (call.get("id") or call.get("toolCallId") or call.get("tool_call_id") for call in calls)
    return {i for i in ids if isinstance(i, str)}


def result_id(message: Mapping[str, Any]) -> str | None:
    """Return the id of the tool call that a message answers, or None if it is not a result that names one."""
    if message.get("role") != "toolResult":
        return None
    call = message.get("toolCallId") or message.get("tool_call_id")
    return call if isinstance(call, str) else None


def unanswered_before(messages: Sequence[Mapping[str, Any]]) -> list[set[str]]:
    """Return, for every index i, the calls before i whose results are at i or after: a cut at i would split them."""
    open_at: list[set[str]] = [set() for _ in range(len(messages) + 1)]
    answers: list[set[str]] = []
    made: set[str] = set()
    for message in messages:
        answered = result_id(message)
        # A result whose call is not before it cannot be split from it.
        answers.append({answered} if answered is not None and answered in made else set())
        made |= call_ids(message)
    wanted: set[str] = set()
    for index in range(len(messages) - 1, -1, -1):
        wanted = (wanted | answers[index]) - call_ids(messages[index])
        open_at[index] = wanted
    return open_at


def newest_within(newest_first: Iterable[StoredMessage], token_budget: int) -> list[StoredMessage]:
    """Return the longest tail, oldest first, that fits the budget and splits no call from its result.

    At least the newest message is kept, with its call if it is a result. Reads no further than needed, so a store can
    pass a cursor.
    """
    taken: list[StoredMessage] = []
    wanted: set[str] = set()
    total = 0
    fitting = 0
    for stored in newest_first:
        total += stored.tokens
        if total > token_budget and fitting:
            return taken[:fitting][::-1]
        taken.append(stored)
        answered = result_id(stored.message)
        if answered is not None:
            wanted.add(answered)
        wanted -= call_ids(stored.message)
        if not wanted:
            fitting = len(taken)
            if total > token_budget:
                return taken[::-1]
    return _fitting_without_calls(taken, token_budget) if wanted else taken[::-1]


def _fitting_without_calls(newest_first: list[StoredMessage], token_budget: int) -> list[StoredMessage]:
    """Do the same for a log in which some results have no call: those results do not constrain the cut."""
    log = newest_first[::-1]
    splits = unanswered_before([s.message for s in log])
    clean = [i for i in range(len(log)) if not splits[i]]
    total = 0
    best = clean[-1] if clean else 0
    for index in range(len(log) - 1, -1, -1):
        total += log[index].tokens
        if total > token_budget:
            break
        if not splits[index]:
            best = index
    return log[best:]


def message_text(message: Mapping[str, Any]) -> tuple[str, int]:
    """Return the text that a model reads in a message, and the tokens of its other content."""
    content = message.get("content")
    if isinstance(content, str):
        text, media = content, 0
    else:
        text, media = _blocks_text(content)
    rest = {k: v for k, v in message.items() if k in ("toolCalls", "tool_calls", "attachments")}
    return (text + json.dumps(rest, ensure_ascii=False) if rest else text), media


def _blocks_text(content: object) -> tuple[str, int]:
    if not isinstance(content, list | tuple):
        return ("" if content is None else json.dumps(content, ensure_ascii=False)), 0
    parts: list[str] = []
    media = 0
    for block in content:
        if isinstance(block, dict) and block.get("type") in _MEDIA_BLOCKS:
            media += MEDIA_TOKENS
        elif isinstance(block, dict) and isinstance(block.get("text"), str):
            parts.append(block["text"])
        else:
            parts.append(json.dumps(block, ensure_ascii=False))
    return "\n".join(parts), media


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list | tuple) else []
