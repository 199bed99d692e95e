"""`ps`, `logs`, `kill`: background processes of a sandbox."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, ProcessId, Session, Tenant
from sandboxd.cli.output import print_json, print_line, print_table
from sandboxd.models.process import MAX_READ_BYTES, ProcessOutput

WAIT_S = 20.0


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


def logs(
    session: Session,
    process: ProcessId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also print new output, until it ends.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last lines.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Only output from this byte on.")] = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Print the output of a background process, stdout and stderr together, as it was written.

    The sandbox keeps the last 1 MiB. With --json, one line for each read: its offset, its text and the process.

    Example: sandboxd logs demo p1 --tail 20 --follow
    """
    if tail is not None and offset is not None:
        raise typer.BadParameter("--tail and --offset exclude each other", param_hint="options")
    with connected(daemon, tenant, json, session=session) as client:
        try:
            read = client.read_process(session, process, offset=offset or 0, limit=MAX_READ_BYTES)
            data = read.data if tail is None else _last_lines(read.data, tail)
            _print_output(read, data, json)
            while follow and (read.process.running or read.next_offset < read.process.output_bytes):
                read = client.read_process(session, process, offset=read.next_offset, wait_s=WAIT_S)
                if read.data or not read.process.running:
                    _print_output(read, read.data, json)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None  # the usual way to stop following


def _last_lines(data: bytes, count: int) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[len(lines) - min(count, len(lines)) :])


def _print_output(read: ProcessOutput, data: bytes, as_json: bool) -> None:
    if not as_json:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    print_json(
        {
            "offset": read.next_offset - len(data),
            "next_offset": read.next_offset,
            "data": data.decode("utf-8", "replace"),
            "running": read.process.running,
            "exit_code": read.process.exit_code,
        }
    )


def kill(
    session: Session,
    process: ProcessId,
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
