"""HostDatabase: one SQLite file of the daemon's own, with numbered migrations and errors that name the cause.

A write that returns is on disk. A file that is damaged, or that a newer version wrote, is refused and left as it is.
It never decides what the file holds: the registry, the outbox and the idempotency store do.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import anyio
from anyio import to_thread

from sandboxd.errors import HostBusy, HostCorrupt, HostFull, HostIO, SandboxdError
from sandboxd.permissions import create_private, tighten

Migration = Sequence[str] | Callable[[sqlite3.Connection], None]
"""Statements, or a function that executes some. A released one is never edited: add another."""

_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_REFUSED = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_NOMEM,
)

T = TypeVar("T")


class HostDatabase:
    """One connection, used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        name: str,
        migrations: Sequence[Migration],
        *,
        advice: str,
        purpose: str | None = None,
        corrupt: Callable[[str], SandboxdError] = HostCorrupt,
        is_verified: bool = False,
    ) -> None:
        """`advice` says what to do about a damaged file, `purpose` what the daemon cannot do without the file.

        With `is_verified`, an existing file is read through when it is opened, and one without a version is damage.
        Without it, such a file is taken as one that a daemon without version numbers wrote.
        """
        self._path = path
        self._name = name
        self._migrations = migrations
        self._advice = advice
        self._purpose = purpose or f"use {name}"
        self._corrupt = corrupt
        self._is_verified = is_verified
        self._limiter = anyio.CapacityLimiter(1)
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Open the file, creating it if it is missing, and bring its schema up to date."""
        await to_thread.run_sync(self._open, limiter=self._limiter)

    async def aclose(self) -> None:
        """Close the file, after the transaction under way."""
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._close, limiter=self._limiter)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a thread, in one transaction. A commit is awaited even if the caller is cancelled."""

        def transact() -> T:
            if self._connection is None:
                raise HostIO(f"cannot {self._purpose}: {self._path.name} is not open; try again")
            try:
                with self._connection as db:
                    return work(db)
            except sqlite3.Error as error:
                raise self._explain(self._purpose, error) from error

        return await to_thread.run_sync(transact, limiter=self._limiter)

    def _open(self) -> None:
        try:
            if not self._path.exists():
                self._create()
            tighten(self._path)  # SQLite gives its -wal and -shm files the same mode
            self._connection = self._connect()
        except (sqlite3.Error, OSError) as error:
            raise self._explain(f"open {self._name}", error) from error

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _create(self) -> None:
        """Create the file completely or not at all, so that an empty one is never mistaken for a new one."""
        draft = self._path.with_suffix(".new")
        draft.unlink(missing_ok=True)
        create_private(draft)
        db = sqlite3.connect(draft)
        try:
            self._migrate(db, 0)
            db.execute("PRAGMA journal_mode = WAL").fetchall()
        finally:
            db.close()
        draft.rename(self._path)

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, check_same_thread=False)
        try:
            db.execute("PRAGMA synchronous = FULL")  # I1: an acknowledged write is on disk
            self._migrate(db, self._check(db))
            # Last, because it changes the file: one that is refused stays as it is.
            db.execute("PRAGMA journal_mode = WAL").fetchall()
        except BaseException:
            db.close()
            raise
        return db

    def _check(self, db: sqlite3.Connection) -> int:
        """Return the version of an existing file, or raise if it cannot be used."""
        verb, known = f"open {self._name}", len(self._migrations)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > known:
            raise self._corrupt(
                f"cannot {verb}: a newer sandboxd wrote it (version {version}; this one supports up to {known}); "
                "upgrade sandboxd"
            )
        if self._is_verified:
            (problem,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if problem != "ok":
                raise self._corrupt(f"cannot {verb}: {self._path.name} is damaged ({problem}); {self._advice}")
            if version == 0:
                raise self._corrupt(f"cannot {verb}: {self._path.name} is empty; {self._advice}")
        return int(version)

    def _migrate(self, db: sqlite3.Connection, version: int) -> None:
        """Apply the migrations that the file lacks, all of them or none."""
        if version == len(self._migrations):
            return
        with db:
            db.execute("BEGIN IMMEDIATE")
            for migration in self._migrations[version:]:
                if callable(migration):
                    migration(db)
                else:
                    for statement in migration:
                        db.execute(statement)
            db.execute(f"PRAGMA user_version = {len(self._migrations)}")

    def _explain(self, verb: str, error: sqlite3.Error | OSError) -> SandboxdError:
        """Return the error that says why the daemon cannot `verb`.

        An error that is not the host's fault means that the file is not what the daemon wrote.
        """
        name, kind = self._path.name, _kind_of(error)
        if kind == sqlite3.SQLITE_FULL or (kind in _REFUSED and _is_full(self._path)):
            return HostFull(f"cannot {verb}: the disk of {name} is full; free some space")
        if kind in _LOCKED:
            return HostBusy(f"cannot {verb}: another process holds {name}; try again")
        if kind in _REFUSED:
            return HostIO(f"cannot {verb}: {name} cannot be read or written ({error}); look at its disk and its mode")
        return self._corrupt(f"cannot {verb}: {name} is damaged ({error}); {self._advice}")


def _kind_of(error: sqlite3.Error | OSError) -> int | None:
    if isinstance(error, OSError):
        return sqlite3.SQLITE_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else sqlite3.SQLITE_IOERR
    code = getattr(error, "sqlite_errorcode", None)  # extended: the low byte is the kind
    return None if code is None else code & 0xFF


def _is_full(path: Path) -> bool:
    """Return whether the disk has no room: SQLite reports an I/O error when it cannot grow its own small files."""
    try:
        status = os.statvfs(path.parent)
    except OSError:
        return False
    return status.f_bavail == 0 or (status.f_files > 0 and status.f_favail == 0)
