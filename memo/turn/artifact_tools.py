"""Tools that let a model work with large results: head, tail, range, grep, line count, JSON path. All answers bounded.

Made for the artifacts that are in scope now. What such a tool returns is text, and a call of one is marked, so that no
tool is ever offered over the answer of another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from memo.errors import InvalidContent
from memo.primitives import Tokenizable, ToolCall
from memo.spool.artifact import Excerpt, SpooledArtifact
from memo.turn.tools import Tool

MOST_LINES = 1000

_INTEGER = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}

Ask = Callable[[SpooledArtifact, Mapping[str, Any]], Awaitable[Excerpt | int]]


async def _head(artifact: SpooledArtifact, args: Mapping[str, Any]) -> Excerpt:
    return await artifact.head(_number(args, "lines", 10))


async def _tail(artifact: SpooledArtifact, args: Mapping[str, Any]) -> Excerpt:
    return await artifact.tail(_number(args, "lines", 10))


async def _range(artifact: SpooledArtifact, args: Mapping[str, Any]) -> Excerpt:
    start = _number(args, "start", 0, most=None)
    return await artifact.range(start, min(_number(args, "end", start + MOST_LINES, most=None), start + MOST_LINES))


async def _grep(artifact: SpooledArtifact, args: Mapping[str, Any]) -> Excerpt:
    return await artifact.grep(_text(args, "pattern"), ignore_case=args.get("ignore_case") is True)


async def _line_count(artifact: SpooledArtifact, args: Mapping[str, Any]) -> int:
    return await artifact.line_count()


async def _json_path(artifact: SpooledArtifact, args: Mapping[str, Any]) -> Excerpt:
    return await artifact.json_path(_text(args, "path"))


_QUESTIONS: tuple[tuple[str, str, dict[str, Any], tuple[str, ...], Ask], ...] = (
    ("artifact_head", "The first lines of an earlier tool result.", {"lines": _INTEGER}, (), _head),
    ("artifact_tail", "The last lines of an earlier tool result.", {"lines": _INTEGER}, (), _tail),
    ("artifact_range", "Lines start to before end, counted from 0.", {"start": _INTEGER, "end": _INTEGER}, (), _range),
    (
        "artifact_grep",
        "The lines that match a regular expression, with their numbers.",
        {"pattern": _TEXT, "ignore_case": {"type": "boolean"}},
        ("pattern",),
        _grep,
    ),
    ("artifact_line_count", "How many lines an earlier tool result has.", {}, (), _line_count),
    ("artifact_json_path", "Values of a JSON result, by a path: $.items[0].id", {"path": _TEXT}, ("path",), _json_path),
)  # fmt: skip


def artifact_tools(calls: Iterable[ToolCall]) -> list[Tool]:
    """Return one tool a question over the artifacts of these calls; none if there are no artifacts."""
    artifacts = {
        call.id if len(call.artifacts) == 1 else f"{call.id}#{number}": artifact
        for call in calls
        if not call.from_artifact_tool
        for number, artifact in enumerate(call.artifacts)
    }
    return [_tool(artifacts, *question) for question in _QUESTIONS] if artifacts else []


def _tool(
    artifacts: Mapping[str, SpooledArtifact],
    name: str,
    description: str,
    properties: dict[str, Any],
    required: tuple[str, ...],
    ask: Ask,
) -> Tool:
    async def answer(ctx: Any, args: Mapping[str, Any]) -> Tokenizable:
        artifact = artifacts.get(_text(args, "call_id"))
        if artifact is None:
            raise InvalidContent(f"cannot use {name}: call_id must be one of {', '.join(artifacts)}")
        return Tokenizable(_render(await ask(artifact, args)))

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
    return f"{answer.text}\n[there is more: ask for less at a time]" if answer.truncated else answer.text


def _text(args: Mapping[str, Any], name: str) -> str:
    value = args.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidContent(f"cannot answer: {name} must be text")
    return value


def _number(args: Mapping[str, Any], name: str, default: int, most: int | None = MOST_LINES) -> int:
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidContent(f"cannot answer: {name} must be a whole number from 0 up")
    return value if most is None else min(value, most)
