"""`tool`: call an agent's tool by hand, or list the tools."""

from __future__ import annotations

import difflib
import json as jsonlib
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Session, Tenant
from sandboxd.cli.output import FAILED, fail, print_json, print_line, print_table
from sandboxd.errors import InvalidRequest, NotFound
from sandboxd.models.tool import ToolDescription

_NOUNS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a JSON array",
    "object": "a JSON object",
}


def tool(
    session: Session,
    name: Annotated[str | None, typer.Argument(help="The tool; lists the tools if not given.")] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="NAME=VALUE pairs, one JSON object, or `-` to read one from stdin.")
    ] = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Call a tool and print what a model would read. Exit code 1 if the tool failed.

    Example: sandboxd tool demo Read file_path=/workspace/notes.txt limit=10
    """
    with connected(daemon, tenant, json, session=session) as client:
        tools = {one.name: one for one in client.tools(session)}
        if name is None:
            _print_tools(list(tools.values()), json)
            return
        if name not in tools:
            near = difflib.get_close_matches(name.lower(), [known.lower() for known in tools], 1)
            meant = next((f"; did you mean {known}?" for known in tools if [known.lower()] == near), "")
            step = f"`sandboxd tool {session}` lists the tools."
            fail(NotFound(f"cannot find a tool {name}{meant}"), json, next_step=step)
        schema = tools[name].input_schema
        try:
            result = client.tool(session, name, parse_arguments(arguments or [], schema))
        except InvalidRequest as error:
            fail(error, json, next_step=_describe(name, schema))
    if json:
        print_json(result)
    else:
        print_line(result.content)
    raise typer.Exit(0 if result.ok else FAILED)


def _print_tools(tools: list[ToolDescription], as_json: bool) -> None:
    if as_json:
        print_json({"items": tools})
    else:
        print_table(("tool", "what it does"), [(one.name, one.description) for one in tools])


def parse_arguments(words: list[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments: one JSON object as it is, or pairs whose values are parsed by the schema."""
    if len(words) == 1 and (words[0] == "-" or words[0].lstrip().startswith("{")):
        return _parse_object(sys.stdin.read() if words[0] == "-" else words[0])
    properties: Mapping[str, Any] = schema.get("properties", {})
    values = {}
    for word in words:
        name, separator, text = word.partition("=")
        if not separator:
            raise InvalidRequest(f"cannot use {word!r} as an argument: it is neither NAME=VALUE nor a JSON object")
        values[name] = _parse_value(name, text, _types(properties.get(name, {"type": "string"})))
    return values


def _parse_object(text: str) -> dict[str, Any]:
    try:
        values = jsonlib.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"cannot use these arguments as JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidRequest("cannot use these arguments: they are not a JSON object")
    return values


def _types(field: Mapping[str, Any]) -> list[str]:
    """Return the JSON types that a field accepts; empty if it accepts any."""
    if "anyOf" in field:
        return [kind for option in field["anyOf"] for kind in _types(option)]
    kind = field.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)


def _parse_value(name: str, text: str, types: list[str]) -> Any:
    """Parse a value: as text wherever text is allowed, else as JSON of the right type."""
    if "string" in types:
        return text
    try:
        value = jsonlib.loads(text)
    except ValueError:
        value = text
    if types and _type_of(value) not in types and not (_type_of(value) == "integer" and "number" in types):
        wanted = " or ".join(_NOUNS.get(kind, kind) for kind in types)
        raise InvalidRequest(f"cannot use {name}={text}: it must be {wanted}")
    return value


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _describe(name: str, schema: Mapping[str, Any]) -> str:
    """Return a tool's signature, as the next step after refused arguments."""
    required = schema.get("required", ())
    takes = [f"{field}=…" if field in required else f"[{field}=…]" for field in schema.get("properties", ())]
    return f"Usage: {' '.join((name, *takes))}"
