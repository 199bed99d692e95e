"""Answers to writes that carried an Idempotency-Key, kept so that a retry never repeats the work.

Owns one SQLite file. A key is claimed durably before the work starts, and its answer is durable before the
caller gets it. It never runs anything itself, and of HTTP it uses only status, headers and body. Answers age by the
daemon's running time, not by the wall clock, so a clock that jumps neither expires nor preserves them.
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
from typing import Any, Self, TypeVar

import anyio

from sandboxd.errors import Busy, HostError, InvalidRequest, RequestError
from sandboxd.host_database import HostDatabase

KEEP_S = 24 * 3600
MAX_KEYS = 100_000
MAX_ANSWER_BYTES = 8_388_608

_ADVICE = "stop the daemon and move the file away: it holds only answers for retries of the last day"

_LEGAL_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")

# The tables may already exist: earlier daemons wrote no version.
_MIGRATIONS = (
    (
        """CREATE TABLE IF NOT EXISTS answers (
            scope TEXT NOT NULL,
            key TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('running', 'done', 'unknown')),
            at REAL NOT NULL,  -- on the store's own clock, see _now
            digest BLOB,
            status INTEGER,
            headers TEXT,
            body BLOB,
            PRIMARY KEY (scope, key)
        )""",
        "CREATE INDEX IF NOT EXISTS answers_by_age ON answers (at)",
        "CREATE TABLE IF NOT EXISTS clock (id INTEGER PRIMARY KEY CHECK (id = 0), observed_s REAL NOT NULL)",
    ),
)

T = TypeVar("T")


class OutcomeUnknown(RequestError):
    """The first request with this key may or may not have been carried out."""

    code = "request.outcome_unknown"


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A finished request: a digest of the request, and its answer. `body` is None if it was too large to keep."""

    digest: bytes
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | None


def parse_key(text: str) -> str:
    if _LEGAL_KEY.fullmatch(text) is None:
        raise InvalidRequest("cannot use this Idempotency-Key: it must be 1 to 255 printable ASCII characters")
    return text


class IdempotencyStore:
    """Owns the file of answers, alone: a key that is `running` when the file is opened was cut off by a crash."""

    def __init__(
        self,
        path: Path,
        *,
        keep_s: float = KEEP_S,
        max_keys: int = MAX_KEYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = HostDatabase(
            path, "the idempotency store", _MIGRATIONS, advice=_ADVICE, purpose="keep Idempotency-Keys"
        )
        self._clock = clock
        self._clock_offset_s = 0.0
        self._keep_s = keep_s
        self._max_keys = max_keys
        self._count = 0

    async def __aenter__(self) -> Self:
        await self._database.open()
        await self._run(self._start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(HostError):  # answers then stay a little longer
            await self._run(self._keep_time)
        await self._database.aclose()

    async def begin(self, scope: str, key: str) -> KeptAnswer | None:
        """Claim the key and return None, or return the answer that it already has."""

        def claim(db: sqlite3.Connection) -> tuple[tuple[Any, ...] | None, int]:
            removed = self._prune(db)
            row = db.execute(
                "SELECT state, digest, status, headers, body FROM answers WHERE scope = ? AND key = ?", (scope, key)
            ).fetchone()
            if row is None:
                db.execute(
                    "INSERT INTO answers (scope, key, state, at) VALUES (?, ?, 'running', ?)", (scope, key, self._now())
                )
            return row, removed

        row, removed = await self._run(claim)
        self._count -= removed
        if row is None:
            self._count += 1
            return None
        state, digest, status, headers, body = row
        if state == "running":
            raise Busy("cannot answer yet: the first request with this Idempotency-Key is still running; try again")
        if state == "unknown":
            raise OutcomeUnknown(
                "cannot tell the outcome: the first request with this Idempotency-Key was interrupted, "
                "and may or may not have been carried out; check its effect before you send it with a new key"
            )
        pairs = tuple((str(name), str(value)) for name, value in json.loads(headers))
        return KeptAnswer(digest, status, pairs, body)

    async def finish(self, scope: str, key: str, answer: KeptAnswer) -> None:
        """Store the answer. From then on the work is never repeated for this key."""
        body = answer.body
        if body is not None and len(body) > MAX_ANSWER_BYTES:
            body = None
        await self._execute(
            "UPDATE answers SET state = 'done', digest = ?, status = ?, headers = ?, body = ? "
            "WHERE scope = ? AND key = ?",
            (answer.digest, answer.status, json.dumps(answer.headers), body, scope, key),
        )

    async def release(self, scope: str, key: str) -> None:
        """Forget the key: nothing was done, so a retry may try again."""
        self._count -= await self._execute("DELETE FROM answers WHERE scope = ? AND key = ?", (scope, key))

    async def lose(self, scope: str, key: str) -> None:
        """Remember that the outcome of the work is unknown."""
        await self._execute("UPDATE answers SET state = 'unknown' WHERE scope = ? AND key = ?", (scope, key))

    async def _execute(self, statement: str, parameters: tuple[object, ...]) -> int:
        """Execute a statement and return how many rows it changed."""
        return await self._run(lambda db: db.execute(statement, parameters).rowcount)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        # Shielded: the caller must learn of a claim that was written, because it must end the claim.
        with anyio.CancelScope(shield=True):
            result = await self._database.run(work)
        return result  # noqa: RET504  # a return inside the scope might be swallowed, as far as mypy knows

    def _start(self, db: sqlite3.Connection) -> None:
        db.execute("UPDATE answers SET state = 'unknown' WHERE state = 'running'")
        (self._count,) = db.execute("SELECT count(*) FROM answers").fetchone()
        (observed_s,) = db.execute(
            "SELECT max(coalesce((SELECT observed_s FROM clock), 0), coalesce((SELECT max(at) FROM answers), 0))"
        ).fetchone()
        self._clock_offset_s = observed_s - self._clock()

    def _keep_time(self, db: sqlite3.Connection) -> None:
        db.execute("INSERT OR REPLACE INTO clock (id, observed_s) VALUES (0, ?)", (self._now(),))

    def _now(self) -> float:
        """Return how many seconds daemons have run with this file, as recorded in it."""
        return self._clock_offset_s + self._clock()

    def _prune(self, db: sqlite3.Connection) -> int:
        """Remove answers that are too old or too many, and return how many."""
        removed = db.execute(
            "DELETE FROM answers WHERE at < ? AND state != 'running'", (self._now() - self._keep_s,)
        ).rowcount
        if self._count - removed >= self._max_keys:
            # Remove a tenth at once, so that a full table is not sorted at every claim.
            removed += db.execute(
                "DELETE FROM answers WHERE rowid IN "
                "(SELECT rowid FROM answers WHERE state != 'running' ORDER BY at LIMIT ?)",
                (max(1, self._max_keys // 10),),
            ).rowcount
        return removed
