"""When a user is due, and why. Pure: activity, standing, foreground work and the clock in, a verdict out.

It knows no store and starts nothing. A verdict that says "not now" says when to look again, so nobody has to poll.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from memo.consolidation.standing import Backoff, Standing


class Why(StrEnum):
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
    idle: timedelta = timedelta(minutes=10)
    age: timedelta = timedelta(hours=24)
    sessions: int = 5
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(frozen=True, slots=True)
class Activity:
    """What happened since the last run: how many sessions changed, and when the last of them did."""

    changed: int
    last_activity: datetime | None
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Due or not, and why. `look_again_at` is when a verdict of "not now" may change by itself; None: not by itself."""

    why: Why
    look_again_at: datetime | None = None

    @property
    def is_due(self) -> bool:
        return self.why in DUE


def decide(activity: Activity, standing: Standing, now: datetime, policy: Policy) -> Verdict:
    resting = standing.resting(now)
    ready = activity.changed - len(resting)
    if ready <= 0 or activity.last_activity is None:
        return Verdict(Why.UNCHANGED, _earliest(standing, now) if activity.changed else None)
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
    return Verdict(Why.RECENT, min(aged_at, _earliest(standing, now) or aged_at))


def _earliest(standing: Standing, now: datetime) -> datetime | None:
    return min((f.retry_at for f in standing.sessions.values() if f.retry_at > now), default=None)
