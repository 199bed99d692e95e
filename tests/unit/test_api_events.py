"""The event bus: numbered, bounded, and honest about what a reader missed."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.events import EventBus

pytestmark = pytest.mark.anyio


async def test_a_reader_gets_every_event_in_order() -> None:
    bus = EventBus(first_id=100)
    async with bus.subscribe() as events:
        for number in range(3):
            bus.publish("exec", number=number)
        seen = [await anext(events) for _ in range(3)]
    assert [(event.id, event.fields["number"]) for event in seen] == [(100, 0), (101, 1), (102, 2)]


async def test_a_waiting_reader_is_woken() -> None:
    bus = EventBus()
    async with bus.subscribe() as events, anyio.create_task_group() as tasks:
        got = []

        async def read() -> None:
            got.append(await anext(events))

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        bus.publish("sandbox", state="ready")
    assert [event.kind for event in got] == ["sandbox"]


async def test_a_slow_reader_gets_a_gap_and_then_what_is_left() -> None:
    bus = EventBus(capacity=4, first_id=0)
    async with bus.subscribe() as events:
        for _ in range(10):
            bus.publish("exec")
        seen = [await anext(events) for _ in range(5)]
    assert [(event.kind, event.id) for event in seen] == [("gap", 5), *(("exec", number) for number in range(6, 10))]
    assert seen[0].fields["lost"] == 6
    assert bus.dropped == 6


async def test_an_id_of_an_earlier_run_or_of_the_future_is_a_gap() -> None:
    bus = EventBus(first_id=1000)
    bus.publish("exec")
    for after in (5, 5000):
        first = bus.recent(after)[0]
        assert first.kind == "gap"
        async with bus.subscribe(after) as events:
            assert (await anext(events)).kind == "gap"


async def test_a_reader_that_was_up_to_date_has_no_gap() -> None:
    bus = EventBus(first_id=1000)
    last = bus.publish("exec")
    assert bus.recent(last.id) == []
    assert [event.kind for event in bus.recent()] == ["exec"]


async def test_ids_grow_across_restarts() -> None:
    first = EventBus()
    for _ in range(100):
        last = first.publish("exec")
    assert EventBus().publish("exec").id > last.id - 100
    assert EventBus().last_id > first.last_id - 100


async def test_waiting_may_be_cancelled_and_begun_again() -> None:
    bus = EventBus()
    async with bus.subscribe() as events:
        with anyio.move_on_after(0.01):
            await anext(events)
        bus.publish("exec")
        assert (await anext(events)).kind == "exec"


async def test_closing_ends_every_reader() -> None:
    bus = EventBus()
    async with bus.subscribe() as events, anyio.create_task_group() as tasks:

        async def read() -> None:
            assert [event async for event in events] == []

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        bus.close()
