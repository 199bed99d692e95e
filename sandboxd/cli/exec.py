"""`exec`: run a command in a sandbox as if it were local."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Session, Tenant
from sandboxd.cli.output import print_json
from sandboxd.cli.sandboxes import parse_pairs
from sandboxd.models.command import ExecOutput, ExecResult

TIMED_OUT = 124
CALL_FAILED = 125
PIECE_BYTES = 65_536


def execute(
    session: Session,
    command: Annotated[
        list[str], typer.Argument(help="One word is run by bash; several are run as a program and its arguments.")
    ],
    cwd: Annotated[
        str | None, typer.Option("--cwd", "-w", help="The working directory; /workspace by default.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE; may be repeated.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds until the command is killed.")] = None,
    no_stdin: Annotated[bool, typer.Option("--no-stdin", "-n", help="Do not read stdin.")] = False,
    merge_stderr: Annotated[bool, typer.Option(help="Merge stderr into stdout, in the order written.")] = False,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Run a command in a session's sandbox. Options come before the session.

    Output is streamed. Stdin is passed on as the command reads it, unless it is a terminal. The exit code is the
    command's own; 124 after a timeout, 125 if the command could not be run, 3 if there is no daemon.

    Example: sandboxd exec demo 'ls | wc -l'    or    sandboxd exec demo -- git status
    """
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise typer.BadParameter("no command is given", param_hint="COMMAND")
    program = words[0] if len(words) == 1 else words
    stdin = None if no_stdin or sys.stdin is None or sys.stdin.isatty() else _open_stdin(sys.stdin.fileno())
    variables = parse_pairs(env, "--env")
    with connected(daemon, tenant, json, CALL_FAILED, session=session) as client:
        if json:
            result = client.exec(
                session, program, cwd=cwd, env=variables, stdin=stdin, timeout_s=timeout, merge_stderr=merge_stderr
            )
            print_json({name: value for name, value in result if name != "encoding"})
            raise typer.Exit(_exit_code(result))
        items = client.exec_stream(
            session, program, cwd=cwd, env=variables, stdin=stdin, timeout_s=timeout, merge_stderr=merge_stderr
        )
        for item in items:
            if isinstance(item, ExecOutput):
                out = sys.stdout.buffer if item.stream == "stdout" else sys.stderr.buffer
                out.write(item.data)
                out.flush()
            else:
                _explain(item)
                raise typer.Exit(_exit_code(item))


def _open_stdin(fd: int) -> Iterator[bytes] | None:
    """Return stdin in chunks; None if it is empty, because some commands prefer a pipe over their files."""
    # Not through Python's own buffer: a thread that is still reading at exit would hold its lock.
    is_readable, _, _ = select.select([fd], [], [], 0)
    first = os.read(fd, PIECE_BYTES) if is_readable else None
    return None if first == b"" else _read_stdin(fd, first or b"")


def _read_stdin(fd: int, first: bytes) -> Iterator[bytes]:
    yield first
    while piece := os.read(fd, PIECE_BYTES):
        yield piece


def _exit_code(result: ExecResult) -> int:
    return TIMED_OUT if result.exit_code is None else result.exit_code


def _explain(result: ExecResult) -> None:
    """Report what the output does not show."""
    if result.timed_out:
        typer.echo("[timed out; the command and every process it started were killed]", err=True)
    if result.truncated:
        typer.echo("[output exceeded the limit; the rest was discarded]", err=True)
    for limit in result.limits_hit:
        typer.echo(f"[the sandbox reached its {limit} limit]", err=True)
