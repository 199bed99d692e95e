"""A model's mistakes as results: each says what was wrong and how to do it right. Nothing here raises.

A mistake is a result because the model can act on it. What only the operator or the calling program can act on (no
such sandbox, a dead container, a busy daemon) stays an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from memo.errors import MemoError
from sandboxd.errors import (
    ContextBusy,
    ContextFailed,
    ContextUnsupported,
    FileError,
    FileNotFound,
    InvalidRequest,
    IsADirectory,
    LimitReached,
    NotFound,
    OutsideSandbox,
    SandboxdError,
    StoreUnavailable,
    ToolNotFound,
)
from sandboxd.models.tool import ToolResult
from sandboxd.tools.arguments import types_of

FOR_THE_MODEL = (
    *(NotFound, InvalidRequest, OutsideSandbox, LimitReached, FileError, MemoError),
    StoreUnavailable,  # the rest of the sandbox works, and the model can go on without memory
    *(ContextBusy, ContextFailed, ContextUnsupported),
)
"""Errors that a tool may raise and a model can act on."""

_MOST_PROBLEMS = 5
_MOST_CHARS = 300
_NOUNS = {
    "string": "text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}
_ADVICE: Sequence[tuple[type[Exception], str]] = (
    (FileNotFound, "list the files with Glob or Bash"),
    (IsADirectory, "list its files with Glob"),
)


def from_error(error: SandboxdError | MemoError) -> ToolResult:
    """Return an error that a tool raised as a result."""
    advice = next((f"; {text}" for kind, text in _ADVICE if isinstance(error, kind)), "")
    details: dict[str, Any] = {"code": error.code}
    if error.retryable:
        details["retryable"] = True
    return ToolResult(ok=False, content=f"{error}{advice}", details=details)


def unknown_tool(name: str, known: Iterable[str]) -> ToolResult:
    """Return what to call instead. No other spelling is accepted: a host may permit tools by their names."""
    by_folded = {each.lower(): each for each in known}
    word = name.rpartition(".")[2].rpartition("__")[2].lower()
    near = [by_folded[each] for each in difflib.get_close_matches(word[:64], by_folded, 2, 0.6)]
    meant = f"did you mean {' or '.join(near)}? The tools are" if near else "call one of"
    shown = ascii(name if len(name) <= 64 else f"{name[:64]}...")
    content = f"cannot call {shown}: there is no such tool; {meant} {', '.join(by_folded.values())}"
    return ToolResult(ok=False, content=content, details={"code": ToolNotFound.code, "nearest": near})


def bad_arguments(tool: str, schema: Mapping[str, Any], error: ValidationError) -> ToolResult:
    """Return which arguments are wrong, why, and what the tool takes."""
    problems: dict[str, str] = {}
    has_more = False
    for one in error.errors(include_url=False, include_input=False):
        path = _path(one, schema)
        name = ".".join(path)
        if name in problems:
            continue
        if has_more := len(problems) == _MOST_PROBLEMS:
            break
        problems[name] = _problem(one, path, schema)
    said = "; ".join(problems.values()) + ("; and more" if has_more else "")
    content = f"cannot call {tool}: {said}. Nothing was done. {describe_arguments(tool, schema)}"
    names = [name for name in problems if name]
    return ToolResult(ok=False, content=content, details={"code": InvalidRequest.code, "arguments": names})


def not_an_object(tool: str, schema: Mapping[str, Any]) -> ToolResult:
    content = f"cannot call {tool}: its arguments must be a JSON object. {describe_arguments(tool, schema)}"
    return ToolResult(ok=False, content=content, details={"code": InvalidRequest.code, "arguments": []})


def describe_arguments(tool: str, schema: Mapping[str, Any]) -> str:
    """Return a sentence that names a tool's arguments and their types."""
    required = schema.get("required", ())
    named = {name: f"{name} ({_noun(field)})" for name, field in schema.get("properties", {}).items()}
    needs = [text for name, text in named.items() if name in required]
    may = [text for name, text in named.items() if name not in required]
    if not named:
        return f"{tool} takes no arguments."
    taken = [f"needs {', '.join(needs)}"] if needs else []
    taken += [f"optionally takes {', '.join(may)}"] if may else []
    return f"{tool} {' and '.join(taken)}."


def add_notes(result: ToolResult, tool: str, ignored: Sequence[str]) -> ToolResult:
    """Return a result that also names the arguments that had no effect."""
    if not ignored:
        return result
    shown = ", ".join(ascii(name[:64]) for name in ignored[:_MOST_PROBLEMS])
    if len(ignored) > _MOST_PROBLEMS:
        shown += f" and {len(ignored) - _MOST_PROBLEMS} more"
    content = f"{result.content}\n[ignored, because {tool} does not take it: {shown}]"
    details = {**result.details, "ignored": [name[:64] for name in ignored[:_MOST_PROBLEMS]]}
    return result.model_copy(update={"content": content, "details": details})


def _path(one: ErrorDetails, schema: Mapping[str, Any]) -> list[str]:
    """Return where an error is, without the parts of a union, which are not in what was sent."""
    path: list[str] = []
    for part in one["loc"]:
        if isinstance(part, int):
            path.append(str(part))
            schema = schema.get("items", {})
        else:
            is_field = part in schema.get("properties", {})
            if not is_field and one["type"] != "extra_forbidden":
                break
            path.append(part[:64])
            schema = schema.get("properties", {}).get(part, {})
    return path


def _problem(one: ErrorDetails, path: Sequence[str], schema: Mapping[str, Any]) -> str:
    if not path:
        return one["msg"].removeprefix("Value error, ")[:_MOST_CHARS]
    *parents, last = path
    for part in parents:
        schema = schema["items"] if part.isdecimal() else schema["properties"][part]
    name, field = ".".join(path), schema.get("properties", {}).get(last) or schema.get("items", {})
    context = one.get("ctx", {})
    match one["type"]:
        case "missing":
            return f"{name} is missing"
        case "extra_forbidden":
            near = difflib.get_close_matches(last, schema.get("properties", {}), 1)
            return f"{name!a} is not an argument" + (f" (did you mean {near[0]}?)" if near else "; leave it out")
        case "value_error":
            return f"{name} {one['msg'].removeprefix('Value error, ')}"[:_MOST_CHARS]
        case "literal_error":
            return f"{name} must be one of {', '.join(field.get('enum', ()))}"
        case "greater_than_equal":
            return f"{name} must be at least {context.get('ge')}"
        case "less_than_equal":
            return f"{name} must be at most {context.get('le')}"
        case "string_too_short" | "too_short":
            return f"{name} must not be empty"
        case "string_too_long" | "too_long":
            return f"{name} must be at most {context.get('max_length')} long"
        case "string_pattern_mismatch":
            return f"{name} must match {context.get('pattern')}"
        case "string_unicode":
            return f"{name} contains half of a character (an unpaired surrogate); write the whole character"
    return f"{name} must be {_noun(field)}{_how(field)}"


def _noun(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return " | ".join(field["enum"])
    return " or ".join(dict.fromkeys(_NOUNS.get(kind, kind) for kind in types_of(field))) if field else "a value"


def _how(field: Mapping[str, Any]) -> str:
    return "; send JSON as one string" if field and types_of(field) == ["string"] else ""
