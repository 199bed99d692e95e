"""DiskSpool: one file per id, streamed to a draft, renamed into place, and read by range in constant memory.

File names are hashes of ids, so an id is never a path. A reader checks that its file is still the same; once the file
is replaced or removed, reading raises Absent.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import aiofiles
import aiofiles.os
import anyio
import anyio.to_thread
from aiofiles.threadpool.binary import AsyncBufferedIOBase, AsyncBufferedReader

from memo.errors import Unavailable
from memo.records import checked_name
from memo.spool.block_reader import BlockReader
from memo.spool.byte_store import BLOCK_BYTES, SpoolBytes, blocks_of, replaced_or_deleted

ABANDONED_AFTER_S = 3600


class DiskSpool:
    """Owns one directory below `root` per `place`, created at the first write."""

    def __init__(self, root: Path | str, place: str = "") -> None:
        self._directory = Path(root) / _hashed(place) if place else Path(root)
        self._has_swept = False

    async def write(self, id: str, data: SpoolBytes) -> DiskReader:
        target = self._path(id)
        draft = target.with_name(f".{uuid.uuid4().hex}.draft")
        action = f"write spool {id}"
        try:
            with _disk_errors(action):
                await self._make_directory()
                file = await aiofiles.open(draft, "xb")
            try:
                async for block in blocks_of(data):  # an error from the source is not a disk error
                    with _disk_errors(action):
                        await file.write(block)
                with _disk_errors(action):
                    await _make_durable(file)
            finally:
                with anyio.CancelScope(shield=True):
                    await file.close()
            with _disk_errors(action):
                reader = DiskReader(self, id, target, await aiofiles.os.stat(draft))
                await aiofiles.os.rename(draft, target)  # rename, not truncate: a reader never sees half of a write
                await anyio.to_thread.run_sync(_sync_directory, self._directory)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_unlink, draft)
        return reader

    async def read(self, id: str) -> DiskReader | None:
        path = self._path(id)
        with _disk_errors(f"read spool {id}"):
            try:
                return DiskReader(self, id, path, await aiofiles.os.stat(path))
            except FileNotFoundError:
                return None

    async def delete(self, id: str) -> None:
        with _disk_errors(f"delete spool {id}"):
            await anyio.to_thread.run_sync(_unlink, self._path(id))

    async def _make_directory(self) -> None:
        await aiofiles.os.makedirs(self._directory, mode=0o700, exist_ok=True)
        if not self._has_swept:
            self._has_swept = True
            await anyio.to_thread.run_sync(_sweep, self._directory)

    def _path(self, id: str) -> Path:
        return self._directory / _hashed(checked_name("spool id", id))


class DiskReader(BlockReader):
    """Reads one file and never its replacement. Opens it for each call, so an unused reader holds no descriptor."""

    def __init__(self, spool: DiskSpool, id: str, path: Path, found: os.stat_result) -> None:
        super().__init__(id, spool)
        self._path = path
        self._identity = _identity_of(found)
        self._size_bytes = found.st_size

    async def byte_length(self) -> int:
        return self._size_bytes

    async def read_range(self, start: int, length: int) -> bytes:
        start = max(start, 0)
        length = min(length, self._size_bytes - start)
        if length <= 0:
            return b""
        async with self._open() as file:
            await file.seek(start)
            return await file.read(length)

    async def stream(self) -> AsyncIterator[bytes]:
        async with self._open() as file:
            while block := await file.read(BLOCK_BYTES):
                yield block

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[AsyncBufferedReader]:
        with _disk_errors(f"read spool {self.id}"):
            try:
                async with aiofiles.open(self._path, "rb") as file:
                    if _identity_of(os.fstat(file.fileno())) != self._identity:
                        raise replaced_or_deleted(self.id)
                    yield file
            except FileNotFoundError:
                raise replaced_or_deleted(self.id) from None


def _identity_of(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_size  # an inode number alone is reused by later files


@contextmanager
def _disk_errors(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"cannot {action}: {error.strerror}") from error


async def _make_durable(file: AsyncBufferedIOBase) -> None:
    await file.flush()
    await anyio.to_thread.run_sync(os.fsync, file.fileno())


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sweep(directory: Path) -> None:
    """Remove the drafts of dead writers: a live one writes at least once an hour."""
    for draft in directory.glob(".*.draft"):
        with suppress(FileNotFoundError):  # another process may be sweeping too
            if time.time() - draft.stat().st_mtime > ABANDONED_AFTER_S:
                draft.unlink()


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
