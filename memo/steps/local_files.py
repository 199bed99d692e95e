"""LocalFiles: storage steps as JSON files, `{dir}/{kind}/{id}.json`. Meant for development, but crash-safe.

A file is replaced atomically, by rename, after its bytes are on disk. An update holds the lock of its kind, so no
concurrent update is lost, even from another process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from memo.errors import Absent, Corrupt, Unavailable
from memo.messages import decode_object
from memo.steps.handlers import Handlers, Value

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def local_storage(dir: str | Path = ".agent") -> Handlers:
    """Return the fifteen handlers for a directory; the result is also a storage function."""
    return Handlers(LocalFiles(Path(dir)))


class LocalFiles:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def get(self, kind: str, id: str) -> Value | None:
        return await anyio.to_thread.run_sync(self._read, kind, id)

    async def set(self, kind: str, id: str, value: Value) -> None:
        await anyio.to_thread.run_sync(self._set, kind, id, value)

    async def update(self, kind: str, id: str, updates: Value) -> Value:
        return await anyio.to_thread.run_sync(self._update, kind, id, updates)

    async def list_by_session(self, kind: str, session: str) -> list[Value]:
        return await anyio.to_thread.run_sync(partial(self._list, kind, session))

    def _path(self, kind: str, id: str) -> Path:
        return self._root / kind / f"{id}.json"  # both are checked names: no separator, no leading dot

    def _read(self, kind: str, id: str) -> Value | None:
        path = self._path(kind, id)
        with _disk_errors(f"read {kind} {id}"):
            try:
                fd = os.open(path, _READ)
            except FileNotFoundError:
                return None
            with open(fd, "rb") as file:
                return decode_object(file.read(), f"{kind} {id}")

    def _set(self, kind: str, id: str, value: Value) -> None:
        with self._locked(kind):
            self._write(kind, id, value)

    def _update(self, kind: str, id: str, updates: Value) -> Value:
        with self._locked(kind):
            current = self._read(kind, id)
            if current is None:
                raise Absent(f"cannot update {kind} {id}: no such record")
            merged = {**current, **updates}
            self._write(kind, id, merged)
            return merged

    def _list(self, kind: str, session: str) -> list[Value]:
        with _disk_errors(f"list {kind}"):
            try:
                names = sorted(os.listdir(self._root / kind))
            except FileNotFoundError:
                return []
        ids = [name[:-5] for name in names if name.endswith(".json") and not name.startswith(".")]
        values = [value for id in ids if (value := self._read(kind, id)) is not None]
        return [value for value in values if value.get("sessionId") == session]

    def _write(self, kind: str, id: str, value: Value) -> None:
        path = self._path(kind, id)
        draft = path.with_name(".draft")  # one per kind is enough, because it is written under the lock
        with _disk_errors(f"write {kind} {id}"):
            draft.unlink(missing_ok=True)  # left by a crash
            with open(os.open(draft, _CREATE, 0o600), "wb") as file:
                file.write(_encode(value))
                file.flush()
                os.fsync(file.fileno())
            draft.rename(path)  # rename, not truncate: a reader must never see half a record
            _sync(path.parent)

    @contextmanager
    def _locked(self, kind: str) -> Iterator[None]:
        directory = self._root / kind
        with _disk_errors(f"lock {kind}"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with _disk_errors(f"lock {kind}"):
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)  # releases the lock


def _encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1).encode()


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _disk_errors(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
            raise Corrupt(f"cannot {action}: its path is not a regular file ({error.strerror})") from error
        raise Unavailable(f"cannot {action}: {error.strerror}") from error
