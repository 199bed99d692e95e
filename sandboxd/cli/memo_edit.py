"""`memo edit`: edit a document in an editor, and write it back only if it has not changed in the meantime.

The edited text is never discarded: if it cannot be written, it stays in a file whose path is printed.
"""

from __future__ import annotations

import difflib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Tenant
from sandboxd.cli.output import fail, print_json, print_line
from sandboxd.cli.place import Actor, Place, Reason, User, Words, decode, find_place, print_written
from sandboxd.client import Client
from sandboxd.client.errors import KNOWN_ERRORS
from sandboxd.errors import HostIO
from sandboxd.models.document import Document


def edit(
    words: Words = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="If the document has changed, try to merge both changes.")
    ] = False,
    actor: Actor = None,
    reason: Reason = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Open a document in $VISUAL or $EDITOR and write it back.

    If the document has changed in the meantime, nothing is written, the difference is shown and your text is kept.

    Example: sandboxd memo edit --user alice USER.md
    """
    place = find_place(words, user, "NAME")
    with connected(daemon, tenant, json) as client:
        before = _read(client, place)
        draft = _draft(place.words[0], before.text)
        text = _let_edit(draft)
        if text == before.text:
            draft.unlink()
            _say_unchanged(place, before, json)
            return
        try:
            written = client.write_memo(
                place.owner,
                place.words[0],
                text,
                scope=place.scope,
                expected=before.revision,
                merge=merge,
                actor=actor,
                reason=reason,
            )
        except KNOWN_ERRORS as error:
            _show_difference(error, text, json)
            typer.echo(f"Your text is kept in {draft}", err=True)
            fail(error, json)
        draft.unlink()
    print_written(place.words[0], written, json)


def _read(client: Client, place: Place) -> Document:
    from memo.errors import Absent

    try:
        return client.read_memo(place.owner, place.words[0], scope=place.scope)
    except Absent:
        return Document(text="", revision=0)


def _draft(name: str, text: str) -> Path:
    handle, path = tempfile.mkstemp(
        prefix="sandboxd-", suffix=f"-{Path(name).name}"
    )  # the name gives the editor the file type
    with os.fdopen(handle, "wb") as draft:
        draft.write(text.encode())
    return Path(path)


def _let_edit(draft: Path) -> str:
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    try:
        code = subprocess.run([*editor, str(draft)], check=False).returncode
    except OSError as error:
        draft.unlink()
        raise HostIO(
            f"cannot start the editor {editor[0]}: {error.strerror}; set EDITOR to an installed editor"
        ) from None
    if code != 0:
        raise HostIO(f"cannot write it back: the editor exited with {code}; {draft} contains your text")
    return decode(draft.read_bytes(), f"what is in {draft}")


def _say_unchanged(place: Place, before: Document, as_json: bool) -> None:
    if as_json:
        print_json({"name": place.words[0], "revision": before.revision, "unchanged": True})
    else:
        print_line(f"{place.words[0]} is unchanged")


def _show_difference(error: Exception, text: str, as_json: bool) -> None:
    """Show how the newer text of a conflict differs from the edited one."""
    now = getattr(error, "current", None)
    if now is None or as_json:
        return
    newer, typed = now.content.splitlines(), text.splitlines()
    for line in difflib.unified_diff(newer, typed, f"newer (revision {now.revision})", "yours", lineterm=""):
        typer.echo(line, err=True)
