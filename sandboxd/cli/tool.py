"""`tool`: call an agent's tool by hand, or list the tools."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Mapping
from typing import Annotated, Any, cast, get_args

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Session, Tenant
from sandboxd.cli.output import FAILED, fail, print_json, print_line, print_table
from sandboxd.errors import InvalidRequest
from sandboxd.models.tool import ToolDescription, ToolFormat


def tool(
    session: Session,
    name: Annotated[str | None, typer.Argument(help="The tool; lists the tools if not given.")] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="NAME=VALUE pairs, one JSON object, or `-` to read one from stdin.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="API", help="List the tools as JSON for an API: anthropic, openai or mcp."),
    ] = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Call a tool and print what a model would read. Exit code 1 if the tool failed.

    Example: sandboxd tool demo Read file_path=/workspace/notes.txt limit=10
    """
    with connected(daemon, tenant, json, session=session) as client:
        if format_ is not None:
            if name is not None:
                fail(InvalidRequest("cannot use --format with a tool: it is for the list of tools"), json)
            print_json(client.tools(session, format=_parse_format(format_)))
            return
        tools = {one.name: one for one in client.tools(session)}
        if name is None:
            _print_tools(list(tools.values()), json)
            return
        schema = tools[name].input_schema if name in tools else {}
        try:
            given = parse_arguments(arguments or [], schema)
        except InvalidRequest as error:
            fail(error, json, next_step=_describe(name, schema))
        result = client.tool(session, name, given)
    if json:
        print_json(result)
    else:
        print_line(result.content)
    raise typer.Exit(0 if result.ok else FAILED)


def _parse_format(text: str) -> ToolFormat:
    for known in get_args(ToolFormat):
        if text == known:
            return cast(ToolFormat, known)
    raise InvalidRequest(f"cannot use the format {text}: choose one of {', '.join(get_args(ToolFormat))}")


def _print_tools(tools: list[ToolDescription], as_json: bool) -> None:
    if as_json:
        print_json({"items": tools})
    else:
        print_table(("tool", "what it does"), [(one.name, one.description) for one in tools])


def parse_arguments(words: list[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments: one JSON object as it is, or pairs whose values are parsed by the schema.

    Whether a value suits its argument is left to the daemon, which tells a person the same as a model.
    """
    if len(words) == 1 and (words[0] == "-" or words[0].lstrip().startswith("{")):
        return _parse_object(sys.stdin.read() if words[0] == "-" else words[0])
    properties: Mapping[str, Any] = schema.get("properties", {})
    values = {}
    for word in words:
        name, separator, text = word.partition("=")
        if not separator:
            raise InvalidRequest(f"cannot use {word!r} as an argument: it is neither NAME=VALUE nor a JSON object")
        values[name] = _parse_value(text, _types(properties.get(name, {"type": "string"})))
    return values


def _parse_object(text: str) -> dict[str, Any]:
    try:
        values = jsonlib.loads(text)
    except (ValueError, RecursionError) as error:
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


def _parse_value(text: str, types: list[str]) -> Any:
    """Parse a value: as text wherever text is allowed, else as JSON if it is JSON."""
    if "string" in types:
        return text
    try:
        return jsonlib.loads(text)
    except (ValueError, RecursionError):
        return text


def _describe(name: str, schema: Mapping[str, Any]) -> str:
    """Return a tool's signature, as the next step after refused arguments."""
    required = schema.get("required", ())
    takes = [f"{field}=…" if field in required else f"[{field}=…]" for field in schema.get("properties", ())]
    return f"Usage: {' '.join((name, *takes))}"
