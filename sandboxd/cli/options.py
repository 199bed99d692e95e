"""Options that many commands share. Those that say where the daemon is become one value, a `Daemon`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

Tenant = Annotated[
    str, typer.Option("--tenant", "-t", envvar="SANDBOXD_TENANT", help="The tenant of the session or user.")
]
# The command checks the path itself, for a better error: hence readable=False here and below.
Socket = Annotated[
    Path | None,
    typer.Option("--socket", readable=False, help="The daemon's socket, instead of SANDBOXD_SOCKET or the default."),
]
# Not envvar: the client reads SANDBOXD_URL and SANDBOXD_TOKEN, and --socket overrides them.
Url = Annotated[
    str | None,
    typer.Option("--url", help="The daemon's URL, such as https://host:8080, instead of SANDBOXD_URL or a socket."),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        help="The token for --url. Prefer SANDBOXD_TOKEN: other users of this host can see a command's arguments.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Session = Annotated[str, typer.Argument(help="The session of the sandbox.")]

ProcessId = Annotated[str, typer.Argument(help="The id of the process, from `sandboxd ps`.")]


@dataclass(frozen=True, slots=True)
class Daemon:
    """The daemon that a command talks to: the one its options name, else the default one."""

    socket: Path | None = None
    url: str | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def words(self) -> list[str]:
        """The options that select this daemon in another command; never the token."""
        if self.socket is not None:
            return ["--socket", str(self.socket)]
        return [] if self.url is None else ["--url", self.url]


DEFAULT_DAEMON = Daemon()
_PLACES: dict[str, Any] = {"socket": Socket, "url": Url, "token": Token}


def with_daemon(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with --socket, --url and --token in place of its parameter `daemon`."""
    signature = inspect.signature(command, eval_str=True)
    if "daemon" not in signature.parameters:
        return command

    @wraps(command)
    def run(**values: Any) -> None:
        if values["socket"] is not None and values["url"] is not None:
            raise typer.BadParameter("--socket and --url exclude each other", param_hint="options")
        daemon = Daemon(*(values.pop(name) for name in _PLACES))
        command(daemon=daemon, **values)

    parameters = []
    for parameter in signature.parameters.values():
        if parameter.name == "daemon":
            parameters += [
                inspect.Parameter(name, parameter.kind, default=None, annotation=kind) for name, kind in _PLACES.items()
            ]
        else:
            parameters.append(parameter)
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
