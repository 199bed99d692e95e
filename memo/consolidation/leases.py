"""Holding a lease while work goes on: renewed well before it ends, and the work cancelled when it is lost.

The fence in the store is what keeps a late write out; this only spares the work that could not be written any more.
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

RENEWALS_A_LEASE = 3
RELEASE_DEADLINE_S = 5.0


def holder_name() -> str:
    """Return a name that no other process has, and that a person can find the process by."""
    return f"{platform.node()[:100]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


@dataclass(slots=True)
class Holding:
    lease: Lease
    lost: LeaseLost | None = None


@asynccontextmanager
async def holding(store: LeaseStore, lease: Lease, ttl_s: float) -> AsyncIterator[Holding]:
    """Keep the lease for the length of a `with`, then let it go. If it is lost, the body is cancelled: LeaseLost."""
    held = Holding(lease)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_renew, store, held, ttl_s, tasks.cancel_scope)
            yield held
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(RELEASE_DEADLINE_S):
            await _let_go(store, held)
    if held.lost is not None:
        raise held.lost


async def _renew(store: LeaseStore, held: Holding, ttl_s: float, work: anyio.CancelScope) -> None:
    while True:
        await anyio.sleep(ttl_s / RENEWALS_A_LEASE)
        try:
            held.lease = await store.renew_lease(held.lease, ttl_s)
        except LeaseLost as lost:
            held.lost = lost
            work.cancel()
            return
        except ProviderError:
            continue  # the store may be back before the lease ends; if not, the next renewal or the fence tells


async def _let_go(store: LeaseStore, held: Holding) -> None:
    try:
        await store.release_lease(held.lease)
    except ProviderError:
        return  # it expires by itself
