"""HeldLease: a lease that is renewed in the background during work; if it is lost, the work is cancelled.

The store's fencing token rejects a late write; cancelling only avoids work that could no longer be committed.
"""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from memo.errors import ProviderError
from memo.leases import Lease, LeaseLost, LeaseStore

RENEWALS_PER_LEASE = 3
RELEASE_DEADLINE_S = 5.0


def holder_name() -> str:
    """Return a name that is unique to this process and readable for operators."""
    return f"{platform.node()[:100]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


@dataclass(slots=True)
class HeldLease:
    lease: Lease
    lost: LeaseLost | None = None


@asynccontextmanager
async def hold_lease(store: LeaseStore, lease: Lease, ttl_s: float) -> AsyncIterator[HeldLease]:
    """Renew the lease during a `with`, then release it. If it is lost, cancel the body and raise LeaseLost."""
    held = HeldLease(lease)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_renew, store, held, ttl_s, tasks.cancel_scope)
            yield held
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(RELEASE_DEADLINE_S):
            await _release(store, held)
    if held.lost is not None:
        raise held.lost


async def _renew(store: LeaseStore, held: HeldLease, ttl_s: float, work: anyio.CancelScope) -> None:
    while True:
        await anyio.sleep(ttl_s / RENEWALS_PER_LEASE)
        try:
            held.lease = await store.renew_lease(held.lease, ttl_s)
        except LeaseLost as lost:
            held.lost = lost
            work.cancel()
            return
        except ProviderError:
            continue  # the store may recover before the lease ends; otherwise the next renewal or the fence notices


async def _release(store: LeaseStore, held: HeldLease) -> None:
    try:
        await store.release_lease(held.lease)
    except ProviderError:
        return  # the lease expires by itself
