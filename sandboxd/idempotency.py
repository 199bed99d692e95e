"""Answers to writes that carried an Idempotency-Key, kept so that a retry never does the work twice.

Owns one SQLite file. A key is claimed durably before the work starts, and its answer is durable before the
caller gets it. It never runs anything itself and knows nothing of HTTP but status, headers and body. An answer ages
by the time that daemons have run, never by the wall clock: a clock that jumps neither drops answers nor keeps them.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

import anyio
import anyio.to_thread

from sandboxd import sqlite_errors
from sandboxd.errors import Busy, InvalidRequest, RequestError
from sandboxd.permissions import create_private

KEEP_S = 24 * 3600
MAX_KEYS = 100_000
MAX_ANSWER_BYTES = 8_388_608

_ADVICE = "stop the daemon and move the file away: it holds nothing but answers for retries of the last day"

_LEGAL_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'done', 'unknown')),
    at REAL NOT NULL,  -- on the store's own clock, see _now
    digest BLOB,
    status INTEGER,
    headers TEXT,
    body BLOB,
    PRIMARY KEY (scope, key)
);
CREATE INDEX IF NOT EXISTS answers_by_age ON answers (at);
CREATE TABLE IF NOT EXISTS clock (id INTEGER PRIMARY KEY CHECK (id = 0), observed_s REAL NOT NULL);
"""

P = ParamSpec("P")
T = TypeVar("T")


class OutcomeUnknown(RequestError):
    """The first request with this key may or may not have been carried out."""

    code = "request.outcome_unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request: what was asked, as a digest, and what was answered. `body` is None if it was too large."""

    digest: bytes
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | None


def parse_key(text: str) -> str:
    if _LEGAL_KEY.fullmatch(text) is None:
        raise InvalidRequest("cannot use this Idempotency-Key: it must be 1 to 255 printable ASCII characters")
    return text


class IdempotencyStore:
    """The file of answers. One owner at a time: what is `running` when it opens was interrupted by a crash."""

    def __init__(
        self,
        path: Path,
        *,
        keep_s: float = KEEP_S,
        max_keys: int = MAX_KEYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._clock = clock
        self._clock_offset_s = 0.0
        self._keep_s = keep_s
        self._max_keys = max_keys
        self._one_at_a_time = anyio.CapacityLimiter(1)
        self._connection: sqlite3.Connection | None = None
        self._count = 0

    async def __aenter__(self) -> Self:
        await self._in_thread(self._open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._in_thread(self._close)

    async def begin(self, scope: str, key: str) -> Answer | None:
        """Claim the key and return None, or return the answer it has already got."""
        return await self._in_thread(self._begin, scope, key)

    async def finish(self, scope: str, key: str, answer: Answer) -> None:
        """Keep the answer. After this the work is never done again for this key."""
        await self._in_thread(self._finish, scope, key, answer)

    async def release(self, scope: str, key: str) -> None:
        """Forget the key: nothing was done, so a retry may try again."""
        await self._in_thread(self._release, scope, key)

    async def lose(self, scope: str, key: str) -> None:
        """Remember that nobody knows whether the work was done."""
        await self._in_thread(self._lose, scope, key)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # Not abandoned on cancellation: a claim that was written must be known to the caller, who then ends it.
        with anyio.CancelScope(shield=True):
            try:
                result = await anyio.to_thread.run_sync(lambda: work(*args, **kwargs), limiter=self._one_at_a_time)
            except (sqlite3.Error, OSError) as error:
                raise sqlite_errors.explain(error, "keep Idempotency-Keys", self._path, advice=_ADVICE) from error
        return result

    def _open(self) -> None:
        create_private(self._path)  # SQLite gives its -wal and -shm files the same mode
        connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
        connection.execute("UPDATE answers SET state = 'unknown' WHERE state = 'running'")
        (self._count,) = connection.execute("SELECT count(*) FROM answers").fetchone()
        (observed_s,) = connection.execute(
            "SELECT max(coalesce((SELECT observed_s FROM clock), 0), coalesce((SELECT max(at) FROM answers), 0))"
        ).fetchone()
        self._clock_offset_s = observed_s - self._clock()
        self._connection = connection

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):  # answers then stay a little longer
                self._connection.execute("INSERT OR REPLACE INTO clock (id, observed_s) VALUES (0, ?)", (self._now(),))
            self._connection.close()
            self._connection = None

    def _now(self) -> float:
        """Return the seconds that the daemons of this file have run, as far as the file knows."""
        return self._clock_offset_s + self._clock()

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise RuntimeError("cannot use the idempotency store: it is not open")
        return self._connection

    def _begin(self, scope: str, key: str) -> Answer | None:
        self._prune()
        row = self._db.execute(
            "SELECT state, digest, status, headers, body FROM answers WHERE scope = ? AND key = ?", (scope, key)
        ).fetchone()
        if row is None:
            self._db.execute(
                "INSERT INTO answers (scope, key, state, at) VALUES (?, ?, 'running', ?)", (scope, key, self._now())
            )
            self._count += 1
            return None
        state, digest, status, headers, body = row
        if state == "running":
            raise Busy("cannot answer yet: the first request with this Idempotency-Key is still running")
        if state == "unknown":
            raise OutcomeUnknown(
                "cannot tell the outcome: the first request with this Idempotency-Key was interrupted, "
                "and may or may not have been carried out"
            )
        pairs = tuple((str(name), str(value)) for name, value in json.loads(headers))
        return Answer(digest, status, pairs, body)

    def _finish(self, scope: str, key: str, answer: Answer) -> None:
        body = answer.body
        if body is not None and len(body) > MAX_ANSWER_BYTES:
            body = None
        self._db.execute(
            "UPDATE answers SET state = 'done', digest = ?, status = ?, headers = ?, body = ? "
            "WHERE scope = ? AND key = ?",
            (answer.digest, answer.status, json.dumps(answer.headers), body, scope, key),
        )

    def _release(self, scope: str, key: str) -> None:
        self._count -= self._db.execute("DELETE FROM answers WHERE scope = ? AND key = ?", (scope, key)).rowcount

    def _lose(self, scope: str, key: str) -> None:
        self._db.execute("UPDATE answers SET state = 'unknown' WHERE scope = ? AND key = ?", (scope, key))

    def _prune(self) -> None:
        old = self._db.execute(
            "DELETE FROM answers WHERE at < ? AND state != 'running'", (self._now() - self._keep_s,)
        ).rowcount
        self._count -= old
        if self._count >= self._max_keys:
            # A tenth at once, so that a full table does not pay for a sort at every claim.
            self._count -= self._db.execute(
                "DELETE FROM answers WHERE rowid IN "
                "(SELECT rowid FROM answers WHERE state != 'running' ORDER BY at LIMIT ?)",
                (max(1, self._max_keys // 10),),
            ).rowcount
