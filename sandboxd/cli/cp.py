"""`cp`: copy files and directories between this host and a sandbox."""

from __future__ import annotations

import os
import posixpath
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Tenant
from sandboxd.cli.output import print_json
from sandboxd.client import Client
from sandboxd.client.host_tree import PIECE_BYTES, Copied, TreePacker, save_file, unpack_tree
from sandboxd.errors import FileError, FileNotFound, IsADirectory, NotADirectory
from sandboxd.models.files import FileInfo

WORKSPACE = "/workspace"
STDIO = "-"
HEADER_BYTES = 1_536
"""What an entry of an archive takes besides its content, most of the time."""

Count = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class SandboxPlace:
    """A path of a sandbox, as SESSION:PATH names it."""

    session: str
    path: str
    is_contents: bool
    """Whether the path ends with `/.`: the contents of a directory, not the directory itself."""
    is_directory: bool
    """Whether the path ends with a slash, so that it must be a directory."""


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A path of this host, SESSION:PATH, or - for stdin.")],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="SESSION:PATH, a path of this host, or - for stdout.")
    ],
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Copy a file or a directory between this host and a session's sandbox.

    A target that is an existing directory gets the source inside it; a source that ends with `/.` means the contents of
    that directory. A relative PATH is relative to /workspace. Modes and times are kept, links are copied as links. With
    - a single file is read from stdin or written to stdout. A host path with a colon is written as ./a:b.

    Example: sandboxd cp ./src demo:project    or    sandboxd cp demo:project/result.txt -
    """
    from_sandbox, to_sandbox = _parse(source), _parse(target)
    if (from_sandbox is None) == (to_sandbox is None):
        raise typer.BadParameter("one of SOURCE and TARGET must be SESSION:PATH, the other a path of this host")
    if to_sandbox is not None:
        with connected(daemon, tenant, json, session=to_sandbox.session) as client, _host_errors(source):
            _finish(_upload(client, source, to_sandbox, json), source, target, json)
    elif from_sandbox is not None:
        with connected(daemon, tenant, json, session=from_sandbox.session) as client, _host_errors(target):
            copied = _download(client, from_sandbox, target, json)
            if target != STDIO:
                _finish(copied, source, target, json)


def _parse(text: str) -> SandboxPlace | None:
    """Return the place in a sandbox that a word names; None for a path of this host."""
    session, colon, path = text.partition(":")
    if not colon or not session or "/" in session or session.startswith("."):
        return None
    if not path.startswith("/"):
        path = f"{WORKSPACE}/{path}"
    return SandboxPlace(
        session, posixpath.normpath(path), is_contents=path.endswith("/."), is_directory=path.endswith(("/", "/."))
    )


def _upload(client: Client, source: str, target: SandboxPlace, as_json: bool) -> Copied:
    if source == STDIO:
        with _progress("copying", None, as_json) as count:
            stdin = _counted(_read(sys.stdin.fileno()), count)
            found = client.write_file(target.session, target.path, stdin)
        return Copied(1, found.size_bytes)
    if not os.path.lexists(source):
        raise FileError(f"cannot copy {source}: no such file or directory on this host")
    host = Path(source)
    existing = _look(client, target)
    if host.is_dir():
        place = target.path
        if existing is not None and existing.type != "directory":
            raise NotADirectory(f"cannot copy a directory to {target.path}: it exists and is not a directory")
        if existing is not None and not _is_contents(source):
            place = posixpath.join(place, host.resolve().name)
        packer = TreePacker(host)
        total = _size_of(host)
    else:
        place, name = posixpath.split(target.path)
        if existing is not None and existing.type == "directory":
            place, name = target.path, host.name
        elif target.is_directory:
            raise NotADirectory(f"cannot copy to {target.path}/: it is not a directory")
        packer = TreePacker(host, name)
        total = host.stat().st_size
    with _progress("copying", total, as_json) as count:
        client.write_archive(target.session, place, _counted(packer.pieces(), count))
    return packer.copied


def _download(client: Client, source: SandboxPlace, target: str, as_json: bool) -> Copied:
    found = client.stat_file(source.session, source.path)
    host = Path(target)
    if found.type != "directory":
        if source.is_directory:
            raise NotADirectory(f"cannot copy {source.path}/: it is not a directory")
        with client.open_file(source.session, source.path) as pieces:
            if target == STDIO:
                return _write_stdout(pieces)
            if host.is_dir():
                host = host / posixpath.basename(source.path)
            elif target.endswith("/"):
                raise FileError(f"cannot copy to {target}: it is not a directory on this host")
            with _progress("copying", found.size_bytes, as_json) as count:
                return save_file(_counted(pieces, count), host, found.mode, found.modified_at)
    if target == STDIO:
        raise IsADirectory(f"cannot copy {source.path} to stdout: it is a directory; copy it to a directory")
    if host.exists() and not host.is_dir():
        raise FileError(f"cannot copy a directory to {target}: it exists on this host and is not a directory")
    if host.is_dir() and not source.is_contents:
        host = host / (posixpath.basename(source.path) or "root")
    elif not host.parent.is_dir():
        raise FileError(f"cannot copy to {target}: its directory does not exist on this host; make it first")
    with client.open_archive(source.session, source.path) as pieces, _progress("copying", None, as_json) as count:
        return unpack_tree(_counted(pieces, count), host)


def _look(client: Client, place: SandboxPlace) -> FileInfo | None:
    try:
        return client.stat_file(place.session, place.path)
    except (FileNotFound, NotADirectory):
        return None


def _is_contents(source: str) -> bool:
    return source in (".", "./") or source.endswith("/.")


def _size_of(directory: Path) -> int:
    """Return about how many bytes an archive of a directory has, for the progress bar."""
    total = 0
    for path, directories, names in os.walk(directory):
        total += HEADER_BYTES * (len(directories) + len(names))
        for name in names:
            status = os.lstat(os.path.join(path, name))
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def _read(fd: int) -> Iterator[bytes]:
    while piece := os.read(fd, PIECE_BYTES):
        yield piece


def _write_stdout(pieces: Iterator[bytes]) -> Copied:
    size = 0
    for piece in pieces:
        sys.stdout.buffer.write(piece)
        size += len(piece)
    sys.stdout.buffer.flush()
    return Copied(1, size)


def _counted(pieces: Iterator[bytes], count: Count) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        count(len(piece))


@contextmanager
def _progress(title: str, total: int | None, as_json: bool) -> Iterator[Count]:
    """Show a progress bar on a terminal, and nothing elsewhere; yield the function that counts bytes."""
    if as_json or not sys.stderr.isatty():
        yield lambda _size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda size: bar.advance(task, size)


@contextmanager
def _host_errors(path: str) -> Iterator[None]:
    """Report a failure of this host's files like any other error."""
    try:
        yield
    except BrokenPipeError:
        raise typer.Exit(1) from None
    except OSError as error:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else path
        reason = (error.strerror or str(error)).lower()
        raise FileError(f"cannot copy: {where}: {reason} on this host") from error


def _finish(copied: Copied, source: str, target: str, as_json: bool) -> None:
    if as_json:
        found = {"entries": copied.entries, "bytes": copied.bytes, "skipped": list(copied.skipped)}
        print_json({"source": source, "target": target, **found})
        return
    for name in copied.skipped:
        typer.echo(f"[left out: {name}: a link that leads outside, a socket, a FIFO or a device]", err=True)
