"""The audit log of one sandbox's egress: one record for each connection or request, the newest of them kept in memory.

A record is written when its connection ends, so it has its final figures. It never contains a header, a body, a query
or a secret.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime

import anyio

from sandboxd.models.network import Decision, EgressRecord

CAPACITY = 1000
_MAX_TEXT_CHARS = 500
"""The most that a record keeps of a host, path or reason: a sandbox chooses what they are."""


class AuditDraft:
    """What is known so far about a connection that goes on."""

    def __init__(self, host: str = "", port: int = 0) -> None:
        self.at = datetime.now(UTC)
        self._started = time.perf_counter()
        self.host = host
        self.port = port
        self.rule: str | None = None
        self.credential: str | None = None
        self.method: str | None = None
        self.path: str | None = None
        self.status: int | None = None
        self.bytes_in = 0
        self.bytes_out = 0
        self.ms: float | None = None
        """How long it took; None for the time since it was begun."""

    def record(self, number: int, decision: Decision, reason: str | None) -> EgressRecord:
        return EgressRecord(
            id=number,
            at=self.at,
            host=_shown(self.host),
            port=self.port,
            decision=decision,
            rule=self.rule,
            reason=None if reason is None else _shown(reason),
            credential=self.credential,
            method=self.method,
            path=None if self.path is None else _shown(self.path),
            status=self.status,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            ms=round((time.perf_counter() - self._started) * 1000 if self.ms is None else self.ms, 3),
        )


def _shown(text: str) -> str:
    """Return text of a sandbox as it may stand in a log and on a terminal: short, and without control characters."""
    return "".join(char if char.isprintable() else "?" for char in text[:_MAX_TEXT_CHARS])


class AuditLog:
    """Keeps the last records, and wakes readers that wait for the next one.

    A restarted daemon counts anew, so a number that is not given yet belongs to an earlier log: its reader has seen
    nothing of this one.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._records: deque[EgressRecord] = deque(maxlen=capacity)
        self._last_id = 0
        self._is_closed = False
        self._changed = anyio.Event()

    def add(self, draft: AuditDraft, decision: Decision, reason: str | None = None) -> EgressRecord:
        self._last_id += 1
        record = draft.record(self._last_id, decision, reason)
        self._records.append(record)
        self._wake()
        return record

    @property
    def dropped(self) -> int:
        """How many records are no longer kept."""
        return self._last_id - len(self._records)

    def since(self, number: int) -> list[EgressRecord]:
        """Return the kept records with a greater id, oldest first; all of them after a number of an earlier log."""
        seen = number if number <= self._last_id else 0
        count = min(len(self._records), self._last_id - seen)
        return [self._records[place] for place in range(len(self._records) - count, len(self._records))]

    async def wait(self, number: int) -> list[EgressRecord]:
        """Wait for records with a greater id and return them; none once the log is closed. Cancelling loses nothing."""
        seen = number if number <= self._last_id else 0
        while self._last_id <= seen and not self._is_closed:
            await self._changed.wait()
        return self.since(seen)

    def close(self) -> None:
        """End all readers, because the sandbox is removed or the daemon stops."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
