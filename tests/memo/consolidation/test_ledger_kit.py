"""The conformance check of a ledger: our stores pass it, and each broken store fails the promise it breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from memo import InMemoryStore, SQLiteStore
from memo.documents import ANY, Document
from memo.errors import MemoError, Unsupported
from memo.ids import UserRef
from memo.leases import Held, Lease, grant
from memo.ledger import PendingUser, Settlement
from memo.records import RecordChange, Value
from memo.stores.filesystem import FilesystemStore
from memo.testing import BrokenPromise, check_ledger

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite", "filesystem"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    numbers = count()

    def make_one() -> Any:
        if request.param == "memory":
            return InMemoryStore()
        path = tmp_path / f"memo-{next(numbers)}"
        return SQLiteStore(path.with_suffix(".db")) if request.param == "sqlite" else FilesystemStore(path, watch=False)

    return make_one


async def test_store_keeps_every_promise_of_a_ledger(make: Callable[[], Any]) -> None:
    await check_ledger(make)


class GrantsTwice(InMemoryStore):
    """Checks, then grants, with a gap for other tasks in between."""

    async def acquire_lease(self, user: UserRef, holder: str, ttl_s: float) -> Lease | Held:
        entry = await self.read_ledger(user)
        await checkpoint()
        granted = grant(entry.lease, user, holder, ttl_s, self.options.clock())
        if isinstance(granted, Lease):
            self._book().leases[user] = granted
        return granted


class ReusesTokens(InMemoryStore):
    """Forgets a released lease, and its token with it."""

    async def release_lease(self, lease: Lease) -> None:
        await super().release_lease(lease)
        self._book().leases.pop(lease.user, None)


class NeverExpires(InMemoryStore):
    """Holds a lease for an hour longer than stated."""

    async def acquire_lease(self, user: UserRef, holder: str, ttl_s: float) -> Lease | Held:
        granted = await super().acquire_lease(user, holder, ttl_s + 3600)
        if isinstance(granted, Held):
            return replace(granted, until=granted.until - timedelta(hours=1))
        return replace(granted, expires_at=granted.expires_at - timedelta(hours=1))


class HasNoFence(InMemoryStore):
    """Settles for any holder, without checking the fence."""

    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        current = self._book().leases[lease.user]
        self._book().leases[lease.user] = replace(lease, expires_at=lease.expires_at + timedelta(hours=1))
        try:
            return await super().settle(lease, settlement)
        finally:
            self._book().leases[lease.user] = current


class Overwrites(InMemoryStore):
    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        if settlement.document is not None:
            settlement = replace(settlement, document=replace(settlement.document, expected=ANY))
        return await super().settle(lease, settlement)


class SettlesByHalves(InMemoryStore):
    """Commits the standing and then the document, in two transactions."""

    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        await super().settle(lease, Settlement(settlement.standing, settlement.memory))
        return await super().settle(lease, settlement)


class SettlesWhatItHasNotSeen(InMemoryStore):
    """Marks a session as settled even if it has newer messages."""

    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        settlement = replace(settlement, settled=dict.fromkeys(settlement.settled, 10**6))
        return await super().settle(lease, settlement)


class HidesStandings(InMemoryStore):
    async def list_pending(self) -> list[PendingUser]:
        return [replace(pending, standing={}) for pending in await super().list_pending()]


class AppliesOneByOne(InMemoryStore):
    async def apply_records(self, changes: Any) -> list[Value | None]:
        return [await self._one(change) for change in changes]

    async def _one(self, change: RecordChange) -> Value | None:
        (left,) = await super().apply_records([change])
        return left


class SwallowsLostLeases(InMemoryStore):
    async def renew_lease(self, lease: Lease, ttl_s: float) -> Lease:
        try:
            return await super().renew_lease(lease, ttl_s)
        except MemoError:
            return lease


CASES: list[tuple[Any, str]] = [
    (GrantsTwice, "one of many concurrent requests is granted"),
    (ReusesTokens, "a lease has one holder and every grant a higher token"),
    (NeverExpires, "a lease expires unless it is renewed"),
    (SwallowsLostLeases, "a lease expires unless it is renewed"),
    (HasNoFence, "a late settlement is refused and changes nothing"),
    (Overwrites, "a settlement is atomic"),
    (SettlesByHalves, "a settlement is atomic"),
    (SettlesWhatItHasNotSeen, "a session is pending from its message until that revision is settled"),
    (HidesStandings, "a scan returns every pending user and their standing"),
    (AppliesOneByOne, "a batch of records is atomic"),
]


@pytest.mark.parametrize(("kind", "promise"), CASES, ids=[case[0].__name__ for case in CASES])
async def test_a_broken_ledger_fails_the_promise_it_breaks(kind: Any, promise: str) -> None:
    with pytest.raises(BrokenPromise) as caught:
        await check_ledger(kind)
    assert caught.value.promise == promise


async def test_the_check_names_what_a_store_without_a_ledger_lacks() -> None:
    with pytest.raises(Unsupported, match="acquire_lease"):
        await check_ledger(object)
