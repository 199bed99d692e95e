"""The log of events against a list: with writes, kills and restarts in between, each event is there once."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.events import EventBus
from sandboxd.history import EventFilter, EventHistory
from sandboxd.history_settings import HistoryOptions
from sandboxd.models.event import Event

Published = tuple[str, str | None, str | None, str]

names = st.sampled_from(["a", "b"])
events = st.tuples(st.sampled_from(["exec", "tool"]), st.none() | names, st.none() | names, st.text(max_size=20))
steps = st.lists(st.one_of(events, st.sampled_from(["write", "kill", "stop"])), max_size=40)
filters = st.builds(
    EventFilter,
    tenant=st.none() | st.just("acme"),
    session=st.none() | names,
    user=st.none() | names,
    kinds=st.sampled_from([frozenset[str](), frozenset({"tool"}), frozenset({"tool", "exec"})]),
)


class Daemon:
    """A log that can be closed, or left as a killed process leaves it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def start(self) -> None:
        self.bus = EventBus(first_id=1)  # the clock stands still: only the log makes ids grow
        self.history = EventHistory(self._directory, HistoryOptions(), self.bus)
        await self.history.log.open(self.bus.next_id)
        self.bus.keep_in(self.history, self.history.log.last_id)

    async def kill(self) -> None:
        self.history.log._journal.close()  # as the kernel does
        await self.history.log._database.aclose()


async def run(directory: Path, given: Sequence[Published | str], wanted: EventFilter) -> None:
    daemon = Daemon(directory)
    await daemon.start()
    model: list[Event] = []
    for step in given:
        if step == "write":
            await daemon.history.log.write()
        elif step == "stop":
            await daemon.history.log.aclose()
            await daemon.start()
        elif step == "kill":
            await daemon.kill()
            await daemon.start()
        elif not isinstance(step, str):
            kind, session, user, text = step
            fields: dict[str, Any] = {"tenant": "acme", "session": session, "user": user, "path": text}
            daemon.bus.publish(kind, **fields)
            model.append(daemon.bus.recent()[-1])
    expected = [event for event in model if wanted.matches(event)]
    found = await daemon.history.find(wanted, limit=1000)
    assert [event.model_dump_json() for event in found] == [event.model_dump_json() for event in expected]
    newest = await daemon.history.find(wanted, limit=5, newest_first=True)
    assert [event.id for event in newest] == [event.id for event in expected[::-1][:5]]
    assert len({event.id for event in model}) == len(model)
    await daemon.history.log.aclose()


@settings(max_examples=60, deadline=None)
@given(steps, filters)
def test_the_log_holds_what_was_published_once_and_in_order(given: list[Published | str], wanted: EventFilter) -> None:
    with tempfile.TemporaryDirectory() as directory:
        anyio.run(run, Path(directory), given, wanted)
