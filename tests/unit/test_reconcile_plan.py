"""The plan after a crash, whatever the crash left behind."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from memo.ids import SessionRef
from sandboxd.engine.protocol import Container
from sandboxd.errors import Cause
from sandboxd.sandboxes.lifecycle import Record, State
from sandboxd.sandboxes.reconcile_plan import (
    Adopt,
    FinishDestroy,
    KeepWorkspace,
    MarkGone,
    RemoveContainer,
    RemoveFiles,
    plan,
)
from tests.unit.test_lifecycle import ADA, record


def container(container_id: str, *, running: bool = True, cause: Cause | None = None) -> Container:
    return Container(id=container_id, name=container_id, labels={}, running=running, cause=cause)


def test_a_live_sandbox_is_adopted_as_it_is() -> None:
    ready = record(State.READY, container="c1")
    assert plan([ready], [container("c1")], {ready.id}, {ready.id}) == [Adopt(ready)]


def test_a_sandbox_whose_container_died_records_the_cause_and_keeps_its_workspace() -> None:
    ready = record(State.READY, container="c1")
    dead = container("c1", running=False, cause="oom")
    assert plan([ready], [dead], {ready.id}, {ready.id}) == [RemoveContainer("c1"), MarkGone(ready, "oom")]


def test_a_paused_sandbox_is_adopted_and_its_death_is_recorded() -> None:
    paused = record(State.PAUSED, container="c1")
    assert plan([paused], [container("c1")], {paused.id}, {paused.id}) == [Adopt(paused)]
    assert plan([paused], [], {paused.id}, {paused.id}) == [MarkGone(paused, "engine")]


def test_a_container_whose_mirror_was_removed_is_stopped_and_the_workspace_kept() -> None:
    for state in (State.READY, State.PAUSED):
        live = record(state, container="c1")
        assert plan([live], [container("c1")], {live.id}, {live.id}, {"c1"}) == [
            RemoveContainer("c1"),
            MarkGone(live, "mirror"),
        ]
    ready = record(State.READY, container="c1")
    dead = container("c1", running=False, cause="oom")
    assert MarkGone(ready, "oom") in plan([ready], [dead], {ready.id}, {ready.id}, {"c1"})
    warm = record(State.WARM, owner=None, container="c1")
    assert plan([warm], [container("c1")], {warm.id}, {warm.id}, {"c1"}) == [RemoveContainer("c1"), FinishDestroy(warm)]


def test_a_sandbox_whose_container_vanished_was_ended_by_the_engine() -> None:
    ready = record(State.READY, container="c1")
    assert plan([ready], [], {ready.id}, {ready.id}) == [MarkGone(ready, "engine")]


def test_a_create_that_was_never_acknowledged_leaves_nothing() -> None:
    for state in (State.CREATING, State.STARTING):
        half = record(state, container="c1" if state is State.STARTING else None)
        assert plan([half], [container("c1")], {half.id}, {half.id}) == [RemoveContainer("c1"), FinishDestroy(half)]


def test_a_relaunch_that_was_never_acknowledged_keeps_the_workspace() -> None:
    half = record(State.STARTING, generation=2, container="c2")
    assert plan([half], [container("c2")], {half.id}, {half.id}) == [RemoveContainer("c2"), MarkGone(half, "engine")]


def test_a_warm_sandbox_is_kept_and_one_whose_claim_was_never_acknowledged_is_not() -> None:
    warm = record(State.WARM, owner=None, container="c1")
    assert plan([warm], [container("c1")], {warm.id}, {warm.id}) == [Adopt(warm)]
    assert plan([warm], [], {warm.id}, {warm.id}) == [FinishDestroy(warm)]
    claimed = record(State.STARTING, container="c1", from_pool=True)
    assert plan([claimed], [container("c1")], {claimed.id}, {claimed.id}) == [
        RemoveContainer("c1"),
        FinishDestroy(claimed),
    ]


def test_a_destroy_that_was_interrupted_is_finished() -> None:
    going = record(State.DESTROYING, container="c1")
    assert plan([going], [container("c1")], {going.id}, {going.id}) == [RemoveContainer("c1"), FinishDestroy(going)]


def test_orphans_without_a_record_are_removed_containers_first() -> None:
    assert plan([], [container("stray")], {"feed"}, ()) == [RemoveContainer("stray"), RemoveFiles("feed")]


def test_a_workspace_without_a_record_is_kept() -> None:
    assert plan([], [], {"feed"}, {"feed"}) == [RemoveFiles("feed"), KeepWorkspace("feed")]


def test_a_sandbox_that_is_gone_keeps_its_directories() -> None:
    gone = record(State.GONE, cause="oom")
    assert plan([gone], [], {gone.id}, {gone.id}) == []


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Record], list[Container], set[str]]:
    names = [f"{number:016x}" for number in range(5)]
    records = [
        record(
            state,
            id=name,
            owner=None if state is State.WARM else replace(ADA, ref=SessionRef.of("acme", f"s{name}")),
            container=f"c{name}" if state in (State.STARTING, State.WARM, State.READY) else None,
            cause="oom" if state is State.GONE else None,
            generation=draw(st.integers(1, 2)),
        )
        for name in draw(st.sets(st.sampled_from(names)))
        for state in [draw(st.sampled_from([state for state in State if state is not State.REMOVED]))]
    ]
    containers = [container(f"c{name}", running=draw(st.booleans())) for name in draw(st.sets(st.sampled_from(names)))]
    return records, containers, draw(st.sets(st.sampled_from(names)))


@given(worlds())
def test_every_container_is_adopted_or_removed_and_every_directory_has_an_owner(
    world: tuple[list[Record], list[Container], set[str]],
) -> None:
    records, containers, on_disk = world
    actions = plan(records, containers, on_disk, on_disk)
    adopted = {action.record.container for action in actions if isinstance(action, Adopt)}
    removed = {action.container for action in actions if isinstance(action, RemoveContainer)}
    assert adopted | removed == {item.id for item in containers}
    assert not adopted & removed
    assert all(item.running for item in containers if item.id in adopted)
    strays = {action.id for action in actions if isinstance(action, RemoveFiles)}
    assert strays == on_disk - {item.id for item in records}
    assert {action.id for action in actions if isinstance(action, KeepWorkspace)} == strays
