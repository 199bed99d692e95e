"""`memo export` and `memo import`: all documents and artifacts of a session, or all documents of a user, as files.

    DIRECTORY/NAME                      a document; a name with several segments is a path
    DIRECTORY/tool-results/ID.txt       an artifact of the session

An export can be imported into another session or another daemon.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from memo.document_names import DocumentName
from memo.errors import InvalidKey
from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Tenant
from sandboxd.cli.output import print_json, print_line
from sandboxd.cli.place import Actor, Place, Reason, User, decode, find_place
from sandboxd.client import Client
from sandboxd.errors import HostIO, InvalidRequest

ARTIFACTS = "tool-results"
SUFFIX = ".txt"

Directory = Annotated[
    list[str] | None, typer.Argument(metavar="[SESSION] DIRECTORY", help="Leave SESSION out with --user.")
]


def export_all(
    words: Directory = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Write every document, and a session's tool results, to a directory. Files of the same name are replaced.

    Example: sandboxd memo export demo ./demo-memory
    """
    place = find_place(words, user, "DIRECTORY")
    root = Path(place.words[0])
    with connected(daemon, tenant, json) as client:
        files = _write_all(client, place, root)
    _report(files, json)


def import_all(
    words: Directory = None,
    actor: Actor = None,
    reason: Reason = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Write every file of a directory as a document, and those in tool-results as tool results of the session.

    Example: sandboxd memo import demo ./demo-memory
    """
    place = find_place(words, user, "DIRECTORY")
    root = Path(place.words[0])
    if not root.is_dir():
        raise InvalidRequest(f"cannot import from {root}: it is not a directory; name one that `memo export` wrote")
    # Read everything before writing, so that a file that is not text does not leave a partial import.
    documents = [(_name(path.relative_to(root)), _text(path)) for path in _documents(root)]
    artifacts = [(path.name.removesuffix(SUFFIX), _text(path)) for path in _files(root / ARTIFACTS)]
    if artifacts and place.scope == "user":
        raise InvalidRequest(f"cannot import {root / ARTIFACTS} for a user: only a session has tool results; name one")
    with connected(daemon, tenant, json) as client:
        for name, text in documents:
            client.write_memo(place.owner, name, text, scope=place.scope, actor=actor, reason=reason)
        for artifact, text in artifacts:
            client.write_artifact(place.owner, artifact, text)
    _report([name for name, _ in documents] + [f"{ARTIFACTS}/{name}{SUFFIX}" for name, _ in artifacts], json)


def _write_all(client: Client, place: Place, root: Path) -> list[str]:
    files = []
    try:
        root.mkdir(parents=True, exist_ok=True)
        for document in client.list_memo(place.owner, scope=place.scope):
            text = client.read_memo(place.owner, document.name, scope=place.scope).text
            files.append(_write(root, document.name, text))
        for artifact in client.list_artifacts(place.owner) if place.scope == "session" else ():
            (root / ARTIFACTS).mkdir(exist_ok=True)
            text = client.read_artifact(place.owner, artifact.id)
            files.append(_write(root, f"{ARTIFACTS}/{artifact.id}{SUFFIX}", text))
    except OSError as error:
        raise HostIO(f"cannot write to {root}: {error.strerror}; name another directory") from None
    return files


def _write(root: Path, name: str, text: str) -> str:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(text.encode())
    return name


def _name(path: Path) -> DocumentName:
    try:
        return DocumentName(path.as_posix())
    except InvalidKey as error:
        raise InvalidRequest(f"{error}: rename {path}, or move it away") from None


def _documents(root: Path) -> Iterator[Path]:
    """Yield the regular files of a tree that are not hidden, without the tool results, by name."""
    for path in sorted(root.iterdir()):
        if path.name != ARTIFACTS:
            yield from _below(path)


def _below(path: Path) -> Iterator[Path]:
    if path.name.startswith("."):
        return
    if path.is_file():
        yield path
    elif path.is_dir() and not path.is_symlink():  # a link could lead back to a directory above
        for child in sorted(path.iterdir()):
            yield from _below(child)


def _files(directory: Path) -> Iterator[Path]:
    """Yield the regular files of a directory that are not hidden, by name; nothing if it does not exist."""
    if directory.is_dir():
        yield from sorted(path for path in directory.iterdir() if path.is_file() and not path.name.startswith("."))


def _text(path: Path) -> str:
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise HostIO(f"cannot read {path}: {error.strerror}; make it readable, or remove it") from None


def _report(files: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"items": files})
        return
    for name in files:
        print_line(name)
