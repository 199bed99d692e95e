"""All commands in one program. Exit codes: 0 success, 1 failure, 2 usage error, 3 no daemon.

A command's module is loaded when the command runs; only the overview loads all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.main import get_command

from sandboxd.cli.options import with_daemon
from sandboxd.cli.output import INTERRUPTED, WRONG_USAGE, print_line, report
from sandboxd.errors import InvalidRequest, SandboxdError

COMMANDS: dict[str, str] = {
    "serve": "serve:serve",
    "image": "image:app",
    "doctor": "doctor:examine",
    "create": "sandboxes:create",
    "ls": "sandboxes:ls",
    "exec": "exec:execute",
    "run": "run:run",
    "shell": "shell:shell",
    "cp": "cp:copy",
    "attach": "shell:attach",
    "ps": "processes:ps",
    "logs": "processes:logs",
    "kill": "processes:kill",
    "tool": "tool:tool",
    "ports": "ports:list_ports",
    "forward": "ports:forward",
    "preview": "ports:preview",
    "mcp": "mcp:mcp",
    "pause": "sandboxes:pause",
    "resume": "sandboxes:resume",
    "hibernate": "sandboxes:hibernate",
    "snapshot": "snapshots:app",
    "fork": "snapshots:fork",
    "egress": "egress:egress",
    "rm": "sandboxes:rm",
    "memo": "memo:app",
    "refresh": "refresh:refresh",
    "consolidate": "consolidate:consolidate",
    "sessions": "sessions:sessions",
    "events": "events:events",
    "inspect": "inspect:inspect",
    "gc": "garbage:collect",
    "bench": "bench:bench",
}
"""Name → module and function or command group, in the order of the overview."""

_SETTINGS: dict[str, dict[str, Any]] = {
    # Words after the session belong to the command to run, even if they look like our options.
    "exec": {"ignore_unknown_options": True, "allow_interspersed_args": False},
}

_UsageError: type[Any] = typer.BadParameter.__bases__[0]  # its own module differs between versions of typer


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit code; report a usage error as one sentence and the next step."""
    command = get_command(build(words))
    as_json = "--json" in words
    try:
        return command.main(list(words), prog_name="sandboxd", standalone_mode=False) or 0
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            return WRONG_USAGE
        path = error.ctx.command_path if error.ctx else "sandboxd"
        message = error.format_message().strip().removesuffix(".").partition(", unable to parse")[0]
        message = message.replace("Input should be", "it must be")
        wrong = InvalidRequest(f"cannot run `{path}`: {message[:1].lower()}{message[1:]}")
        return report(wrong, as_json, next_step=f"`{path} --help` shows the usage.")
    except SandboxdError as error:
        return report(error, as_json)
    except typer.Abort:
        return INTERRUPTED


def build(words: Sequence[str]) -> typer.Typer:
    """Build the program for this command line: with only the command it names, or with all."""
    app = typer.Typer(
        name="sandboxd",
        epilog="Exit codes: 0 success, 1 failure, 2 usage error, 3 no daemon. "
        "`sandboxd COMMAND --help` shows an example of each.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=_help(_overview))(_overview)
    for name in _commands_for(words[0] if words else ""):
        module, _, function = COMMANDS[name].partition(":")
        found = getattr(import_module(f"sandboxd.cli.{module}"), function)
        if isinstance(found, typer.Typer):
            for command in found.registered_commands:
                command.help = _help(command.callback)
                command.callback = with_daemon(command.callback) if command.callback else None
            app.add_typer(found, name=name)
        else:
            app.command(name, help=_help(found), context_settings=_SETTINGS.get(name))(with_daemon(found))
    return app


def _commands_for(word: str) -> Iterable[str]:
    """Return the commands to load: the one that the first word names, none for the version, else all."""
    if word in COMMANDS:
        return [word]
    return [] if word == "--version" else COMMANDS


def _help(command: Any) -> str:
    """Return a command's docstring with each paragraph on one line, for the terminal to wrap."""
    paragraphs = cleandoc(command.__doc__).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        print_line(f"sandboxd {version('sandboxd')}")
        raise typer.Exit


def _overview(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Give every AI agent a hardened container and its memory as plain files.

    Example: start the daemon with `sandboxd serve`; in another terminal, create a sandbox with `sandboxd create demo`
    and run a command in it with `sandboxd exec demo 'echo hello'`.
    """
