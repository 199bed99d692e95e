"""The event bus: numbered, bounded, with a gap event for what a reader missed."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.api.feed import EventFeed
from sandboxd.errors import LimitReached
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


async def test_an_id_of_an_earlier_run_or_of_the_future_gives_a_gap() -> None:
    bus = EventBus(first_id=1000)
    bus.publish("exec")
    for after in (5, 5000):
        first = bus.recent(after)[0]
        assert first.kind == "gap"
        async with bus.subscribe(after) as events:
            assert (await anext(events)).kind == "gap"


async def test_a_reader_that_was_up_to_date_has_no_gap() -> None:
    bus = EventBus(first_id=1000)
    bus.publish("exec")
    assert bus.recent(bus.last_id) == []
    assert [event.kind for event in bus.recent()] == ["exec"]


async def test_ids_grow_across_restarts() -> None:
    first = EventBus()
    for _ in range(100):
        first.publish("exec")
    assert EventBus().last_id > first.last_id - 100


async def test_waiting_may_be_cancelled_and_restarted() -> None:
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


async def test_many_readers_get_every_event_in_few_batches() -> None:
    """Publishing must not cost time per reader: each reader gets new events in one batch."""
    bus = EventBus(first_id=0)
    readers, events = 100, 200
    batches: list[list[int]] = [[] for _ in range(readers)]

    async def read(mine: list[int]) -> None:
        async with bus.subscribe() as reader:
            while sum(mine) < events:
                mine.append(len(await reader.batch()))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for mine in batches:
                tasks.start_soon(read, mine)
            await anyio.wait_all_tasks_blocked()
            for _ in range(events):
                bus.publish("exec")
                await anyio.sleep(0)
    assert all(sum(mine) == events for mine in batches)
    assert max(map(len, batches)) <= events / 10


async def test_an_event_that_comes_while_readers_are_being_woken_reaches_all_of_them() -> None:
    bus = EventBus(first_id=0)
    last_seen = [-1] * 50

    async def read(place: int) -> None:
        async with bus.subscribe() as reader:
            while last_seen[place] < 1:
                last_seen[place] = (await reader.batch())[-1].id

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for place in range(len(last_seen)):
                tasks.start_soon(read, place)
            await anyio.wait_all_tasks_blocked()
            bus.publish("exec")
            while -1 in last_seen and max(last_seen) < 0:  # until the first of them have it, and the others do not
                await anyio.sleep(0)
            assert -1 in last_seen
            bus.publish("exec")


async def test_a_single_reader_is_woken_by_every_event() -> None:
    bus = EventBus(first_id=0)
    batches: list[list[int]] = []

    async def read() -> None:
        async with bus.subscribe() as reader:
            while len(batches) < 20:
                batches.append([event.id for event in await reader.batch()])

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for _ in range(20):
                await anyio.wait_all_tasks_blocked()
                bus.publish("exec")
    assert batches == [[number] for number in range(20)]


async def test_a_reader_that_gives_up_is_no_longer_counted_as_waiting() -> None:
    bus = EventBus()
    async with bus.subscribe() as reader:
        for _ in range(5):
            with anyio.move_on_after(0):
                await reader.batch()
        assert not bus._waiting


async def test_an_event_is_rendered_once_for_all_readers() -> None:
    bus = EventBus(first_id=0)
    feed = EventFeed(bus)
    bus.publish("exec", exit_code=0)
    first, again = (feed.render(bus.recent()) for _ in range(2))
    assert first == again
    assert feed._one(bus.recent()[0]) is feed._one(bus.recent()[0])
    gap = bus.recent(5000)[0]
    assert b"event: gap" in feed.render([gap])
    assert b"event: exec" in feed.render(bus.recent())


async def test_readers_are_bounded_and_the_next_one_is_refused() -> None:
    feed = EventFeed(EventBus(), most_readers=2)
    with feed.admit():
        refused = pytest.raises(LimitReached, match=r"^cannot follow events: 2 readers are connected")
        with feed.admit(), refused, feed.admit():
            pass
        with feed.admit():
            pass
