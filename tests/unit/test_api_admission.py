"""Admission of calls: bounded, fair between tenants, and refused with a clear error at the limit."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.api.admission import Admission, tenant_of
from sandboxd.client import AsyncClient
from sandboxd.errors import Busy
from tests.world.serving import serving


def test_one_tenant_never_takes_all_capacity() -> None:
    admission = Admission(8)
    for _ in range(6):
        admission.enter("flood")
    with pytest.raises(Busy, match=r"^cannot accept this call: this tenant has 6 calls") as refused:
        admission.enter("flood")
    assert refused.value.retryable
    admission.enter("calm")
    admission.leave("flood")
    admission.enter("flood")


def test_at_the_limit_only_tenants_above_their_share_are_refused() -> None:
    admission = Admission(8)
    for _ in range(5):
        admission.enter("flood")
    for _ in range(3):
        admission.enter("other")
    with pytest.raises(Busy, match=r"the daemon has 8 calls in flight"):
        admission.enter("flood")
    for _ in range(2):
        admission.enter("late")  # a third of eight, although nothing is free
    with pytest.raises(Busy):
        admission.enter("late")


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=200))
def test_the_total_counts_calls_in_flight_and_stays_near_the_bound(moves: list[tuple[str, bool]]) -> None:
    admission = Admission(8)
    held: dict[str, int] = dict.fromkeys("abcd", 0)
    for tenant, is_entering in moves:
        if is_entering:
            try:
                admission.enter(tenant)
            except Busy:
                assert held[tenant] > 0, "a tenant without a call in flight is always admitted"
            else:
                held[tenant] += 1
        elif held[tenant]:
            admission.leave(tenant)
            held[tenant] -= 1
        assert admission.total == sum(held.values())
        assert max(held.values()) <= 6
        assert admission.total <= 8 + 8


def test_only_paths_of_a_tenant_are_counted() -> None:
    assert tenant_of("/v1/tenants/acme/sessions/s1/exec") == "acme"
    assert tenant_of("/v1/tenants/acme") == "acme"
    assert tenant_of("/healthz") is None
    assert tenant_of("/v1/events") is None


@pytest.mark.anyio
async def test_a_tenant_that_floods_does_not_starve_another(tmp_path: Path) -> None:
    async with serving(tmp_path, max_calls=8) as world, AsyncClient(world.socket) as client:
        for tenant in ("flood", "calm"):
            await client.ensure_sandbox("s1", tenant=tenant)
        refused = anyio.Event()
        flooding = 0

        async def sleep() -> None:
            nonlocal flooding
            flooding += 1
            try:
                await client.exec("s1", ["sleep", "30"], tenant="flood")
            except Busy:
                refused.set()

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(sleep)
                await refused.wait()
                assert (await client.exec("s1", ["true"], tenant="calm")).exit_code == 0
                assert (await client.health())["status"] == "ok"
                tasks.cancel_scope.cancel()
            await world.wait_quiet("s1", "flood")
            assert (await client.exec("s1", ["true"], tenant="flood")).exit_code == 0  # and it gets its room back
