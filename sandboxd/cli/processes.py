"""`ps`, `kill`: background processes of a sandbox."""

from __future__ import annotations

from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Session, Tenant
from sandboxd.cli.output import print_json, print_line, print_table


def ps(session: Session, tenant: Tenant = "default", daemon: Daemon = DEFAULT_DAEMON, json: Json = False) -> None:
    """List the background processes of a session's sandbox.

    Example: sandboxd ps demo
    """
    with connected(daemon, tenant, json, session=session) as client:
        found = client.list_processes(session)
    if json:
        print_json({"items": found})
        return
    rows = [
        (
            process.id,
            "running" if process.running else f"exit {process.exit_code}",
            process.started_at.isoformat(timespec="seconds") if process.started_at else "",
            process.command,
        )
        for process in found
    ]
    print_table(("process", "state", "started", "command"), rows)


def kill(
    session: Session,
    process: Annotated[str, typer.Argument(help="The id of the process, from `sandboxd ps`.")],
    signal: Annotated[str, typer.Option("--signal", "-s", help="KILL, TERM, INT, HUP, USR1, ...")] = "KILL",
    grace: Annotated[
        float | None, typer.Option(help="Seconds until the remaining processes are killed; 5 by default.")
    ] = None,
    only: Annotated[bool, typer.Option("--only", help="Only send the signal; kill nothing.")] = False,
    to: Annotated[
        str | None, typer.Option(help="With --only: process, foreground (of its terminal) or children.")
    ] = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """End a background process and everything it started.

    A signal other than KILL is sent to all of them first, and those left after the grace period are killed. With
    --only, nothing else is sent: `--only --signal INT --to children` interrupts what a shell runs and leaves the shell
    running.

    Example: sandboxd kill demo p1 --signal TERM --grace 10
    """
    if to is not None and not only:
        raise typer.BadParameter("needs --only", param_hint="--to")
    name = signal.upper().removeprefix("SIG")
    with connected(daemon, tenant, json, session=session) as client:
        if only:
            count = client.signal_process(session, process, name, to=to)
            answer = {"process": process, "signalled": count}
            text = f"{name} sent to {count} processes"
        else:
            ended = client.kill_process(session, process, signal=name, grace_s=grace)
            answer = dict(ended)
            text = f"ended by {ended.ended_by}"
    if json:
        print_json(answer)
    else:
        print_line(text)
