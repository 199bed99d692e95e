"""A clock that jumps can end a lease early but never extend one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from memo.ids import UserRef
from memo.leases import Held, Lease, grant

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADA = UserRef.of("acme", "ada")


def test_a_lease_granted_by_a_clock_ten_years_ahead_is_free() -> None:
    ahead = grant(None, ADA, "one", 60, NOW + timedelta(days=3650))
    assert isinstance(ahead, Lease)
    granted = grant(ahead, ADA, "two", 60, NOW)
    assert isinstance(granted, Lease)
    assert granted.token > ahead.token


def test_a_lease_with_a_very_long_ttl_is_granted_and_held() -> None:
    long = grant(None, ADA, "one", 10 * 86_400, NOW)
    assert isinstance(long, Lease)
    assert isinstance(grant(long, ADA, "two", 60, NOW), Held)
