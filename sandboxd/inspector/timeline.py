"""The timeline of a session: messages, envelopes of its trace and new events, merged by time. Pure.

An entry is a plain dict without empty fields, because a timeline has thousands. Its id says where it comes from:
`mN` is message N of the full history, `eN` the daemon's event N, `tN` envelope N of the trace, from an agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic_core import to_json

from memo.messages import message_text
from sandboxd.history import SOURCE
from sandboxd.inspector.session_reader import moment
from sandboxd.inspector.titles import event_title
from sandboxd.models.event import Event
from sandboxd.models.trace import JsonObject

TITLE_CHARS = 200
MANY = 2000
"""A timeline with more entries has shorter titles."""
_SHORT_TITLE_BYTES = 72

Entry = dict[str, Any]

_LANES = {
    "exec": "commands",
    "tool": "commands",
    "process": "commands",
    "context": "commands",
    "run": "commands",
    "memo": "memory",
    "mirror": "memory",
    "messages": "memory",
    "consolidation": "memory",
    "sandbox": "sandbox",
    "workspace": "sandbox",
    "snapshot": "sandbox",
    "fork": "sandbox",
    "egress": "network",
}
_SHOWN_AS = {"run": "context", "workspace": "sandbox", "snapshot": "sandbox", "fork": "sandbox"}
_TIMES = ("timestamp", "at", "created_at", "createdAt", "time", "ts")
_MOST_DIGITS = 18
_CUT = 4000
"""The most of a text that is looked at for a title."""


@dataclass(frozen=True, slots=True)
class PlacedEntry:
    at: datetime | None
    stream: int
    number: int
    entry: Entry
    source: JsonObject


def build_timeline(
    messages: Sequence[JsonObject],
    envelopes: Sequence[JsonObject],
    events: Sequence[Event],
    began: datetime | None = None,
) -> list[PlacedEntry]:
    """Return every entry in order of time. What has no time of its own follows what is before it in its source.

    A source without any times is placed where the session `began`.
    """
    traced = [_of_envelope(number, envelope) for number, envelope in enumerate(envelopes)]
    known = {placed.entry["id"] for placed in traced}
    fresh = [
        _of_event(str(event.id), event.kind, event.at, event.fields, number, 2)
        for number, event in enumerate(events)
        if f"e{event.id}" not in known
    ]
    spoken = _of_messages(messages, [*traced, *fresh])
    placed = [*_filled(spoken, began), *_filled(traced, began), *fresh]
    placed.sort(key=lambda one: (_micros(one.at), one.stream, one.number))
    return placed


def page(placed: Sequence[PlacedEntry], after: str | None, limit: int) -> tuple[list[Entry], str | None] | None:
    """Return the entries after the one with this id, and the id to continue after; None if there is no such entry."""
    start = 0
    if after is not None:
        found = next((place for place, one in enumerate(placed) if one.entry["id"] == after), None)
        if found is None:
            return None
        start = found + 1
    chosen = placed[start : start + limit]
    is_last = start + limit >= len(placed)
    entries = [rendered(one, is_short=len(chosen) > MANY) for one in chosen]
    return entries, None if is_last or not entries else entries[-1]["id"]


def rendered(placed: PlacedEntry, *, is_short: bool = False) -> Entry:
    entry = dict(placed.entry)
    entry["title"] = _shortened(entry["title"]) if is_short else entry["title"][:TITLE_CHARS]
    if placed.at is not None:
        entry["at"] = placed.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return entry


def details(placed: PlacedEntry) -> Entry:
    return {**rendered(placed), "detail": placed.source}


def _of_messages(messages: Sequence[JsonObject], placed: Iterable[PlacedEntry]) -> list[PlacedEntry]:
    times = _times_of_appends(len(messages), placed)
    return [_of_message(number, message, times[number]) for number, message in enumerate(messages)]


def _times_of_appends(count: int, placed: Iterable[PlacedEntry]) -> list[datetime | None]:
    """Return when each message was appended, from the newest backwards: the oldest may be older than the trace."""
    times: list[datetime | None] = [None] * count
    appends = [one for one in placed if one.entry["kind"] == "messages" and one.at is not None]
    appends.sort(key=lambda one: _micros(one.at))
    end = count
    for one in reversed(appends):
        fields = one.source.get("data", one.source)
        added = fields.get("count") if fields.get("what") != "compacted" else 0
        if not isinstance(added, int) or added <= 0:
            continue
        start = max(0, end - added)
        times[start:end] = [one.at] * (end - start)
        end = start
    return times


def _of_message(number: int, message: JsonObject, appended: datetime | None) -> PlacedEntry:
    role = message.get("role")
    lane = role if role in ("user", "assistant", "toolResult") else "assistant"
    text = _title_of_message(message)
    entry: Entry = {"id": f"m{number}", "kind": "message", "lane": lane, "title": text}
    if isinstance(size := _size(message), int):
        entry["size"] = size
    if message.get("isError") is True or message.get("is_error") is True:
        entry["ok"] = False
    at = next((at for name in _TIMES if (at := moment(message.get(name))) is not None), appended)
    return PlacedEntry(at, 0, number, entry, {"message": message})


def _title_of_message(message: JsonObject) -> str:
    content = message.get("content")
    if isinstance(content, str):
        text = content[:_CUT]
    else:
        parts = content if isinstance(content, list) else []
        text = " ".join(_title_of_block(part) for part in parts[:8])[:_CUT]
    name = message.get("toolName") or message.get("name")
    if isinstance(name, str):
        text = f"{name}: {text}"
    if not text.strip():
        text = message_text({key: message[key] for key in ("toolCalls", "tool_calls") if key in message})[0][:_CUT]
    return plain(text) or "(empty)"


def _title_of_block(part: Any) -> str:
    if not isinstance(part, Mapping):
        return str(part)[:TITLE_CHARS]
    if isinstance(text := part.get("text"), str):
        return text[:_CUT]
    name, kind = part.get("name") or part.get("toolName"), str(part.get("type", ""))[:40]
    return f"[{kind} {name}]" if isinstance(name, str) else f"[{kind}]"


def _size(message: JsonObject) -> int | None:
    content = message.get("content")
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return sum(len(text) for text in texts if isinstance(text, str))
    return None


def event_id(envelope: JsonObject) -> int:
    """Return the id of the daemon's event that an envelope is about; 0 if an agent wrote it."""
    text = envelope.get("id")
    if envelope.get("source") != SOURCE or not isinstance(text, str) or len(text) > _MOST_DIGITS:
        return 0
    return int(text) if text.isdecimal() and text.isascii() else 0


