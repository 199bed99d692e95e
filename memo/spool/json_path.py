"""A subset of JSONPath for picking values out of a tool result: `$`, `.name`, `['name']`, `[3]`, `[-1]`, `[*]`, `.*`.

Pure. Filters and recursive descent are rejected.
"""

from __future__ import annotations

import json
import re
from typing import Any

from memo.errors import InvalidContent

_STEP = re.compile(
    r"""\.(?P<name>[A-Za-z_][A-Za-z0-9_-]*|\*)"""
    r"""|\[(?P<index>-?\d{1,9}|\*)\]"""
    r"""|\[(?P<quoted>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]"""
)
EVERY = object()


def parse_path(path: str) -> list[Any]:
    """Return the steps of a path: names, numbers, or EVERY."""
    rest = path[1:] if path.startswith("$") else "." + path if path and path[0] not in ".[" else path
    steps: list[Any] = []
    position = 0
    while position < len(rest):
        match = _STEP.match(rest, position)
        if match is None:
            raise InvalidContent(f"cannot use this JSON path: syntax error at character {position + 1}")
        steps.append(_step(match))
        position = match.end()
    return steps


def _step(match: re.Match[str]) -> Any:
    name, index, quoted = match["name"], match["index"], match["quoted"]
    if "*" in (name, index):
        return EVERY
    if index is not None:
        return int(index)
    return name if name is not None else re.sub(r"\\(.)", r"\1", quoted[1:-1])


def select(value: Any, steps: list[Any]) -> list[Any]:
    """Return every value that the path selects, in document order."""
    found = [value]
    for step in steps:
        found = [inner for outer in found for inner in _inner(outer, step)]
    return found


def _inner(value: Any, step: Any) -> list[Any]:
    if step is EVERY:
        return list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list) else []
    if isinstance(step, int):
        is_in_range = isinstance(value, list) and -len(value) <= step < len(value)
        return [value[step]] if is_in_range else []
    return [value[step]] if isinstance(value, dict) and step in value else []


def parse_json(content: bytes, id: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidContent(f"cannot query {id}: it is not valid JSON") from None
