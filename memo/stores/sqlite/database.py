"""The SQLite file: opening, checking, migrating; one writer, readers in parallel, every call in a thread.

Knows transactions and errors, and nothing of what the tables mean. A file that is damaged, foreign or from the future
is refused; it is never taken for an empty store, and never repaired.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from memo.errors import Corrupt, ProviderError, Unavailable, Unsupported
from memo.stores.sqlite.schema import APPLICATION_ID, MIGRATIONS

R = TypeVar("R")
P = TypeVar("P")

BUSY_TIMEOUT_MS = 30_000
READERS = 4


class Database:
    """Owns the connections. Reads see one committed state; a write commits entirely or not at all."""

    def __init__(self, path: Path, *, committed: Callable[[], None]) -> None:
        self.path = path
        self._committed = committed
        self._writer: sqlite3.Connection | None = None
        self._idle: list[sqlite3.Connection] = []
        self._all: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        # Made here, not in open(): the limiters belong to the event loop that uses the store.
        self._write_turn = CapacityLimiter(1)
        self._read_turns = CapacityLimiter(READERS)

    async def open(self) -> None:
        await anyio.to_thread.run_sync(self._open, limiter=self._write_turn)

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._close, limiter=self._write_turn)

    async def read(self, query: Callable[[sqlite3.Connection], R]) -> R:
        return await anyio.to_thread.run_sync(self._read, query, limiter=self._read_turns)

    async def write(self, commit: Callable[[sqlite3.Connection], R]) -> R:
        return await anyio.to_thread.run_sync(self._write, commit, limiter=self._write_turn)

    async def prepare_and_write(self, prepare: Callable[[], P], commit: Callable[[sqlite3.Connection, P], R]) -> R:
        """Run `prepare` in the thread but outside the transaction, then commit with what it returned."""

        def both() -> R:
            prepared = prepare()
            return self._write(lambda db: commit(db, prepared))

        return await anyio.to_thread.run_sync(both, limiter=self._write_turn)

    async def erase(self, commit: Callable[[sqlite3.Connection], R]) -> R:
        """Write, and see that what was deleted is in no file: neither in free pages nor in the log."""
        return await anyio.to_thread.run_sync(self._erase, commit, limiter=self._write_turn)

    def _erase(self, commit: Callable[[sqlite3.Connection], R]) -> R:
        db = self._require_writer()
        with translated():
            db.execute("PRAGMA secure_delete=ON")
            try:
                result = self._write(commit)
            finally:
                db.execute("PRAGMA secure_delete=OFF")
            (is_busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise Unavailable("cannot finish erasing: a reader still holds the log that has the text; try again")
        return result

    def _open(self) -> None:
        try:
            is_new, is_empty = not self.path.exists(), self.path.exists() and self.path.stat().st_size == 0
        except OSError as error:
            raise Unavailable(f"cannot open the store {self.path}: {error.strerror}") from error
        if is_new:
            create(self.path)
        elif is_empty:
            raise Corrupt(f"cannot open {self.path}: the file is empty, and a store never is; remove it to start anew")
        with translated():
            writer = self._connect()
            try:
                _check(writer, self.path)
                _migrate(writer, self.path)
            except BaseException:
                writer.close()
                raise
            self._writer = writer

    def _connect(self) -> sqlite3.Connection:
        db = connect(self.path)
        with self._lock:
            self._all.append(db)
        return db

    def _close(self) -> None:
        self._writer = None
        with self._lock:
            connections, self._all, self._idle = self._all, [], []
        for db in reversed(connections):  # the writer last: the last one to close checkpoints
            db.close()

    def _require_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            raise Unavailable("cannot use this store: it is closed")
        return self._writer

    def _read(self, query: Callable[[sqlite3.Connection], R]) -> R:
        self._require_writer()
        with translated():
            db = self._borrow()
            try:
                db.execute("BEGIN")
                try:
                    return query(db)
                finally:
                    db.execute("ROLLBACK")  # a read has nothing to commit
            finally:
                self._give_back(db)

    def _borrow(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        db = self._connect()
        db.execute("PRAGMA query_only=ON")
        return db

    def _give_back(self, db: sqlite3.Connection) -> None:
        with self._lock:
            if db in self._all:
                self._idle.append(db)

    def _write(self, commit: Callable[[sqlite3.Connection], R]) -> R:
        db = self._require_writer()
        with translated():
            db.execute("BEGIN IMMEDIATE")
            try:
                result = commit(db)
            except BaseException:
                _roll_back(db)
                raise
            try:
                db.execute("COMMIT")
            except sqlite3.Error as error:
                _roll_back(db)
                if _primary_code(error) == sqlite3.SQLITE_FULL:
                    raise  # the frame that commits is written last, and it was not written
                raise ProviderError(
                    f"cannot tell whether the change was committed: {error}", outcome_unknown=True
                ) from error
        self._committed()
        return result


def connect(path: Path) -> sqlite3.Connection:
    # mode=rw, not rwc: a file that vanished must not come back as an empty store.
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False, timeout=30
    )
    db.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    db.execute("PRAGMA synchronous=FULL")  # a commit that returned is on the disk (I1)
    db.execute("PRAGMA cache_size=-8192")
    return db


def create(path: Path) -> None:
    """Make a new store beside its place and link it there, so that no one ever finds half of one."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        draft = path.parent / f".{path.name}.{os.getpid()}.{threading.get_ident()}.new"
        draft.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise Unavailable(f"cannot create the store {path}: {error.strerror}") from error
    try:
        with translated():
            db = connect(draft)
            try:
                db.execute("PRAGMA journal_mode=WAL").fetchall()
                db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                _migrate(db, draft)
            finally:
                db.close()  # the last connection: everything is in the main file, and the log is gone
        with suppress(FileExistsError):  # another process was first; its store is as good
            os.link(draft, path)
        _sync_directory(path.parent)
    finally:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{draft}{suffix}").unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _check(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise Unsupported(f"cannot open {path}: it is an SQLite file of another program")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise Unsupported(
            f"cannot open {path}: its schema is version {version}, and this program knows up to {len(MIGRATIONS)}"
        )
    findings = [row[0] for row in db.execute("PRAGMA quick_check(3)")]
    if findings != ["ok"]:
        raise Corrupt(f"cannot open {path}: it is damaged: {'; '.join(findings)}")
    (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise Unsupported(f"cannot open {path}: its filesystem has no shared memory for a write-ahead log")


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN IMMEDIATE")  # before looking: another process may be migrating the same file
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
            for statement in statements:
                db.execute(statement)
            db.execute(f"PRAGMA user_version={number}")
        db.execute("COMMIT")
    except sqlite3.Error as error:
        _roll_back(db)
        raise Corrupt(f"cannot migrate {path}: {error}") from error


def _roll_back(db: sqlite3.Connection) -> None:
    if db.in_transaction:  # some errors have rolled back already
        db.execute("ROLLBACK")


def _primary_code(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@contextmanager
def translated() -> Iterator[None]:
    """Turn SQLite's errors into ours. Only what surely did nothing is Unavailable."""
    try:
        yield
    except sqlite3.Error as error:
        code = _primary_code(error)
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        if code in _DAMAGE:
            raise Corrupt(f"cannot read the store: {error} ({name})") from error
        raise Unavailable(f"cannot use the store: {error} ({name})") from error
