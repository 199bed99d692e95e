"""`run`: run Python code in a context of a sandbox, which keeps variables between runs."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Session, Tenant
from sandboxd.cli.output import print_json
from sandboxd.errors import ContextExists, ContextNotFound
from sandboxd.models.context import RunOutcome, RunOutput

if TYPE_CHECKING:
    from sandboxd.client import Client


def run(
    session: Session,
    code: Annotated[str, typer.Argument(help="The code; - reads it from stdin.")],
    context: Annotated[
        str, typer.Option("--context", "-c", help="The context to run in; created on first use.")
    ] = "default",
    timeout: Annotated[float | None, typer.Option(help="Seconds until the code is interrupted.")] = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Run Python code in a session's sandbox. Variables are kept until the context is removed.

    Prints what the code prints and the value of its last expression; with --json also pictures. Exits with 1 if the
    code raises an exception or is interrupted. The sandbox needs the image `interpreter`.

    Example: sandboxd run demo 'x = 20; x + 1'
    """
    source = sys.stdin.read() if code == "-" else code
    with connected(daemon, tenant, json, session=session) as client:
        _ensure_context(client, session, context)
        if json:
            result = client.run_code(session, context, source, timeout_s=timeout)
            print_json(result)
            raise typer.Exit(0 if result.ok else 1)
        for item in client.run_code_stream(session, context, source, timeout_s=timeout):
            if isinstance(item, RunOutput):
                _show(item)
            else:
                _explain(item)
                raise typer.Exit(0 if item.ok else 1)


def _ensure_context(client: Client, session: str, context: str) -> None:
    try:
        client.get_context(session, context)
    except ContextNotFound:
        with suppress(ContextExists):
            client.create_context(session, name=context)


def _show(output: RunOutput) -> None:
    out = sys.stderr if output.type in ("stderr", "error") else sys.stdout
    text = output.traceback if output.type == "error" else output.data.get("text/plain")
    if isinstance(text, str):
        out.write(text if output.type in ("stdout", "stderr") else f"{text}\n")
        out.flush()


def _explain(outcome: RunOutcome) -> None:
    if outcome.timed_out:
        print("sandboxd: interrupted at the timeout", file=sys.stderr)
    if outcome.truncated:
        print("sandboxd: output exceeded the limit; the rest was discarded", file=sys.stderr)
    if outcome.state_lost:
        print(f"sandboxd: the variables of earlier runs are lost ({outcome.cause})", file=sys.stderr)
