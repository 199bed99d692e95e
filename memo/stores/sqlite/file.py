"""The SQLite file: how it is created, opened, checked and migrated, and how its errors are translated.

A file that is damaged, from another program or of a newer version is refused; it is never treated as an empty store or
repaired.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memo.errors import Corrupt, Unavailable, Unsupported
from memo.stores.sqlite.schema import APPLICATION_ID, MIGRATIONS

BUSY_TIMEOUT_MS = 30_000


def open_file(path: Path) -> sqlite3.Connection:
    """Return a connection to a checked store of the newest schema; create the file if it does not exist."""
    try:
        is_new, is_empty = not path.exists(), path.exists() and path.stat().st_size == 0
    except OSError as error:
        raise Unavailable(f"cannot open the store {path}: {error.strerror}") from error
    if is_new:
        create(path)
    elif is_empty:
        raise Corrupt(f"cannot open {path}: the file is empty, and a store never is; remove it to create a new store")
    with translated():
        db = connect(path)
        try:
            _check(db, path)
            _migrate(db, path)
        except BaseException:
            db.close()
            raise
        return db


def connect(path: Path) -> sqlite3.Connection:
    # mode=rw, not rwc: a deleted file must not come back as an empty store.
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False, timeout=30
    )
    db.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    db.execute("PRAGMA synchronous=FULL")  # a commit that returned is on the disk (I1)
    db.execute("PRAGMA cache_size=-2048")  # for each connection; the page cache of the system holds the rest
    return db


def create(path: Path) -> None:
    """Create a store under a temporary name and link it into place, so that no process sees an incomplete one."""
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
                db.close()  # closing the last connection moves the log into the main file
        with suppress(FileExistsError):  # another process created it first; use that store
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
        raise Unsupported(f"cannot open {path}: it is an SQLite file of another program; choose another path")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise Unsupported(
            f"cannot open {path}: its schema is version {version}, newer than {len(MIGRATIONS)}; upgrade this program"
        )
    findings = [row[0] for row in db.execute("PRAGMA quick_check(3)")]
    if findings != ["ok"]:
        raise Corrupt(f"cannot open {path}: it is damaged ({'; '.join(findings)}); restore a backup")
    (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise Unsupported(
            f"cannot open {path}: its filesystem does not support write-ahead logging; choose a local disk"
        )


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN IMMEDIATE")  # before reading the version: another process may be migrating the file
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
            for statement in statements:
                db.execute(statement)
            db.execute(f"PRAGMA user_version={number}")
        db.execute("COMMIT")
    except sqlite3.Error as error:
        roll_back(db)
        raise Corrupt(f"cannot migrate {path}: {error}") from error


def roll_back(db: sqlite3.Connection) -> None:
    if db.in_transaction:  # some errors have already rolled back
        db.execute("ROLLBACK")


def primary_code(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NOT_UTF8 = "Could not decode to UTF-8"  # Python's own error for a TEXT column; it has no code


@contextmanager
def translated() -> Iterator[None]:
    """Translate SQLite's errors. Unavailable means that nothing was done."""
    try:
        yield
    except sqlite3.Error as error:
        code = primary_code(error)
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        if str(error).startswith(_NOT_UTF8):
            raise Corrupt(
                "cannot read the store: a name in it is not UTF-8; restore a backup"
            ) from None  # the original error contains the text
        if code in _DAMAGE:
            raise Corrupt(f"cannot read the store: {error} ({name})") from error
        raise Unavailable(f"cannot use the store: {error} ({name})") from error
