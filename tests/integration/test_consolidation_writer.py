"""Consolidation commits through the daemon's one writer: the mirrors show a page before its run is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from memo.documents import ABSENT, Author, Expected
from memo.errors import RevisionConflict, Timeout, Unavailable
from memo.ids import UserRef
from memo.leases import Lease, LeaseLost
from memo.ledger import DocumentChange, Settlement
from sandboxd.events import EventBus
from sandboxd.memory import Memory, Queued
from tests.integration.test_mirror_library import (
    ANN,
    REF,
    USER,
    USER_PATH,
    bus,
    data,
    manifest_of,
    memory,
    open_another,
    store,
    text_of,
)
from tests.integration.test_mirror_library_outbox import Switch, open_memory, switch

__all__ = ["bus", "data", "memory", "open_another", "store", "switch"]  # fixtures

pytestmark = pytest.mark.anyio

WHO = UserRef(REF.tenant, ANN)
RUN = Author("consolidation", reason="1 new")


async def lease_of(store: Any) -> Lease:
    lease = await store.acquire_lease(WHO, "a test", 60)
    assert isinstance(lease, Lease)
    return lease


def settlement(text: str, expected: Expected = ABSENT) -> Settlement:
    return Settlement({"runs": 1}, document=DocumentChange(USER, text, expected, RUN))


async def test_a_settled_page_is_shown_and_announced_before_the_run_continues(
    store: Any, memory: Memory, bus: EventBus
) -> None:
    root = await memory.create("box", REF, ANN)
    written = await memory.settle(await lease_of(store), settlement("page"))
    assert written == await store.read_document(USER)
    assert text_of(root, USER_PATH) == "page"
    assert manifest_of(root)["user/USER.md"]["revision"] == 1
    (event,) = [event.fields for event in bus.recent() if event.kind == "memo"]
    assert (event["revision"], event["actor"]) == (1, "consolidation")
    assert (await store.read_ledger(WHO)).standing == {"runs": 1}


async def test_a_settlement_without_a_document_goes_to_the_store_alone(store: Any, memory: Memory) -> None:
    assert await memory.settle(await lease_of(store), Settlement({"runs": 2})) is None
    assert (await store.read_ledger(WHO)).standing == {"runs": 2}
    assert await memory.read(USER) is None


async def test_a_conflict_and_a_lost_lease_reach_the_run_as_they_are(store: Any, memory: Memory) -> None:
    lease = await lease_of(store)
    await memory.write(USER, "by hand")
    with pytest.raises(RevisionConflict) as conflict:
        await memory.settle(lease, settlement("page"))
    assert conflict.value.current is not None
    assert conflict.value.current.content == "by hand"
    await store.release_lease(lease)
    with pytest.raises(LeaseLost):
        await memory.settle(lease, settlement("page", 1))
    newest = await memory.read(USER)
    assert newest is not None
    assert newest.content == "by hand"


async def test_a_store_that_is_down_fails_the_run_with_memo_s_error_and_nothing_is_queued(
    data: Path, switch: Switch
) -> None:
    async with open_memory(data, switch) as memory:
        lease = await lease_of(switch.store)
        switch.is_down = True
        for unsettled in (settlement("page"), Settlement({})):
            with pytest.raises(Unavailable, match="cannot reach the store"):
                await memory.settle(lease, unsettled)
        assert memory.waiting == 0


async def test_a_page_with_a_queued_write_is_left_to_a_later_run(data: Path, switch: Switch) -> None:
    async with open_memory(data, switch) as memory:
        lease = await lease_of(switch.store)
        switch.stuck.add(USER)
        assert isinstance(await memory.write(USER, "queued"), Queued)
        with pytest.raises(Unavailable, match="queued for the store"):
            await memory.settle(lease, settlement("page"))
        assert await switch.store.read_document(USER) is None


class Frozen(Switch):
    """A store whose `settle` never answers."""

    async def settle(self, lease: Lease, settlement: Settlement) -> None:
        await anyio.sleep_forever()


async def test_a_store_that_does_not_answer_is_memo_s_timeout(data: Path, switch: Switch) -> None:
    lease = await lease_of(switch.store)
    async with Memory(data, Frozen(switch.store), events=EventBus(), store_timeout_s=0.2) as memory:
        with pytest.raises(Timeout, match="did not answer") as late:
            await memory.settle(lease, settlement("page"))
        assert late.value.outcome_unknown