def _of_envelope(number: int, envelope: JsonObject) -> PlacedEntry:
    if event := event_id(envelope):
        data = envelope.get("data")
        fields = data if isinstance(data, dict) else {}
        return _of_event(str(event), str(envelope.get("type")), moment(envelope.get("at")), fields, number, 1, envelope)
    inner = envelope.get("event")
    kind = envelope.get("type") or (inner.get("type") if isinstance(inner, dict) else None) or "envelope"
    title = plain(f"{kind} {_summary(envelope)}")
    at = next((at for name in _TIMES if (at := moment(envelope.get(name))) is not None), None)
    entry: Entry = {"id": f"t{number}", "kind": "trace", "lane": "trace", "title": title}
    if isinstance(duration := envelope.get("duration_ms", envelope.get("durationMs")), int | float):
        entry["duration_ms"] = duration
    return PlacedEntry(at, 1, number, entry, envelope)


def _summary(envelope: JsonObject) -> str:
    rest = {key: value for key, value in envelope.items() if key not in ("type", *_TIMES)}
    try:
        return to_json(rest)[:_CUT].decode("utf-8", "ignore") if rest else ""
    except ValueError:
        return ""


def _of_event(
    event_id: str,
    kind: str,
    at: datetime | None,
    fields: Mapping[str, Any],
    number: int,
    stream: int,
    source: JsonObject | None = None,
) -> PlacedEntry:
    entry: Entry = {
        "id": f"e{event_id}",
        "kind": _SHOWN_AS.get(kind, kind if kind in _LANES else "trace"),
        "lane": _LANES.get(kind, "trace"),
        "title": plain(event_title(kind, fields)),
    }
    if isinstance(actor := fields.get("actor"), str):
        entry["actor"] = actor[:100]
    if (ok := _ok(kind, fields)) is not None:
        entry["ok"] = ok
    duration = fields.get("duration_ms", fields.get("ms") if kind == "egress" else None)
    if isinstance(duration, int | float):
        entry["duration_ms"] = duration
    tokens = [fields.get(name) for name in ("tokens", "input", "output", "input_tokens", "output_tokens")]
    if counted := [count for count in tokens if isinstance(count, int)]:
        entry["tokens"] = sum(counted)
    sizes = [fields.get(name) for name in ("size_bytes", "bytes_in", "bytes_out")]
    if kind == "messages":
        for name in ("input", "output"):
            if isinstance(count := fields.get(name, fields.get(f"{name}_tokens")), int):
                entry[f"tokens_{name.removesuffix('put')}"] = count
    if sized := [size for size in sizes if isinstance(size, int)]:
        entry["size"] = sum(sized)
    if source is None:
        source = {"id": event_id, "source": SOURCE, "type": kind, "at": at, "data": dict(fields)}
    return PlacedEntry(at, stream, number, entry, source)


def _ok(kind: str, fields: Mapping[str, Any]) -> bool | None:
    """Return whether it went well; None if that is not a question."""
    if isinstance(ok := fields.get("ok"), bool):
        return ok
    if fields.get("timed_out") or fields.get("limits_hit"):
        return False
    if "exit_code" in fields:
        return bool(fields["exit_code"] == 0)
    if kind == "egress":
        return fields.get("decision") == "allowed"
    if kind == "sandbox":
        return False if fields.get("state") == "gone" else None
    if kind == "consolidation":
        return False if fields.get("what") in ("failed", "session_failed") else None
    return None


def _filled(stream: list[PlacedEntry], began: datetime | None) -> list[PlacedEntry]:
    """Give what has no time the time of what is before it in its stream, or else of what is after it."""
    last = next((one.at for one in stream if one.at is not None), began)
    filled = []
    for one in stream:
        last = one.at or last
        filled.append(one if one.at is not None else PlacedEntry(last, one.stream, one.number, one.entry, one.source))
    return filled


def _micros(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()


def plain(text: str) -> str:
    """Return one line of printable text. A reader shows it as text and never as markup."""
    line = " ".join(text[:_CUT].split())[:TITLE_CHARS]
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


def _shortened(title: str) -> str:
    encoded = to_json(title)[1:-1]
    if len(encoded) <= _SHORT_TITLE_BYTES:
        return title
    kept = title[:_SHORT_TITLE_BYTES]
    while len(to_json(kept)) - 2 > _SHORT_TITLE_BYTES - 3:
        kept = kept[: len(kept) * 3 // 4]
    return f"{kept}…"
