"""`ports`, `forward`, `preview`: servers in a sandbox, and ways to reach them from here."""

from __future__ import annotations

import re
import signal
import threading
from contextlib import ExitStack
from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Session, Tenant
from sandboxd.cli.output import print_json, print_line, print_table, report
from sandboxd.client import Forwarder

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def list_ports(
    session: Session, tenant: Tenant = "default", daemon: Daemon = DEFAULT_DAEMON, json: Json = False
) -> None:
    """List the TCP ports that processes in a session's sandbox listen on.

    Example: sandboxd ports demo
    """
    with connected(daemon, tenant, json, session=session) as client:
        found = client.list_ports(session)
    if json:
        print_json({"items": found})
        return
    rows = [
        (str(one.port), one.process or "", "" if one.pid is None else str(one.pid), one.command or "") for one in found
    ]
    print_table(("port", "process", "pid", "command"), rows)


def forward(
    session: Session,
    ports: Annotated[list[str], typer.Argument(metavar="PORT[:LOCAL]...", help="A port inside, and the one here.")],
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Make ports of this machine lead to ports in a session's sandbox, until Ctrl-C.

    It listens on 127.0.0.1 only, on the same port unless another one is given; 0 chooses a free one. Any TCP protocol
    works.

    Example: sandboxd forward demo 8000 5432:15432
    """
    mappings = [_parse_mapping(text) for text in ports]
    with connected(daemon, tenant, json, session=session) as client, ExitStack() as listening:
        client.get_sandbox(session)
        ended = _catch_signals()
        for port, local in mappings:

            def explain(error: Exception) -> None:
                report(error, json)

            forwarder = listening.enter_context(client.forward_port(session, port, local, on_failure=explain))
            _announce(forwarder, port, json)
        ended.wait()


def preview(
    session: Session,
    port: Annotated[int, typer.Argument(min=1, max=65_535, help="The port inside.")],
    ttl: Annotated[str, typer.Option(help="How long the URL works: seconds, or a number with s, m, h or d.")] = "1h",
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Print a URL that shows a port of a session's sandbox in a browser, without a token, until it expires.

    Whoever has the URL can use it. The daemon must listen on TCP.

    Example: sandboxd preview demo 8000 --ttl 15m
    """
    seconds = _parse_duration(ttl)
    with connected(daemon, tenant, json, session=session) as client:
        made = client.create_preview(session, port, ttl_s=seconds)
    if json:
        print_json(made)
    else:
        print_line(made.url)


def _announce(forwarder: Forwarder, port: int, as_json: bool) -> None:
    if as_json:
        print_json({"port": port, "host": forwarder.host, "local_port": forwarder.port})
    else:
        print_line(f"{forwarder.host}:{forwarder.port} leads to port {port} in the sandbox")


def _catch_signals() -> threading.Event:
    """Return the event that Ctrl-C sets from now on."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: ended.set())
    return ended


def _parse_mapping(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})(?::(\d{1,5}))?", text)
    port = int(found[1]) if found else 0
    local = int(found[2]) if found and found[2] is not None else port
    if not 1 <= port <= 65_535 or local > 65_535:
        raise typer.BadParameter(f"{text!r} is not PORT or PORT:LOCAL", param_hint="PORT[:LOCAL]")
    return port, local


def _parse_duration(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if found is None:
        raise typer.BadParameter("must be seconds, or a number with s, m, h or d", param_hint="--ttl")
    return float(found[1]) * _UNITS_S[found[2]]
