"""Database: transactions on the SQLite file, with one writer thread and several reader threads.

It handles transactions, not tables. Writes that are queued together are committed together: each has its own savepoint,
so that a refused write does not affect the others, and one disk sync serves them all.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from memo.errors import ProviderError, Unavailable
from memo.stores.sqlite.file import connect, open_file, primary_code, roll_back, translated
from memo.stores.sqlite.work_queue import Job, WorkQueue

R = TypeVar("R")

READERS = 4
MOST_WRITES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class _Alone:
    """Work that manages its own transactions and so cannot share one."""

    work: Callable[[sqlite3.Connection], Any]

    def __call__(self, db: sqlite3.Connection) -> Any:
        return self.work(db)


class Database:
    """Owns connections and work queues. A read sees one committed state; a write is atomic."""

    def __init__(self, path: Path, *, committed: Callable[[], None]) -> None:
        self.path = path
        self._committed = committed
        self._is_open = False
        self._all: list[sqlite3.Connection] = []
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()

    async def open(self) -> None:
        self._writer = await anyio.to_thread.run_sync(open_file, self.path)
        self._all, self._idle = [self._writer], []
        self._writes = WorkQueue("memo-writer", self._perform_writes, threads=1, most=MOST_WRITES_AT_ONCE)
        self._reads = WorkQueue("memo-reader", self._perform_read, threads=READERS, most=1)
        self._writes.start()
        self._reads.start()
        self._is_open = True

    async def close(self) -> None:
        """Refuse new calls, finish the queued ones and close the file."""
        if not self._is_open:
            return
        self._is_open = False
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._close)

    async def read(self, query: Callable[[sqlite3.Connection], R]) -> R:
        self._require_open()
        return await self._reads.run(query)

    async def write(self, commit: Callable[[sqlite3.Connection], R]) -> R:
        self._require_open()
        return await self._writes.run(commit)

    async def erase(self, commit: Callable[[sqlite3.Connection], R]) -> R:
        """Write, and erase deleted text from every file, including free pages and the log."""
        self._require_open()
        erased: R = await self._writes.run(_Alone(lambda db: self._erase(db, commit)))
        return erased

    def _require_open(self) -> None:
        if not self._is_open:
            raise Unavailable("cannot use this store: it is closed")

    def _close(self) -> None:
        self._writes.end()
        self._reads.end()
        for db in reversed(self._all):  # the writer last: closing the last connection checkpoints
            db.close()

    def _perform_read(self, batch: list[Job[Any]]) -> None:
        (job,) = batch
        with translated():
            db = self._borrow()
            try:
                db.execute("BEGIN")
                job.succeed(job.work(db))
            finally:
                roll_back(db)  # a read has nothing to commit
                with self._lock:
                    self._idle.append(db)

    def _borrow(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        db = connect(self.path)
        with self._lock:
            self._all.append(db)
        db.execute("PRAGMA query_only=ON")
        return db

    def _perform_writes(self, batch: list[Job[Any]]) -> None:
        is_shared = len(batch) > 1 and not any(isinstance(job.work, _Alone) for job in batch)
        if is_shared and self._commit_together(batch):
            return
        for number, job in enumerate(batch):
            try:
                job.succeed(job.work(self._writer) if isinstance(job.work, _Alone) else self._commit(job.work))
            except Exception as error:  # noqa: BLE001  the job's caller raises it
                job.error = error
                if _is_locked_out(error):
                    for waiting in batch[number + 1 :]:
                        waiting.error = error
                    return

    def _commit(self, work: Callable[[sqlite3.Connection], R]) -> R:
        with translated():
            _begin(self._writer)
            try:
                result = work(self._writer)
            except BaseException:
                roll_back(self._writer)
                raise
            self._end_transaction()
        return result

    def _commit_together(self, batch: list[Job[Any]]) -> bool:
        """Commit all jobs in one transaction. Return False, with nothing changed, if SQLite fails: then run each alone.

        Raise for all of them if another process holds the write lock.
        """
        db = self._writer
        try:
            _begin(db)
            for job in batch:
                db.execute("SAVEPOINT job")
                self._try(job)
                db.execute("RELEASE job")
        except sqlite3.Error:
            roll_back(db)
            return False
        with translated():
            self._end_transaction()
        return True

    def _try(self, job: Job[Any]) -> None:
        try:
            job.succeed(job.work(self._writer))
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001  it affects this job only; the job's caller raises it
            job.error = error
            self._writer.execute("ROLLBACK TO job")

    def _end_transaction(self) -> None:
        try:
            self._writer.execute("COMMIT")
        except sqlite3.Error as error:
            roll_back(self._writer)
            if primary_code(error) == sqlite3.SQLITE_FULL:
                raise  # the commit frame is written last, so it was not written
            raise ProviderError(
                f"cannot tell whether the change was committed: {error}; read before writing again",
                outcome_unknown=True,
            ) from error
        self._committed()

    def _erase(self, db: sqlite3.Connection, commit: Callable[[sqlite3.Connection], R]) -> R:
        with translated():
            db.execute("PRAGMA secure_delete=ON")
            try:
                result = self._commit(commit)
            finally:
                db.execute("PRAGMA secure_delete=OFF")
            (is_busy, _, _) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise Unavailable("cannot finish erasing: a reader still uses the log that contains the text; retry")
        return result


def _begin(db: sqlite3.Connection) -> None:
    """Take the write lock, or raise Unavailable if another process holds it for the whole busy timeout.

    Translated here, so that it does not count as the failure of one job: the next job would wait just as long.
    """
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        if primary_code(error) != sqlite3.SQLITE_BUSY:
            raise
        with translated():
            raise


def _is_locked_out(error: Exception) -> bool:
    cause = error.__cause__
    is_busy = isinstance(cause, sqlite3.Error) and primary_code(cause) == sqlite3.SQLITE_BUSY
    return isinstance(error, Unavailable) and is_busy
