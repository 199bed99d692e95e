"""How a user stands: when the last run was, what came of it, what failed and until when it is left alone.

A value, and its JSON in the ledger. It decides nothing; `policy` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self

from memo.errors import Corrupt
from memo.ids import SessionId

MOST_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to leave alone what failed: doubling from the first pause to the longest."""

    first: timedelta = timedelta(minutes=1)
    longest: timedelta = timedelta(hours=6)

    def pause(self, failures: int) -> timedelta:
        doublings = min(max(failures - 1, 0), 30)
        return min(self.first * (1 << doublings), self.longest)


@dataclass(frozen=True, slots=True)
class Failure:
    count: int
    reason: str
    retry_at: datetime

    @classmethod
    def after(
        cls, before: Failure | None, reason: str, now: datetime, backoff: Backoff, retry_after_s: float | None = None
    ) -> Failure:
        """Return the next failure in a row. Somebody who says when to come back is not asked sooner."""
        count = before.count + 1 if before else 1
        pause = max(backoff.pause(count), timedelta(seconds=min(retry_after_s or 0, 86_400)))
        return cls(count, reason[:MOST_REASON_CHARS], now + pause)


@dataclass(frozen=True, slots=True)
class Standing:
    runs: int = 0
    """Runs that were settled, whether or not they changed anything."""
    last_run_at: datetime | None = None
    last_outcome: str = ""
    revision: int = 0
    """The last revision of the profile that a run wrote."""
    is_unfinished: bool = False
    """The last run stopped at its budget and should go on soon."""
    failure: Failure | None = None
    sessions: Mapping[SessionId, Failure] = field(default_factory=dict)
    """Sessions that could not be summarised. They are still pending."""

    @property
    def has_profile(self) -> bool:
        return self.last_run_at is not None

    def resting(self, now: datetime) -> list[SessionId]:
        return [session for session, failure in self.sessions.items() if failure.retry_at > now]

    def failed(self, reason: str, now: datetime, backoff: Backoff, retry_after_s: float | None = None) -> Standing:
        return replace(
            self, last_outcome="failed", failure=Failure.after(self.failure, reason, now, backoff, retry_after_s)
        )

    def encode(self) -> dict[str, Any]:
        return {
            "version": 1,
            "runs": self.runs,
            "last_run_at": None if self.last_run_at is None else self.last_run_at.isoformat(),
            "last_outcome": self.last_outcome,
            "revision": self.revision,
            "unfinished": self.is_unfinished,
            "failure": None if self.failure is None else _encode_failure(self.failure),
            "sessions": {session: _encode_failure(failure) for session, failure in self.sessions.items()},
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        if not value:
            return cls()
        try:
            last_run, failure = value["last_run_at"], value["failure"]
            return cls(
                int(value["runs"]),
                None if last_run is None else datetime.fromisoformat(last_run),
                str(value["last_outcome"]),
                int(value["revision"]),
                bool(value["unfinished"]),
                None if failure is None else _parse_failure(failure),
                {SessionId(session): _parse_failure(kept) for session, kept in value["sessions"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Corrupt("cannot read how a user stands: the ledger holds something else") from None


def _encode_failure(failure: Failure) -> dict[str, Any]:
    return {"count": failure.count, "reason": failure.reason, "retry_at": failure.retry_at.isoformat()}


def _parse_failure(value: Mapping[str, Any]) -> Failure:
    return Failure(int(value["count"]), str(value["reason"]), datetime.fromisoformat(value["retry_at"]))
