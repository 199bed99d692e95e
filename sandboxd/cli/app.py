"""All commands in one program. Exit codes: 0 done, 1 what was asked for failed, 2 wrong usage, 3 no daemon here.

A command's module is loaded when the command is asked for; only the overview loads them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer

COMMANDS: dict[str, str] = {
    "serve": "serve:serve",
    "doctor": "doctor:examine",
    "create": "sandboxes:create",
    "ls": "sandboxes:ls",
    "exec": "exec:execute",
    "shell": "shell:shell",
    "ps": "processes:ps",
    "kill": "processes:kill",
    "tool": "tool:tool",
    "rm": "sandboxes:rm",
    "memo": "memo:app",
    "refresh": "refresh:refresh",
    "consolidate": "consolidate:consolidate",
    "sessions": "sessions:sessions",
    "events": "events:events",
    "gc": "garbage:collect",
    "bench": "bench:bench",
}
"""Name → module and function, or group of commands, in the order of the overview."""

_SETTINGS: dict[str, dict[str, Any]] = {
    # What follows the session belongs to the command that is run, also when it looks like an option of ours.
    "exec": {"ignore_unknown_options": True, "allow_interspersed_args": False},
}


def build(words: Sequence[str]) -> typer.Typer:
    """Build the program for this command line: with the one command it names, or with all of them."""
    app = typer.Typer(
        name="sandboxd",
        epilog="Exit codes: 0 done, 1 what was asked for failed, 2 wrong usage, 3 no daemon here.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_overview)
    named = words[0] if words else ""
    for name in [named] if named in COMMANDS else COMMANDS:
        module, _, function = COMMANDS[name].partition(":")
        run = getattr(import_module(f"sandboxd.cli.{module}"), function)
        if isinstance(run, typer.Typer):
            app.add_typer(run, name=name)
        else:
            app.command(name, context_settings=_SETTINGS.get(name))(run)
    return app


def _overview() -> None:
    """A hardened container and its memory as plain files, for every AI agent."""
