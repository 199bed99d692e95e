"""The line that the timeline shows for an event of the daemon. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def event_title(kind: str, fields: Mapping[str, Any]) -> str:
    """Return what happened in one line: for a reader, so that a field without a value says nothing."""

    def field(name: str) -> str:
        value = fields.get(name)
        return "" if value is None else str(value)

    match kind:
        case "exec":
            return f"{field('command') or 'command'}{_ending(fields)}"
        case "tool":
            target = field("command") or field("path")
            return f"{field('tool')} {target}{_ending(fields)}"
        case "memo":
            moved = f" from {field('moved_from')}" if field("moved_from") else ""
            name = field("name") or f"artifact {field('artifact')}"
            why = f": {field('reason')}" if field("reason") else ""
            return f"{name} {field('what')}{moved}, revision {field('revision')}{why}"
        case "mirror":
            return f"mirror {field('what')} {field('path')} {field('how')}"
        case "messages":
            count = f"{field('count')} messages" if field("count") else "messages"
            return f"turn of {count}" if field("what") == "turn" else f"{field('what') or 'appended'} {count}"
        case "sandbox":
            cause = f" ({field('cause')})" if field("cause") else ""
            return f"sandbox {field('state') or field('what')}{cause}"
        case "workspace" | "snapshot" | "fork" | "consolidation":
            why = field("reason") or field("cause") or field("snapshot")
            return f"{kind} {field('what')} {why}"
        case "egress":
            request = f"{field('method')} " if field("method") else ""
            place = f"{field('host')}:{field('port')}{field('path')}"
            why = f": {field('reason')}" if field("reason") else ""
            return f"{field('decision')} {request}{place}{why}"
        case "process":
            return f"process {field('process')} {field('what') or 'started'} {field('command')}{_ending(fields)}"
        case "context" | "run":
            return f"{kind} in context {field('context')}{_ending(fields)}"
        case _:
            rest = ", ".join(f"{name} {value}" for name, value in fields.items() if isinstance(value, str | int))
            return f"{kind} {rest}"


def _ending(fields: Mapping[str, Any]) -> str:
    limits = fields.get("limits_hit")
    if limits:
        return f" → {', '.join(map(str, limits)) if isinstance(limits, list | tuple) else limits}"
    if fields.get("timed_out"):
        return " → timed out"
    code = fields.get("exit_code")
    return f" → exit {code}" if isinstance(code, int) and code != 0 else ""
