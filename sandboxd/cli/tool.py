"""`tool`: call an agent's tool by hand, or list the tools."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import Json, Session, Socket, Tenant
from sandboxd.cli.output import FAILED, print_json, print_line, print_table


def tool(
    session: Session,
    name: Annotated[str | None, typer.Argument(help="The tool; without it, the tools are listed.")] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="One JSON object, `-` to read it from stdin, or NAME=VALUE pairs.")
    ] = None,
    tenant: Tenant = "default",
    socket: Socket = None,
    json: Json = False,
) -> None:
    """Call a tool and print what a model would read. Exit code 1 when the tool failed.

    Example: sandboxd tool demo Read file_path=/workspace/notes.txt limit=10
    """
    if name is None:
        _list(session, tenant, socket, json)
        return
    values = parse_arguments(arguments or [])
    with connected(socket, tenant, json, session=session) as client:
        result = client.tool(session, name, values)
    if json:
        print_json(asdict(result))
    else:
        print_line(result.content)
    raise typer.Exit(0 if result.ok else FAILED)


def _list(session: str, tenant: str, socket: Socket, as_json: bool) -> None:
    with connected(socket, tenant, as_json, session=session) as client:
        found = client.tools(session)
    if as_json:
        print_json({"items": [asdict(one) for one in found]})
    else:
        print_table(("tool", "what it does"), [(one.name, one.description) for one in found])


def parse_arguments(words: list[str]) -> dict[str, Any]:
    if len(words) == 1 and (words[0] == "-" or words[0].lstrip().startswith("{")):
        text = sys.stdin.read() if words[0] == "-" else words[0]
        try:
            values = jsonlib.loads(text)
        except ValueError as error:
            raise typer.BadParameter(f"not JSON: {error}", param_hint="ARGUMENTS") from None
        if not isinstance(values, dict):
            raise typer.BadParameter("not a JSON object", param_hint="ARGUMENTS")
        return values
    values = {}
    for word in words:
        name, separator, text = word.partition("=")
        if not separator:
            raise typer.BadParameter(f"{word!r} is neither JSON nor NAME=VALUE", param_hint="ARGUMENTS")
        values[name] = _value(text)
    return values


def _value(text: str) -> Any:
    """Numbers and booleans as such; anything else is text, also when it looks like other JSON."""
    try:
        value = jsonlib.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text
