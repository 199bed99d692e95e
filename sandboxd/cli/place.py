"""The document a command works on: SESSION NAME, or NAME with --user; and the text given to a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from sandboxd.cli.output import print_json, print_line
from sandboxd.errors import InvalidRequest
from sandboxd.models.document import Written

MAX_INPUT_BYTES = 67_108_864

Words = Annotated[list[str] | None, typer.Argument(metavar="[SESSION] NAME", help="Leave SESSION out with --user.")]
User = Annotated[str | None, typer.Option("--user", "-u", help="A document of this user instead of a session.")]
Actor = Annotated[str | None, typer.Option("--actor", help="The author to record in the history; host by default.")]
Reason = Annotated[str | None, typer.Option("--reason", "-m", help="The reason to record in the history.")]
File = Annotated[
    Path | None, typer.Option("--file", "-f", readable=False, help="Read the text from a file instead of stdin.")
]


@dataclass(frozen=True, slots=True)
class Place:
    owner: str
    scope: Literal["session", "user"]
    words: tuple[str, ...]
    """The words after the owner."""


def find_place(words: Sequence[str] | None, user: str | None, *nouns: str) -> Place:
    """Split the words of a command into an owner and the rest, which must match `nouns`."""
    given = tuple(words or ())
    wanted = nouns if user is not None else ("SESSION", *nouns)
    if len(given) != len(wanted):
        wants = " ".join(wanted) or "no argument"
        instead = "" if user is not None else f", or {' '.join(('--user USER', *nouns))}"
        raise typer.BadParameter(f"expected {wants}{instead}", param_hint="the arguments")
    if user is not None:
        return Place(user, "user", given)
    return Place(given[0], "session", given[1:])


def read_input(file: Path | None) -> str:
    """Return the text of a file or of stdin, which must be UTF-8."""
    if file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise InvalidRequest("cannot write a document without its text; pipe it in, or name a file with --file")
    try:
        if file is None:
            raw = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        else:
            with file.open("rb") as source:
                raw = source.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"cannot read {file or 'stdin'}: {error.strerror}; correct --file") from None
    if len(raw) > MAX_INPUT_BYTES:
        raise InvalidRequest("cannot use this text: it is larger than 64 MiB; split it")
    return decode(raw, "the text")


def decode(raw: bytes, noun: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"cannot use {noun}: byte {error.start} is not UTF-8; convert it to UTF-8") from None


def print_text(text: str) -> None:
    """Print the text exactly as it is stored."""
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def print_written(name: str, written: Written, as_json: bool) -> None:
    if as_json:
        fields = {"queued": True} if written.queued else {"revision": written.revision, "sha256": written.sha256}
        print_json({"name": name, **fields, **({"merged": True} if written.merged else {})})
    elif written.queued:
        print_line(f"{name} is queued: the store is unavailable")
    else:
        print_line(f"{name} is at revision {written.revision}{' (merged)' if written.merged else ''}")
