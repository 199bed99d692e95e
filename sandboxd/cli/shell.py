"""`shell` and `attach`: a terminal in a sandbox, and a process that already runs there."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, ProcessId, Session, Tenant
from sandboxd.cli.output import FAILED, print_json, report
from sandboxd.cli.terminal import DETACH_KEYS, Ended, attach_pipes, attach_terminal, parse_keys, window_size
from sandboxd.client import Terminal
from sandboxd.client.errors import DaemonUnreachable
from sandboxd.errors import InvalidRequest

DetachKeysOption = Annotated[
    str, typer.Option("--detach-keys", help="The keys that detach, such as ctrl-a,d; empty for none.")
]


def shell(
    session: Session,
    command: Annotated[
        str, typer.Option("--command", "-c", help="The command to run in the terminal.")
    ] = "exec bash -l",
    detach_keys: DetachKeysOption = DETACH_KEYS,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Open a terminal in a session's sandbox. It ends when its program does, with the program's exit code.

    Ctrl-P Ctrl-Q detaches and leaves the program running, as does a lost connection; `sandboxd attach` continues. With
    --json, the program is started and not attached to.

    Example: sandboxd shell demo
    """
    keys = parse_keys(detach_keys)
    if not sys.stdin.isatty() and not json:
        raise InvalidRequest("cannot open a shell: stdin is not a terminal; use `sandboxd exec` in scripts")
    with connected(daemon, tenant, json, session=session) as client:
        size = window_size()
        env = {"TERM": os.environ.get("TERM", "xterm-256color")}
        process = client.start_process(session, command, env=env, tty=True, rows=size.lines, columns=size.columns)
        if json:
            print_json({"process": process.id, "session": session})
            return
        with Terminal(client, session, client.tenant, process.id) as terminal:
            code = _run_attached(terminal, session, tenant, daemon, is_terminal=True, keys=keys)
    raise typer.Exit(code)


def attach(
    session: Session,
    process: ProcessId,
    detach_keys: DetachKeysOption = DETACH_KEYS,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", "-n", help="Do not read stdin.")] = False,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Connect this terminal to a background process. The exit code is the process's, or 0 after detaching.

    A process with a terminal is used interactively; Ctrl-P Ctrl-Q detaches. Of one without, the output is shown and
    stdin is passed on, with its end; Ctrl-C detaches. The last screenful of earlier output is shown first. With --json,
    the process is described and not attached to.

    Example: sandboxd attach demo p1
    """
    keys = parse_keys(detach_keys)
    with connected(daemon, tenant, json, session=session) as client:
        found = client.read_process(session, process, limit=1).process
        if json:
            print_json({"session": session, **dict(found)})
            return
        is_terminal = found.tty is not False and sys.stdin.isatty() and not no_stdin
        with Terminal(client, session, client.tenant, process, offset=None) as terminal:
            code = _run_attached(
                terminal, session, tenant, daemon, is_terminal=is_terminal, keys=keys, with_stdin=not no_stdin
            )
    raise typer.Exit(code)


def _run_attached(
    terminal: Terminal,
    session: str,
    tenant: str,
    daemon: Daemon,
    *,
    is_terminal: bool,
    keys: bytes,
    with_stdin: bool = True,
) -> int:
    """Attach, and return the exit code. Whatever ends the connection, say how to continue."""
    words = ["sandboxd", "attach", session, terminal.id, *([] if tenant == "default" else ["--tenant", tenant])]
    again = f"`{shlex.join([*words, *daemon.words])}`"
    try:
        end = attach_terminal(terminal, keys) if is_terminal else attach_pipes(terminal, with_stdin=with_stdin)
    except DaemonUnreachable as error:
        report(error, False, next_step=f"{terminal.id} keeps running: {again} continues.")
        return FAILED  # there was a daemon
    if isinstance(end, Ended):
        return end.exit_code
    with suppress(OSError):  # this terminal may be gone
        typer.echo(f"[detached; {terminal.id} keeps running: {again} continues]", err=True)
    return 0
