"""The contract of leases: at most one holder per user, an expiry time, and a fencing token.

The pure functions here decide what a lease means; a store carries it out in one transaction. Tokens only grow, so a
write by a holder that stalled past its expiry is recognised and refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from memo.errors import InvalidContent, MemoError
from memo.ids import UserRef

MOST_HOLDER_CHARS = 200
LONGEST = timedelta(hours=24)
"""The longest lease. If more time than this is left, the clock was set back, and the lease counts as free."""


class LeaseLost(MemoError):
    """The lease has expired, or another holder has it. Nothing was changed."""

    code = "memo.lease_lost"
    retryable = True


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was granted. `token` is the fence: every grant has a higher token than the previous one."""

    user: UserRef
    holder: str
    token: int
    expires_at: datetime

    def is_free(self, now: datetime) -> bool:
        return not self.holder or not timedelta() < self.expires_at - now <= LONGEST


@dataclass(frozen=True, slots=True)
class Held:
    """Another holder has the lease, until `until` unless it is renewed."""

    user: UserRef
    holder: str
    until: datetime


class LeaseStore(Protocol):
    async def acquire_lease(self, user: UserRef, holder: str, ttl_s: float) -> Lease | Held:
        """Grant the lease if it is free or has expired. The current holder is refused like any other."""

    async def renew_lease(self, lease: Lease, ttl_s: float) -> Lease:
        """Extend the lease if it is still valid, or raise LeaseLost."""

    async def release_lease(self, lease: Lease) -> None:
        """Release the lease. Releasing a lease that was already lost changes nothing."""


def grant(current: Lease | None, user: UserRef, holder: str, ttl_s: float, now: datetime) -> Lease | Held:
    """Decide on an `acquire_lease`; `current` is the user's last lease, free or not."""
    if not holder or len(holder) > MOST_HOLDER_CHARS or not ttl_s > 0:
        raise InvalidContent(
            f"cannot acquire a lease: give a holder's name of 1 to {MOST_HOLDER_CHARS} characters and more than 0 s"
        )
    if current is not None and not current.is_free(now):
        return Held(user, current.holder, current.expires_at)
    return Lease(user, holder, (current.token if current else 0) + 1, now + _length(ttl_s))


def prolong(current: Lease | None, lease: Lease, ttl_s: float, now: datetime) -> Lease:
    check_fence(current, lease, now)
    return replace(lease, expires_at=now + _length(ttl_s))


def let_go(current: Lease | None, lease: Lease) -> Lease | None:
    """Return the released lease to store, or None if the caller no longer holds it. The token stays."""
    if current is None or current.token != lease.token:
        return None
    return replace(current, holder="")


def check_fence(current: Lease | None, lease: Lease, now: datetime) -> None:
    """Raise LeaseLost unless `lease` is the newest grant and has time left."""
    if current is None or current.token != lease.token or not current.holder:
        raise LeaseLost(f"cannot continue for user {lease.user}: another holder has the lease")
    if current.expires_at <= now:
        raise LeaseLost(f"cannot continue for user {lease.user}: the lease has expired")


def _length(ttl_s: float) -> timedelta:
    return min(timedelta(seconds=ttl_s), LONGEST)


def has_leases(store: Any) -> bool:
    return all(callable(getattr(store, name, None)) for name in ("acquire_lease", "renew_lease", "release_lease"))
