"""The log of events: it survives a process that just ends, stays within its bounds, and finds what is asked for."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sandboxd.errors import HostCorrupt
from sandboxd.events import EventBus, Excerpt
from sandboxd.history import EventFilter, EventHistory
from sandboxd.history.journal import NAMES
from sandboxd.history_settings import HistoryOptions
from sandboxd.models.event import Event

pytestmark = pytest.mark.anyio

EVERYTHING = EventFilter()


@asynccontextmanager
async def opened(directory: Path, **options: object) -> AsyncIterator[tuple[EventBus, EventHistory]]:
    bus = EventBus()
    async with EventHistory(directory, HistoryOptions.model_validate(options), bus) as history:
        yield bus, history


async def killed(directory: Path, *texts: str) -> None:
    """Publish as a daemon does that is killed at once: nothing is written to the database or closed."""
    bus = EventBus()
    history = EventHistory(directory, HistoryOptions(), bus)
    await history.log.open(bus.next_id)
    bus.keep_in(history, history.log.last_id)
    for text in texts:
        bus.publish("exec", tenant="acme", session="s1", command=text)


async def commands(history: EventHistory) -> list[str]:
    return [event.fields["command"] for event in await history.find(EVERYTHING, limit=1000)]


async def test_events_survive_a_daemon_that_is_killed_before_it_wrote_them_to_the_database(tmp_path: Path) -> None:
    await killed(tmp_path, "one", "two")
    await killed(tmp_path, "three")
    async with opened(tmp_path) as (bus, history):
        bus.publish("exec", command="four")
        assert await commands(history) == ["one", "two", "three", "four"]
    async with opened(tmp_path) as (_, history):
        assert await commands(history) == ["one", "two", "three", "four"]
        ids = [event.id for event in await history.find(EVERYTHING, limit=10)]
        assert ids == sorted(set(ids))


async def test_an_event_comes_back_exactly_as_it_was_published(tmp_path: Path) -> None:
    async with opened(tmp_path) as (bus, history):
        bus.publish("tool", tenant="acme", session="s1", ok=True, limits_hit=("pids",), path="/a\nb\té", exit_code=None)
        (published,) = bus.recent()
        assert [event.model_dump_json() for event in await history.find(EVERYTHING, limit=1)] == [
            published.model_dump_json()
        ]
        await history.log.write()
        assert [event.model_dump_json() for event in await history.find(EVERYTHING, limit=1)] == [
            published.model_dump_json()
        ]


async def test_a_line_that_a_crash_cut_off_is_left_out_and_the_next_one_is_whole(tmp_path: Path) -> None:
    await killed(tmp_path, "whole")
    with (tmp_path / NAMES[0]).open("ab") as journal:
        journal.write(b'17 17 exec\t{"comm')
    await killed(tmp_path, "after")
    async with opened(tmp_path) as (_, history):
        assert await commands(history) == ["whole", "after"]


async def test_a_damaged_line_is_counted_and_costs_no_other_event(tmp_path: Path) -> None:
    await killed(tmp_path, "one")
    with (tmp_path / NAMES[1]).open("ab") as journal:
        journal.write(b"\0\0\0\0\n17 17 exec\t[]\t\n")
    async with opened(tmp_path) as (_, history):
        assert await commands(history) == ["one"]
        assert history.figures().dropped == 2


async def test_a_damaged_log_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "events.db").write_bytes(b"not a database" * 100)
    with pytest.raises(HostCorrupt, match="stop the daemon and move the file away"):
        async with opened(tmp_path):
            pass
    assert (tmp_path / "events.db").read_bytes() == b"not a database" * 100


async def test_ids_grow_even_when_the_clock_went_back(tmp_path: Path) -> None:
    future = EventBus(first_id=2**60)
    async with EventHistory(tmp_path, HistoryOptions(), future):
        future.publish("exec", command="later")
    async with opened(tmp_path) as (bus, history):
        bus.publish("exec", command="now")
        assert [event.id for event in await history.find(EVERYTHING, limit=10)] == [2**60, 2**60 + 1]


async def test_the_log_keeps_the_newest_events_within_its_number(tmp_path: Path) -> None:
    async with opened(tmp_path, max_events=1000) as (bus, history):
        for number in range(2500):
            bus.publish("exec", command=str(number))
        await history.log.write()
        assert await commands(history) == [str(number) for number in range(1500, 2500)]
        first = (await history.find(EVERYTHING, limit=1))[0]
        assert history.log.removed_id == first.id - 1
        assert history.figures().kept == 1000


async def test_events_that_are_too_old_are_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (bus, history):
        for _ in range(3):
            bus.publish("exec", command="old")
        bus.publish("exec", command="new")
    with closing(sqlite3.connect(tmp_path / "events.db")) as db, db:
        db.execute("UPDATE events SET at = at - 3601 * 1000000 WHERE json_extract(fields, '$.command') = 'old'")
    async with opened(tmp_path, max_age_s=3600) as (_, history):
        assert await commands(history) == ["new"]


async def test_a_command_is_bounded_redacted_and_never_holds_a_known_secret(tmp_path: Path) -> None:
    async with opened(tmp_path, redact=[r"employee-(?P<secret>\d+)"]) as (bus, history):
        history.hide(["hunter2hunter2"])
        bus.publish("exec", command=("curl", "-H", "Authorization: Bearer abc", "http://x"))
        bus.publish("exec", command="echo employee-42 hunter2hunter2", path="/workspace/hunter2hunter2")
        bus.publish("exec", command="x" * 100_000)
        first, second, third = await history.find(EVERYTHING, limit=10)
        assert first.fields["command"] == "curl -H Authorization: [redacted]"
        assert (second.fields["command"], second.fields["path"]) == (
            "echo employee-[redacted] [redacted]",
            "/workspace/[redacted]",
        )
        assert len(third.fields["command"]) == 2001
        assert [event.fields for event in bus.recent()] == [first.fields, second.fields, third.fields]


async def test_commands_are_left_out_when_the_settings_say_so(tmp_path: Path) -> None:
    async with opened(tmp_path, commands=False) as (bus, history):
        bus.publish("exec", Excerpt(b"output"), command="echo", exit_code=0)
        (event,) = await history.find(EVERYTHING, limit=1)
        assert event.fields == {"exit_code": 0}


async def test_output_is_never_part_of_an_event(tmp_path: Path) -> None:
    async with opened(tmp_path) as (bus, history):
        bus.publish("exec", Excerpt(b"whatever it printed"), command="ls")
        assert "printed" not in bus.recent()[0].model_dump_json()
        assert "printed" not in (await history.find(EVERYTHING, limit=1))[0].model_dump_json()


async def test_pages_in_both_orders_hold_every_event_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as (bus, history):
        for number in range(250):
            bus.publish("exec", command=str(number))
            if number == 200:
                await history.log.write()  # some are in the database, others still in memory
        for newest_first in (False, True):
            seen: list[str] = []
            after: int | None = None
            while page := await history.find(EVERYTHING, limit=30, after=after, newest_first=newest_first):
                seen += [event.fields["command"] for event in page]
                after = page[-1].id
            expected = [str(number) for number in range(250)]
            assert seen == (expected[::-1] if newest_first else expected)


async def test_half_a_character_in_an_event_does_not_lose_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as (bus, history):
        bus.publish("exec", command="a\ud800b")
        await history.log.write()
        assert await commands(history) == ["a?b"]


async def test_a_filter_finds_the_same_events_in_memory_and_in_the_database(tmp_path: Path) -> None:
    start = datetime.now(UTC)
    async with opened(tmp_path) as (bus, history):
        for number in range(60):
            bus.publish(
                ("exec", "tool", "memo")[number % 3],
                tenant=("acme", "other")[number % 2],
                **({"session": f"s{number % 4}"} if number % 5 else {"by_session": "s1", "user": "ann"}),
            )
        published = bus.recent()
        middle = published[30].at
        filters = [
            EVERYTHING,
            EventFilter(tenant="acme"),
            EventFilter(tenant="acme", session="s1"),
            EventFilter(session="s1", kinds=frozenset({"tool", "memo"})),
            EventFilter(user="ann"),
            EventFilter(since=middle),
            EventFilter(until=middle, kinds=frozenset({"exec"})),
            EventFilter(since=start, until=start + timedelta(hours=1)),
            EventFilter(tenant="nobody"),
        ]
        for written in (False, True):
            if written:
                await history.log.write()
            for wanted in filters:
                found = await history.find(wanted, limit=100)
                assert [event.id for event in found] == [event.id for event in published if wanted.matches(event)]
        assert _ids(published, EventFilter(session="s1"))
        assert not _ids(published, EventFilter(tenant="nobody"))


def _ids(events: list[Event], wanted: EventFilter) -> list[int]:
    return [event.id for event in events if wanted.matches(event)]
