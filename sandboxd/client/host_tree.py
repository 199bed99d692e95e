"""Files and directories of the client's own host, as tar streams: packed for an upload, unpacked after a download.

What comes from a sandbox is not trusted: tarfile's data filter decides what may be written, and nothing is written
outside the target. Links that lead outside it are left out.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sandboxd.errors import InvalidRequest
from sandboxd.runner.inside.tar_stream import DIRECTORY, END, FILE, LINK, TarEntry, pack_header, padding_of

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PIECE_BYTES = 65_536
MAX_SKIPPED = 1_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Copied:
    """What an upload or a download copied."""

    entries: int
    bytes: int
    skipped: tuple[str, ...] = ()
    """Names that were left out: links that lead outside the target, sockets, FIFOs and devices; 1,000 at most."""


class TreePacker:
    """Packs a file or the contents of a directory into a tar. Iterate over `pieces`; `copied` counts."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        """A file gets this name in the archive; a directory's entries have names relative to it."""
        if not path.exists():
            raise InvalidRequest(f"cannot upload {path}: no such file or directory on this host")
        self._path = path
        self._name = path.name if name is None else name
        self.is_directory = path.is_dir()
        self._entries = self._bytes = 0
        self._skipped: list[str] = []

    @property
    def copied(self) -> Copied:
        return Copied(self._entries, self._bytes, tuple(self._skipped))

    def pieces(self) -> Iterator[bytes]:
        if self.is_directory:
            yield from self._directory(os.fsencode(self._path), b"")
        else:
            yield from self._entry(os.fsencode(self._path), os.fsencode(self._name), follow=True)
        yield END

    def _directory(self, path: bytes, prefix: bytes) -> Iterator[bytes]:
        pending = [(path, prefix)]
        while pending:
            directory, above = pending.pop()
            for name in sorted(os.listdir(directory)):
                full, relative = os.path.join(directory, name), above + name
                yield from self._entry(full, relative)
                if stat.S_ISDIR(os.lstat(full).st_mode):
                    pending.append((full, relative + b"/"))

    def _entry(self, path: bytes, name: bytes, *, follow: bool = False) -> Iterator[bytes]:
        status = os.stat(path, follow_symlinks=follow)
        mode, mtime_ns = stat.S_IMODE(status.st_mode), status.st_mtime_ns
        if stat.S_ISREG(status.st_mode):
            yield from self._file(path, name, mode, mtime_ns)
        elif stat.S_ISDIR(status.st_mode):
            yield pack_header(TarEntry(DIRECTORY, name, mode, mtime_ns))
        elif stat.S_ISLNK(status.st_mode):
            yield pack_header(TarEntry(LINK, name, 0o777, mtime_ns, link=os.readlink(path)))
        else:
            _skip(self._skipped, os.fsdecode(name))
            return
        self._entries += 1

    def _file(self, path: bytes, name: bytes, mode: int, mtime_ns: int) -> Iterator[bytes]:
        with open(path, "rb", buffering=0) as file:
            size = left = os.fstat(file.fileno()).st_size
            yield pack_header(TarEntry(FILE, name, mode, mtime_ns, size))
            while left:
                piece = file.read(min(left, PIECE_BYTES))
                if not piece:
                    raise InvalidRequest(f"cannot upload {os.fsdecode(path)}: it became shorter while it was read")
                left -= len(piece)
                yield piece
            yield padding_of(size)
        self._bytes += size


def unpack_tree(pieces: Iterator[bytes], target: Path) -> Copied:
    """Extract a tar into a directory, which is made if it is missing."""
    if not hasattr(tarfile, "data_filter"):
        raise InvalidRequest(
            "cannot extract safely: this Python has no tarfile.data_filter; use Python 3.11.4 or newer"
        )
    target.mkdir(parents=True, exist_ok=True)
    entries = size = 0
    skipped: list[str] = []
    directories: list[tarfile.TarInfo] = []

    def choose(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        nonlocal entries, size
        try:
            chosen = tarfile.data_filter(member, path)
        except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError):
            if not member.issym():
                raise
            _skip(skipped, member.name)
            return None
        entries += 1
        size += member.size if member.isreg() else 0
        if member.isdir():
            directories.append(member)
        return chosen

    try:
        source = io.BufferedReader(_PieceFile(pieces), PIECE_BYTES)
        with tarfile.open(fileobj=source, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
            while (member := tar.next()) is not None:
                tar.extract(member, target, filter=choose)
                tar.members.clear()  # type: ignore[attr-defined]  # otherwise a large archive is kept in memory, header by header
    except tarfile.TarError as error:
        raise InvalidRequest(f"cannot extract the archive into {target}: {error}") from error
    for member in reversed(directories):  # last, because one may be read-only, and entries change its time
        path = target / member.name
        path.chmod(member.mode & 0o777)
        os.utime(path, (member.mtime, member.mtime))
    return Copied(entries, size, tuple(skipped))


def save_file(pieces: Iterator[bytes], target: Path, mode: int, modified_at: datetime | None) -> Copied:
    """Write a file in one step: the old one stays until the new one is complete."""
    size = 0
    fd, draft = tempfile.mkstemp(prefix=f".{target.name[:200]}.", dir=target.parent)
    try:
        with open(fd, "wb") as file:
            for piece in pieces:
                size += len(piece)
                file.write(piece)
            os.fchmod(file.fileno(), mode & 0o777)
        if modified_at is not None:
            with suppress(OSError, OverflowError, ValueError):  # a time that this file system does not have
                os.utime(draft, (modified_at.timestamp(), modified_at.timestamp()))
        os.replace(draft, target)
    except BaseException:
        os.unlink(draft)
        raise
    return Copied(1, size)


async def async_unpack_tree(pieces: AsyncIterator[bytes], target: Path) -> Copied:
    return await _in_thread(pieces, lambda source: unpack_tree(source, target))


async def async_save_file(
    pieces: AsyncIterator[bytes], target: Path, mode: int, modified_at: datetime | None
) -> Copied:
    return await _in_thread(pieces, lambda source: save_file(source, target, mode, modified_at))


async def _in_thread(pieces: AsyncIterator[bytes], work: Callable[[Iterator[bytes]], T]) -> T:
    """Run blocking work on an async source in a thread, which takes one piece at a time from the event loop."""
    import asyncio  # only the async client gets here

    loop = asyncio.get_running_loop()
    is_cancelled = False

    def source() -> Iterator[bytes]:
        while piece := asyncio.run_coroutine_threadsafe(_next_piece(pieces), loop).result():
            if is_cancelled:
                raise InvalidRequest("cannot finish this copy: it was cancelled")
            yield piece

    try:
        return await asyncio.to_thread(work, source())
    except asyncio.CancelledError:
        is_cancelled = True
        raise


async def _next_piece(pieces: AsyncIterator[bytes]) -> bytes:
    return await anext(pieces, b"")


class _PieceFile(io.RawIOBase):
    """A stream of pieces as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        room = memoryview(buffer)
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        size = min(len(room), len(self._rest))
        room[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _skip(skipped: list[str], name: str) -> None:
    if len(skipped) < MAX_SKIPPED:
        skipped.append(name)
