"""Which containers count as frozen: the newest report wins, whether it is an event or a list."""

from __future__ import annotations

import pytest

from sandboxd.engine.protocol import Container
from sandboxd.sandboxes.lifecycle import PauseSeen, ResumeSeen, State
from sandboxd.sandboxes.pauses import Pauses
from tests.unit.test_lifecycle import record

pytestmark = pytest.mark.anyio


def container(*, paused: bool) -> Container:
    return Container(id="c1", name="c1", labels={}, running=True, paused=paused)


async def test_an_event_and_a_list_both_lead_to_the_same_step() -> None:
    told, listed = Pauses(), Pauses()
    told.hear("c1", is_frozen=True)

    async def find() -> list[Container]:
        return [container(paused=True)]

    assert await listed.read(find) == [container(paused=True)]
    for pauses in (told, listed):
        assert pauses.next_event(record(State.READY, container="c1")) == PauseSeen()
        assert pauses.next_event(record(State.PAUSED, container="c1")) is None
        pauses.hear("c1", is_frozen=False)
        assert pauses.next_event(record(State.READY, container="c1")) is None
        assert pauses.next_event(record(State.PAUSED, container="c1")) == ResumeSeen()


async def test_a_list_never_overrides_an_event_that_arrived_while_it_was_made() -> None:
    pauses = Pauses()
    lists = [[container(paused=True)], [container(paused=False)]]

    async def find() -> list[Container]:
        found = lists.pop(0)
        if lists:
            pauses.hear("c1", is_frozen=False)  # unpaused after it was listed
        return found

    await pauses.read(find)
    assert not pauses.is_frozen(record(State.PAUSED, container="c1"))
    assert lists == []


async def test_a_sandbox_with_a_move_under_way_is_left_alone() -> None:
    pauses = Pauses()
    pauses.hear("c1", is_frozen=True)
    for state in (State.CREATING, State.STARTING, State.GONE, State.DESTROYING, State.REMOVED):
        assert pauses.next_event(record(state, container="c1")) is None
