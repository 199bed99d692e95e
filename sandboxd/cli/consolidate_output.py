"""What `consolidate` prints: results, coloured diffs, users' status, and progress of long runs.

Results go to stdout; progress goes to stderr, only if that is a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import typer

from sandboxd.cli.output import print_json, print_line, print_table
from sandboxd.models.consolidation import Consolidated, ConsolidationFailure, ConsolidationState

HELD = "consolidation.held"
_NOTHING = {"unchanged": "is unchanged", "nothing": "was not written: there is nothing to record"}


@dataclass(frozen=True, slots=True)
class Item:
    """The outcome for one user: a result, or the code and text of an error."""

    tenant: str
    user: str
    result: Consolidated | None
    code: str = ""
    detail: str = ""

    @property
    def is_failure(self) -> bool:
        """Return whether the run failed. A user that another run holds is being processed, which is not a failure."""
        return self.result is None and self.code != HELD


def print_one(user: str, result: Consolidated, as_json: bool) -> None:
    if as_json:
        print_json(result)
    elif result.dry_run:
        print_diff(result.diff)
        if not result.changed:
            print_line(f"USER.md of {user} would not change")
    else:
        count = len(result.sessions)
        revision = f"is at revision {result.revision}, from {count} session{'' if count == 1 else 's'}"
        said = _NOTHING.get(result.outcome, revision)
        print_line(f"USER.md of {user} {said}{f' ({result.reason})' if result.reason else ''}")


def print_items(items: Sequence[Item], as_json: bool) -> None:
    if as_json:
        print_json({"items": [item_fields(item) for item in items]})
        return
    for item in items:
        if item.result is not None and item.result.dry_run:
            print_line(f"{item.tenant}:{item.user}{'' if item.result.changed else ' would not change'}")
            print_diff(item.result.diff)
    rows = [_row(item) for item in items if item.result is None or not item.result.dry_run]
    if rows or not items:
        print_table(("tenant", "user", "outcome", "revision", "sessions", "reason"), rows)


def item_fields(item: Item) -> dict[str, Any]:
    whose = {"tenant": item.tenant, "user": item.user}
    if item.result is None:
        return {**whose, "outcome": "held" if item.code == HELD else "failed", "code": item.code, "reason": item.detail}
    return {**whose, **dict(item.result)}


def print_item(item: Item, as_json: bool) -> None:
    """Print one line for one user when it is done."""
    if as_json:
        print_json(item_fields(item))
    else:
        print_line("\t".join(_row(item)))


def print_diff(diff: str) -> None:
    """Print a unified diff: on a terminal in colour and without control characters, else as it is."""
    if not sys.stdout.isatty():
        sys.stdout.write(diff)
        sys.stdout.flush()
        return
    for line in diff.splitlines():
        clean = "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in line)
        typer.secho(clean, **_colour(line))


def print_status(states: Sequence[ConsolidationState], as_json: bool) -> None:
    if as_json:
        print_json({"items": states})
        return
    rows = [row for state in states for row in _status_rows(state)]
    columns = ("user", "session", "state", "why", "changed", "last run", "outcome", "revision", "failures", "reason")
    print_table((*columns, "not before"), rows)


@contextmanager
def show_progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show progress over many users, or a spinner for one; yield the function to call when a user is done."""
    if not sys.stderr.isatty() or total == 0:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("consolidating", total=total)

        def advance(user: str) -> None:
            progress.update(task, advance=1, description=f"consolidated {user}")

        yield advance


def _row(item: Item) -> tuple[str, ...]:
    fields, result = item_fields(item), item.result
    revision = "" if result is None or result.revision is None else str(result.revision)
    sessions = "" if result is None else str(len(result.sessions))
    return (item.tenant, item.user, str(fields["outcome"]), revision, sessions, str(fields["reason"]))


def _status_rows(state: ConsolidationState) -> Iterator[tuple[str, ...]]:
    yield (
        state.user,
        "",
        _state_word(state),
        state.why,
        str(state.changed_sessions),
        _moment(state.last_run_at),
        state.last_outcome or "",
        "" if state.revision is None else str(state.revision),
        *_failure_cells(state.failure, _moment(state.look_again_at)),
    )
    for session, failure in state.failed_sessions.items():
        yield (state.user, session, "failing", "", "", "", "", "", *_failure_cells(failure, ""))


def _state_word(state: ConsolidationState) -> str:
    if state.held_by is not None:
        return "running"
    if state.failure is not None:
        return "failing"
    if state.due:
        return "due"
    return "waiting" if state.changed_sessions else "ok"


def _failure_cells(failure: ConsolidationFailure | None, otherwise: str) -> tuple[str, str, str]:
    return ("", "", otherwise) if failure is None else (str(failure.count), failure.reason, _moment(failure.retry_at))


def _moment(at: datetime | None) -> str:
    return "" if at is None else at.isoformat(timespec="seconds")


def _colour(line: str) -> dict[str, Any]:
    if line.startswith(("+++", "---")):
        return {"bold": True}
    return {"fg": {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])}
