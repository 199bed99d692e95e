"""Policy decides whether a user is due for a run, and why; Standing records the user's past runs and failures.

Pure: activity, standing, foreground work and the clock in, a verdict out. A verdict of "not now" says when to look
again, so the caller need not poll. A standing is stored as JSON in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from memo.backoff import Backoff
from memo.errors import Corrupt
from memo.ids import SessionId

MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class Failure:
    """The last of `count` consecutive failures. Nothing is retried before `retry_at`."""

    count: int
    reason: str
    retry_at: datetime

    @classmethod
    def after(
        cls, before: Failure | None, reason: str, now: datetime, backoff: Backoff, retry_after_s: float | None = None
    ) -> Failure:
        """Return the next consecutive failure. A `retry_after_s` that is longer than the backoff takes precedence."""
        count = before.count + 1 if before else 1
        pause = max(backoff.pause(count), timedelta(seconds=min(retry_after_s or 0, 86_400)))
        return cls(count, reason[:MAX_REASON_CHARS], now + pause)

    def encode(self) -> dict[str, Any]:
        return {"count": self.count, "reason": self.reason, "retry_at": self.retry_at.isoformat()}

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        return cls(int(value["count"]), str(value["reason"]), datetime.fromisoformat(value["retry_at"]))


@dataclass(frozen=True, slots=True)
class Standing:
    runs: int = 0
    """The number of settled runs, whether or not they changed the profile."""
    last_run_at: datetime | None = None
    last_outcome: str = ""
    revision: int = 0
    """The last revision of the profile that a run wrote."""
    is_unfinished: bool = False
    """Whether the last run exhausted its budget and should continue soon."""
    failure: Failure | None = None
    sessions: Mapping[SessionId, Failure] = field(default_factory=dict)
    """Sessions that could not be summarised. They are still pending."""

    @property
    def has_profile(self) -> bool:
        return self.last_run_at is not None

    def resting(self, now: datetime) -> list[SessionId]:
        """Return the failed sessions whose backoff has not ended."""
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
            "failure": None if self.failure is None else self.failure.encode(),
            "sessions": {session: failure.encode() for session, failure in self.sessions.items()},
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
                None if failure is None else Failure.parse(failure),
                {SessionId(session): Failure.parse(kept) for session, kept in value["sessions"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Corrupt("cannot read the consolidation standing of a user: its ledger entry is damaged") from None


class Why(StrEnum):
    """Why a user is due or not. The texts are part of the HTTP API."""

    FIRST = "no profile yet"
    UNFINISHED = "the last run stopped at its budget"
    RETRY = "a session that failed is tried again"
    SESSIONS = "enough sessions changed"
    AGE = "enough time passed, and something changed"
    DEMAND = "asked for"
    UNCHANGED = "nothing changed"
    BUSY = "the user is being served"
    ACTIVE = "not idle for long enough"
    BACKING_OFF = "the last try failed"
    RECENT = "the last run was not long ago"


DUE = frozenset({Why.FIRST, Why.UNFINISHED, Why.RETRY, Why.SESSIONS, Why.AGE, Why.DEMAND})


@dataclass(frozen=True, slots=True)
class Policy:
    """A user is due once idle for `idle`, and either `sessions` sessions changed or the last run is `age` old."""

    idle: timedelta = timedelta(minutes=10)
    age: timedelta = timedelta(hours=24)
    sessions: int = 5
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(frozen=True, slots=True)
class Activity:
    """Activity since the last run: how many sessions changed, and the time of the last change."""

    changed: int
    last_activity: datetime | None
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Due or not, and why. `look_again_at` is when "not now" may change without new activity; None: never."""

    why: Why
    look_again_at: datetime | None = None

    @property
    def is_due(self) -> bool:
        return self.why in DUE


def decide(activity: Activity, standing: Standing, now: datetime, policy: Policy) -> Verdict:
    resting = standing.resting(now)
    ready = activity.changed - len(resting)
    if ready <= 0 or activity.last_activity is None:
        return Verdict(Why.UNCHANGED, _next_retry(standing, now) if activity.changed else None)
    if activity.is_busy:
        return Verdict(Why.BUSY)
    if standing.failure is not None and standing.failure.retry_at > now:
        return Verdict(Why.BACKING_OFF, standing.failure.retry_at)
    idle_at = activity.last_activity + policy.idle
    if idle_at > now:
        return Verdict(Why.ACTIVE, idle_at)
    if standing.last_run_at is None:
        return Verdict(Why.FIRST)
    if standing.is_unfinished:
        return Verdict(Why.UNFINISHED)
    if len(resting) < len(standing.sessions):
        return Verdict(Why.RETRY)
    if ready >= policy.sessions:
        return Verdict(Why.SESSIONS)
    aged_at = standing.last_run_at + policy.age
    if aged_at <= now:
        return Verdict(Why.AGE)
    return Verdict(Why.RECENT, min(aged_at, _next_retry(standing, now) or aged_at))


def _next_retry(standing: Standing, now: datetime) -> datetime | None:
    return min((f.retry_at for f in standing.sessions.values() if f.retry_at > now), default=None)
