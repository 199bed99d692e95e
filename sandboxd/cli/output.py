"""What a command prints: tables and colour on a terminal, plain text otherwise, JSON with --json.

Results go to stdout. A failure prints one sentence and the next step on stderr and sets the exit code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

import typer

from sandboxd.client.errors import AnswerLost, DaemonUnreachable

FAILED = 1
WRONG_USAGE = 2
NO_DAEMON = 3
INTERRUPTED = 130

_USAGE_CODES = frozenset({"request.invalid", "memo.invalid_key", "memo.invalid_content"})

_NO_SANDBOX = "`sandboxd ls` lists the sandboxes of a tenant; `sandboxd create SESSION` creates one."
_NEXT_STEPS = {
    "daemon.unreachable": "Start one with `sandboxd serve`, or say where it is with --socket or --url.",
    "daemon.answer_lost": "`sandboxd doctor` checks the daemon.",
    "request.not_found": _NO_SANDBOX,
    "sandbox.not_found": _NO_SANDBOX,
    "snapshot.not_found": "`sandboxd snapshot ls SESSION` lists the snapshots of a session.",
    "request.conflict": "`sandboxd ls` shows which user has which session.",
    "request.outside_sandbox": "Give a path under one of these.",
    "file.not_found": "`sandboxd exec SESSION ls` lists the files of the workspace.",
    "sandbox.not_ready": "Try again in a moment.",
    "sandbox.differs": "With --recreate its container is replaced, and its files are kept.",
    "memo.absent": "`sandboxd memo ls SESSION`, or with --user, lists the documents.",
    "memo.unsupported": "Serve with a --store that supports this.",
    "memo.conflict": "See what changed with `sandboxd memo diff` and try again, or merge both changes with --merge.",
    "consolidation.held": "Try again in a moment; `sandboxd consolidate --status` shows which run holds the user.",
    "consolidation.summariser": "`sandboxd consolidate --status` shows the reason and the time of the next try.",
    "consolidation.summariser_unavailable": "`sandboxd consolidate --status` shows the time of the next try.",
    "store.unavailable": "`sandboxd doctor` shows what is wrong with the store.",
    "port.closed": "`sandboxd ports SESSION` lists the ports that are listened on.",
    "engine.unavailable": "`sandboxd doctor` shows what is wrong with the engine.",
    "engine.refused": "`sandboxd doctor` shows what is wrong with the engine.",
}

_STYLES = {
    "ready": "green",
    "ok": "green",
    "paused": "yellow",
    "hibernated": "yellow",
    "weak": "yellow",
    "gone": "red",
    "missing": "red",
}


def print_json(content: Any) -> None:
    sys.stdout.write(json.dumps(content, default=_plain, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_line(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on a terminal, tab-separated lines otherwise."""
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
    """Print what went wrong and the next step, and exit."""
    raise typer.Exit(report(error, as_json, code, next_step))


def report(error: Exception, as_json: bool, code: int | None = None, next_step: str | None = None) -> int:
    """Print what went wrong and the next step; return the exit code."""
    wire_code = getattr(error, "code", "internal.error")
    step = find_next_step(error) if next_step is None else next_step
    if as_json:
        problem = {"code": wire_code, "detail": str(error), "retryable": getattr(error, "retryable", False)}
        problem |= {"next_step": step} if step else {}
        sys.stderr.write(json.dumps(problem, ensure_ascii=False) + "\n")
    else:
        end = "" if str(error).endswith(("?", "!")) else "."
        typer.secho(f"{error}{end}", err=True, fg="red" if sys.stderr.isatty() else None)
        if step:
            typer.echo(step, err=True)
    if isinstance(error, DaemonUnreachable) and not isinstance(error, AnswerLost):
        return NO_DAEMON
    if code is not None:
        return code
    return WRONG_USAGE if wire_code in _USAGE_CODES else FAILED


def find_next_step(error: Exception) -> str:
    """Return the next step after an error, unless its message already names one after a semicolon."""
    code = getattr(error, "code", "internal.error")
    if isinstance(error.__cause__, PermissionError) and isinstance(error, DaemonUnreachable):
        return "Run this as the daemon's user, or start your own daemon with `sandboxd serve`."
    if code == "memo.absent" and "revision" in str(error):
        return "`sandboxd memo history SESSION NAME`, or with --user, lists the revisions."
    step = _NEXT_STEPS.get(code, "")
    if step is not _NO_SANDBOX and "; " in str(error):
        return ""
    if not step and code in _USAGE_CODES and len(sys.argv) > 1:
        return f"`sandboxd {sys.argv[1]} --help` shows the usage."
    return step


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    from pydantic import BaseModel  # loaded only by a command that has received one

    if isinstance(value, BaseModel):
        return dict(value)  # not as on the wire, where some mappings are lists
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def _style(cell: str) -> str:
    return _STYLES.get(cell, "")
