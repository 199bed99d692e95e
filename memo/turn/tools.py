"""Tool and ToolRegistry: what an executor can call by name; and the tools with which a model queries large results.

A turn starts with the tools of its runner; tools fetched later are added. An artifact tool returns bounded text, and
its calls are marked, so that no artifact tool is ever offered for another's answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from memo.errors import Absent, InvalidContent
from memo.primitives import Tokenizable, ToolCall
from memo.spool import Excerpt, SpooledArtifact

MAX_LINES = 1000
"""The maximum number of lines that one artifact tool call returns."""


@dataclass(frozen=True, slots=True)
class Tool:
    """`handler(ctx, args)` runs the tool; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    handler: Callable[[Any, Mapping[str, Any]], Awaitable[Any]]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_artifact_tool: bool = False


class ToolRegistry:
    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Add a tool, replacing any tool of the same name."""
        if not isinstance(tool.name, str) or not tool.name:
            raise InvalidContent("cannot add this tool: a name is required")
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool:
        try:
            return self._tools[name]
        except KeyError:
            raise Absent(f"cannot find tool {name}: it is not registered") from None

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(list(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)


_INTEGER = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}

_Query = Callable[[SpooledArtifact, Mapping[str, Any]], Awaitable[Excerpt | int]]


async def _head(artifact: SpooledArtifact, args: Mapping[str, Any]) -> Excerpt:
    return await artifact.head(_number(args, "lines", 10))


async def _tail(artifact: SpooledArtifact, args: Mapping[str, Any]) -> Excerpt:
    return await artifact.tail(_number(args, "lines", 10))


async def _range(artifact: SpooledArtifact, args: Mapping[str, Any]) -> Excerpt:
    start = _number(args, "start", 0, maximum=None)
    return await artifact.range(start, min(_number(args, "end", start + MAX_LINES, maximum=None), start + MAX_LINES))


async def _grep(artifact: SpooledArtifact, args: Mapping[str, Any]) -> Excerpt:
    return await artifact.grep(_text(args, "pattern"), ignore_case=args.get("ignore_case") is True)


async def _line_count(artifact: SpooledArtifact, args: Mapping[str, Any]) -> int:
    return await artifact.line_count()


async def _json_path(artifact: SpooledArtifact, args: Mapping[str, Any]) -> Excerpt:
    return await artifact.json_path(_text(args, "path"))


_QUERIES: tuple[tuple[str, str, dict[str, Any], tuple[str, ...], _Query], ...] = (
    ("artifact_head", "Return the first lines of an earlier tool result.", {"lines": _INTEGER}, (), _head),
    ("artifact_tail", "Return the last lines of an earlier tool result.", {"lines": _INTEGER}, (), _tail),
    (
        "artifact_range",
        "Return the lines from start up to, not including, end. The first line is 0.",
        {"start": _INTEGER, "end": _INTEGER},
        (),
        _range,
    ),
    (
        "artifact_grep",
        "Return the lines that match a regular expression, each with its number.",
        {"pattern": _TEXT, "ignore_case": {"type": "boolean"}},
        ("pattern",),
        _grep,
    ),
    ("artifact_line_count", "Return the number of lines in an earlier tool result.", {}, (), _line_count),
    (
        "artifact_json_path",
        "Return the values at a JSON path such as $.items[0].id.",
        {"path": _TEXT},
        ("path",),
        _json_path,
    ),
)  # fmt: skip


def artifact_tools(calls: Iterable[ToolCall]) -> list[Tool]:
    """Return the tools that query the artifacts of these calls; an empty list if there are no artifacts."""
    artifacts = {
        call.id if len(call.artifacts) == 1 else f"{call.id}#{number}": artifact
        for call in calls
        if not call.from_artifact_tool
        for number, artifact in enumerate(call.artifacts)
    }
    return [_tool(artifacts, *query) for query in _QUERIES] if artifacts else []


def _tool(
    artifacts: Mapping[str, SpooledArtifact],
    name: str,
    description: str,
    properties: dict[str, Any],
    required: tuple[str, ...],
    query: _Query,
) -> Tool:
    async def answer(ctx: Any, args: Mapping[str, Any]) -> Tokenizable:
        artifact = artifacts.get(_text(args, "call_id"))
        if artifact is None:
            raise InvalidContent(f"cannot use {name}: call_id must be one of {', '.join(artifacts)}")
        return Tokenizable(_render(await query(artifact, args)))

    parameters = {
        "type": "object",
        "properties": {"call_id": {"type": "string", "enum": list(artifacts)}, **properties},
        "required": ["call_id", *required],
        "additionalProperties": False,
    }
    return Tool(name, description, answer, parameters, is_artifact_tool=True)


def _render(answer: Excerpt | int) -> str:
    if isinstance(answer, int):
        return str(answer)
    return f"{answer.text}\n[truncated; request a smaller part]" if answer.truncated else answer.text


def _text(args: Mapping[str, Any], name: str) -> str:
    value = args.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidContent(f"cannot answer: {name} must be a non-empty string")
    return value


def _number(args: Mapping[str, Any], name: str, default: int, maximum: int | None = MAX_LINES) -> int:
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidContent(f"cannot answer: {name} must be an integer of at least 0")
    return value if maximum is None else min(value, maximum)
