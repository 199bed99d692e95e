"""The contract of leases: one holder for a user at a time, until a moment that passes by itself, with a fencing token.

What a lease means is decided here, once, by pure functions; a store only carries it out, in one transaction. A token
only grows, so a holder that stalled past its time is recognised at its next write, and refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from memo.errors import InvalidContent, MemoError
from memo.ids import UserRef

MOST_HOLDER_CHARS = 200
LONGEST = timedelta(hours=24)
"""No lease is granted for longer. One with more time left was granted by a clock that went back since: it is free."""


class LeaseLost(MemoError):
    """The lease has expired, or another holder has it. Nothing was changed."""

    code = "memo.lease_lost"
    retryable = True


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was granted. `token` is the fence: every grant to anybody has a higher one than the last."""

    user: UserRef
    holder: str
    token: int
    expires_at: datetime

    def is_free(self, now: datetime) -> bool:
        return not self.holder or not timedelta() < self.expires_at - now <= LONGEST


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody else has the lease, at the longest until `until` unless they renew it."""

    user: UserRef
    holder: str
    until: datetime


class LeaseStore(Protocol):
    async def acquire_lease(self, user: UserRef, holder: str, ttl_s: float) -> Lease | Held:
        """Grant the lease if it is free or has expired. The same holder asking again is somebody else, too."""

    async def renew_lease(self, lease: Lease, ttl_s: float) -> Lease:
        """Prolong a lease that is still this one, or raise LeaseLost."""

    async def release_lease(self, lease: Lease) -> None:
        """Let go. A lease that was lost before is nobody's business here: nothing happens."""


def grant(current: Lease | None, user: UserRef, holder: str, ttl_s: float, now: datetime) -> Lease | Held:
    """Decide on an `acquire_lease`; `current` is the last lease of the user there was, free or not."""
    if not holder or len(holder) > MOST_HOLDER_CHARS or not ttl_s > 0:
        raise InvalidContent("cannot acquire a lease: it needs a holder's name and a time of more than 0 s")
    if current is not None and not current.is_free(now):
        return Held(user, current.holder, current.expires_at)
    return Lease(user, holder, (current.token if current else 0) + 1, now + _length(ttl_s))


def prolong(current: Lease | None, lease: Lease, ttl_s: float, now: datetime) -> Lease:
    check_fence(current, lease, now)
    return replace(lease, expires_at=now + _length(ttl_s))


def let_go(current: Lease | None, lease: Lease) -> Lease | None:
    """Return what to keep in place of the current lease, None if it is no longer the caller's. The token stays."""
    if current is None or current.token != lease.token:
        return None
    return replace(current, holder="")


def check_fence(current: Lease | None, lease: Lease, now: datetime) -> None:
    """Raise LeaseLost unless `lease` is the newest grant and has time left."""
    if current is None or current.token != lease.token or not current.holder:
        raise LeaseLost(f"cannot go on for user {lease.user}: somebody else was granted the lease since")
    if current.expires_at <= now:
        raise LeaseLost(f"cannot go on for user {lease.user}: the lease has expired")


def _length(ttl_s: float) -> timedelta:
    return min(timedelta(seconds=ttl_s), LONGEST)


def has_leases(store: Any) -> bool:
    return all(callable(getattr(store, name, None)) for name in ("acquire_lease", "renew_lease", "release_lease"))
