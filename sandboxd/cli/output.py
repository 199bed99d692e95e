"""What a command prints: tables and colour on a terminal, plain text otherwise, JSON when asked.

Results go to stdout. A failure is one sentence and the next step on stderr, and an exit code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

import typer

from sandboxd.client.errors import DaemonUnreachable

FAILED = 1
WRONG_USAGE = 2
NO_DAEMON = 3

_USAGE_CODES = frozenset({"request.invalid", "memo.invalid_key", "memo.invalid_content"})

_NEXT_STEPS = {
    "daemon.unreachable": "Start one with `sandboxd serve`, or say where it is with --socket.",
    "sandbox.not_found": "`sandboxd ls` lists the sandboxes of a tenant; `sandboxd create SESSION` makes one.",
    "request.conflict": "`sandboxd ls` shows who has it.",
    "sandbox.not_ready": "Try again in a moment.",
    "memo.absent": "`sandboxd memo ls SESSION` lists what there is.",
    "memo.conflict": "Look at it with `sandboxd memo diff` and try again, or let both changes be merged with --merge.",
    "consolidation.held": "Try again in a moment; `sandboxd consolidate --status` shows who has it.",
    "consolidation.summariser": "`sandboxd consolidate --status` keeps the reason, and says when it is tried again.",
    "consolidation.summariser_unavailable": "`sandboxd consolidate --status` says when it is tried again.",
    "store.unavailable": "`sandboxd doctor` says what is wrong with the store.",
    "engine.unavailable": "`sandboxd doctor` says what is wrong with the engine.",
    "engine.refused": "`sandboxd doctor` says what is wrong with the engine.",
}


def print_json(content: Any) -> None:
    sys.stdout.write(json.dumps(content, default=_plain, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_line(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal; tab-separated lines for a program that reads them."""
    if not sys.stdout.isatty():
        for row in rows:
            print_line("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    Console().print(table)


def fail(error: Exception, as_json: bool, code: int | None = None, next_step: str | None = None) -> NoReturn:
    """Say what went wrong and what to do next, and end."""
    wire_code = getattr(error, "code", "internal.error")
    retryable = getattr(error, "retryable", False)
    if as_json:
        problem = {"code": wire_code, "detail": str(error), "retryable": retryable}
        sys.stderr.write(json.dumps(problem, ensure_ascii=False) + "\n")
    else:
        typer.secho(f"{error}.", err=True, fg="red" if sys.stderr.isatty() else None)
        if (step := next_step or _NEXT_STEPS.get(wire_code)) is not None:
            typer.echo(step, err=True)
    if isinstance(error, DaemonUnreachable):
        raise typer.Exit(NO_DAEMON)
    if code is not None:
        raise typer.Exit(code)
    raise typer.Exit(WRONG_USAGE if wire_code in _USAGE_CODES else FAILED)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def _style(cell: str) -> str:
    return {"ready": "green", "ok": "green", "gone": "red", "missing": "red", "weak": "yellow"}.get(cell, "")
