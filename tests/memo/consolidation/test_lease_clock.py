"""A clock that jumps can end a lease early, and can never make one last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from memo.ids import UserRef
from memo.leases import Held, Lease, grant

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADA = UserRef.of("acme", "ada")


def test_a_lease_that_was_granted_by_a_clock_ten_years_ahead_is_free() -> None:
    ahead = grant(None, ADA, "one", 60, NOW + timedelta(days=3650))
    assert isinstance(ahead, Lease)
    granted = grant(ahead, ADA, "two", 60, NOW)
    assert isinstance(granted, Lease)
    assert granted.token > ahead.token


def test_a_lease_is_held_however_long_a_holder_asked_for() -> None:
    long = grant(None, ADA, "one", 10 * 86_400, NOW)
    assert isinstance(long, Lease)
    assert isinstance(grant(long, ADA, "two", 60, NOW), Held)
