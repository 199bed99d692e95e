"""The life cycle as a table: every state with every event."""

from __future__ import annotations

import ast
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memo.ids import SessionRef, UserId
from sandboxd.errors import InvalidTransition
from sandboxd.limits import Limits
from sandboxd.sandboxes import effects as effects_module
from sandboxd.sandboxes.lifecycle import (
    MOST_TRANSITIONS,
    RESTING,
    Claimed,
    DeathSeen,
    DestroyAsked,
    Effect,
    Event,
    HibernateAsked,
    LaunchAsked,
    Launched,
    LaunchFailed,
    Options,
    OptionsChanged,
    Owner,
    PauseAsked,
    PauseSeen,
    Record,
    RecreateAsked,
    ResumeAsked,
    ResumeSeen,
    RunnerReady,
    Shape,
    State,
    TornDown,
    Transition,
    saved_form,
    step,
)

ADA = Owner(SessionRef.of("acme", "s1"), UserId("ada"))
TODAY = datetime(2026, 1, 1, tzinfo=UTC)

EVENTS: list[Event] = [
    LaunchAsked(),
    Launched("c1"),
    RunnerReady(),
    Claimed(ADA, TODAY),
    LaunchFailed(),
    DeathSeen("oom"),
    PauseSeen(),
    ResumeSeen(),
    PauseAsked(),
    ResumeAsked(),
    HibernateAsked("idle"),
    RecreateAsked(Shape("image:2", Limits()), {"A": "1"}),
    OptionsChanged(Options(labels={"team": "search"}), None),
    DestroyAsked(),
    TornDown(),
]


def record(state: State = State.CREATING, **changes: Any) -> Record:
    base = Record(
        id="0123456789abcdef",
        shape=Shape("image:1", Limits()),
        owner=ADA,
        engine="docker",
        secret="hush",
        created_at=TODAY,
        state=state,
        generation=1,
    )
    return replace(base, **changes)


ALLOWED = {
    (State.CREATING, Launched): State.STARTING,
    (State.CREATING, LaunchFailed): State.DESTROYING,
    (State.CREATING, DeathSeen): State.DESTROYING,
    (State.CREATING, OptionsChanged): State.CREATING,
    (State.CREATING, DestroyAsked): State.DESTROYING,
    (State.STARTING, RunnerReady): State.READY,
    (State.STARTING, LaunchFailed): State.DESTROYING,
    (State.STARTING, DeathSeen): State.DESTROYING,
    (State.STARTING, OptionsChanged): State.STARTING,
    (State.STARTING, DestroyAsked): State.DESTROYING,
    (State.WARM, Claimed): State.STARTING,
    (State.WARM, DeathSeen): State.DESTROYING,
    (State.WARM, DestroyAsked): State.DESTROYING,
    (State.WARM, PauseSeen): State.DESTROYING,
    (State.READY, PauseSeen): State.PAUSED,
    (State.READY, DeathSeen): State.GONE,
    (State.READY, LaunchFailed): State.GONE,
    (State.READY, PauseAsked): State.PAUSED,
    (State.READY, HibernateAsked): State.HIBERNATED,
    (State.READY, RecreateAsked): State.CREATING,
    (State.READY, OptionsChanged): State.READY,
    (State.READY, DestroyAsked): State.DESTROYING,
    (State.PAUSED, ResumeSeen): State.READY,
    (State.PAUSED, ResumeAsked): State.PAUSED,
    (State.PAUSED, HibernateAsked): State.HIBERNATED,
    (State.PAUSED, RecreateAsked): State.CREATING,
    (State.PAUSED, OptionsChanged): State.PAUSED,
    (State.PAUSED, DeathSeen): State.GONE,
    (State.PAUSED, DestroyAsked): State.DESTROYING,
    (State.HIBERNATED, LaunchAsked): State.CREATING,
    (State.HIBERNATED, HibernateAsked): State.HIBERNATED,
    (State.HIBERNATED, RecreateAsked): State.CREATING,
    (State.HIBERNATED, OptionsChanged): State.HIBERNATED,
    (State.HIBERNATED, DeathSeen): State.HIBERNATED,
    (State.HIBERNATED, DestroyAsked): State.DESTROYING,
    (State.GONE, LaunchAsked): State.CREATING,
    (State.GONE, HibernateAsked): State.HIBERNATED,
    (State.GONE, RecreateAsked): State.CREATING,
    (State.GONE, OptionsChanged): State.GONE,
    (State.GONE, DeathSeen): State.GONE,
    (State.GONE, DestroyAsked): State.DESTROYING,
    (State.DESTROYING, DeathSeen): State.DESTROYING,
    (State.DESTROYING, DestroyAsked): State.DESTROYING,
    (State.DESTROYING, TornDown): State.REMOVED,
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_state_handles_every_event_as_the_table_says(state: State, event: Event) -> None:
    expected = ALLOWED.get((state, type(event)))
    if expected is None:
        with pytest.raises(InvalidTransition, match="cannot apply"):
            step(record(state), event)
    else:
        assert step(record(state), event)[0].state is expected


def test_a_pause_keeps_the_container_and_the_calls_in_flight() -> None:
    paused, effects = step(record(State.READY, container="c1"), PauseSeen())
    assert (paused.state, paused.container) == (State.PAUSED, "c1")
    assert effects == [Effect.FREEZE_CALLS, Effect.ANNOUNCE]
    resumed, effects = step(paused, ResumeSeen())
    assert resumed == record(State.READY, container="c1")
    assert effects == [Effect.THAW_CALLS, Effect.ANNOUNCE]


def test_a_failed_relaunch_keeps_the_workspace_and_may_be_tried_again() -> None:
    after, effects = step(record(State.STARTING, generation=2, container="c2"), LaunchFailed())
    assert (after.state, after.cause) == (State.HIBERNATED, "engine")
    assert Effect.REMOVE_CONTAINER in effects
    assert Effect.TEAR_DOWN not in effects


def test_a_failed_first_launch_leaves_nothing() -> None:
    assert step(record(State.STARTING), LaunchFailed())[1] == [Effect.TEAR_DOWN]


def test_a_death_names_its_cause_and_fails_the_calls_first() -> None:
    after, effects = step(record(State.READY, container="c1"), DeathSeen("oom"))
    assert (after.cause, after.container) == ("oom", None)
    assert effects[0] is Effect.FAIL_CALLS


def test_a_relaunch_gets_a_new_container_name() -> None:
    before = record(State.GONE, cause="killed")
    after, effects = step(before, LaunchAsked())
    assert after.container_name != before.container_name
    assert after.cause is None
    assert effects == [Effect.LAUNCH]


def test_a_warm_sandbox_waits_and_is_claimed_only_once() -> None:
    warm, effects = step(record(State.STARTING, owner=None, container="c1"), RunnerReady())
    assert (warm.state, warm.container, effects) == (State.WARM, "c1", [])
    claimed, effects = step(warm, Claimed(ADA, TODAY))
    assert (claimed.owner, claimed.from_pool, claimed.container) == (ADA, True, "c1")
    assert effects == [Effect.HAND_OVER]
    with pytest.raises(InvalidTransition):
        step(claimed, Claimed(ADA, TODAY))
    assert step(claimed, RunnerReady())[0].state is State.READY
    assert step(claimed, LaunchFailed())[1] == [Effect.TEAR_DOWN]  # a second owner must not get it


def test_the_secret_is_not_in_the_text_of_a_record() -> None:
    assert "hush" not in repr(record())


def test_a_new_sandbox_can_only_be_launched() -> None:
    new = record(generation=0)
    launched, effects = step(new, LaunchAsked())
    assert (launched.state, launched.generation, effects) == (State.CREATING, 1, [Effect.LAUNCH])
    for event in EVENTS[1:]:
        with pytest.raises(InvalidTransition):
            step(new, event)
    with pytest.raises(InvalidTransition):
        step(launched, LaunchAsked())  # one launch at a time


def test_a_claimed_sandbox_is_saved_as_ready_so_that_the_next_daemon_takes_it_over() -> None:
    claimed, _ = step(record(State.WARM, owner=None, container="c1"), Claimed(ADA, TODAY))
    ready, _ = step(claimed, RunnerReady())
    assert saved_form(claimed) == ready
    assert saved_form(ready) == ready
    starting = record(State.STARTING, container="c1")
    assert saved_form(starting) == starting


def test_an_invalid_transition_lists_only_the_last_transitions() -> None:
    current = record(generation=0)
    with pytest.raises(InvalidTransition, match="its last transitions: none since this daemon started"):
        step(current, TornDown(), TODAY)
    for event in (LaunchAsked(), Launched("c1"), RunnerReady()):
        current, _ = step(current, event, TODAY)
    with pytest.raises(InvalidTransition) as refused:
        step(current, Claimed(ADA, TODAY), TODAY)
    when = "2026-01-01T00:00:00.000+00:00"
    assert str(refused.value) == (
        "cannot apply Claimed to sandbox 0123456789abcdef in state ready; its last transitions: "
        f"LaunchAsked -> creating at {when}, Launched -> starting at {when}, RunnerReady -> ready at {when}"
    )
    for _ in range(20):
        current, _ = step(current, PauseSeen(), TODAY)
        current, _ = step(current, ResumeSeen(), TODAY)
    assert len(current.past) == MOST_TRANSITIONS
    assert current == record(State.READY, container="c1")  # its history does not affect equality


def test_every_effect_is_decided_by_a_step_and_carried_out() -> None:
    decided: set[Effect] = set()
    for state in State:
        for event in EVENTS:
            for owner in (None, ADA):
                with suppress(InvalidTransition):
                    decided.update(step(record(state, owner=owner, container="c1"), event)[1])
    assert decided == set(Effect)
    carried_out = {
        key.attr
        for node in ast.walk(ast.parse(Path(effects_module.__file__).read_text()))
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name) and key.value.id == "Effect"
    }
    assert carried_out == {effect.name for effect in Effect}


def test_every_event_is_raised_and_only_step_changes_a_record() -> None:
    raised: set[str] = set()
    steps: list[str] = []
    changes: list[str] = []
    for path in sorted(Path(effects_module.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if path.stem == "lifecycle" or not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            raised.add(name)
            if name == "step":
                steps.append(path.stem)
            if name in ("to", "replace") and any(word.arg == "state" for word in node.keywords):
                changes.append(path.stem)
            if name == "to" and "State" in ast.dump(node):
                changes.append(path.stem)
    assert {type(event).__name__ for event in EVENTS} <= raised
    assert {kind.__name__ for kind in get_args(Event)} == {type(event).__name__ for event in EVENTS}
    assert set(steps) == {"effects"}
    assert changes == []


HAS_CONTAINER = (State.STARTING, State.WARM, State.READY, State.PAUSED)


def check_possible(before: Record, after: Record) -> None:
    """Check what is true of every record in every state."""
    assert after.generation >= max(before.generation, 1)
    if after.state is not State.DESTROYING:
        assert (after.container is not None) == (after.state in HAS_CONTAINER)
    assert (after.cause is not None) == (after.state in RESTING or after.cause == "asked")
    assert after.state in RESTING or after.resting_since is None
    assert (after.removal is not None) == (after.state in (State.DESTROYING, State.REMOVED))
    if before.owner is not None:  # its owner never changes, only the environment of its commands
        assert after.owner is not None
        assert (after.owner.ref, after.owner.user) == (before.owner.ref, before.owner.user)
    if after.state in (State.READY, State.PAUSED, *RESTING):
        assert after.owner is not None
    if after.state is State.WARM:
        assert after.owner is None
    if after.from_pool:
        assert after.owner is not None
    assert not saved_form(after).is_claimed
    assert len(after.past) <= MOST_TRANSITIONS


@given(st.lists(st.sampled_from(EVENTS), max_size=30), st.sampled_from([None, ADA]))
def test_no_sequence_of_events_leads_to_an_impossible_state(events: list[Event], owner: Owner | None) -> None:
    current, _ = step(record(owner=owner, generation=0), LaunchAsked(), TODAY)
    for event in events:
        before = current
        try:
            current, effects = step(before, event, TODAY)
        except InvalidTransition as error:
            assert str(before.past[-1]) in str(error)
            continue
        assert before.state is not State.REMOVED
        check_possible(before, current)
        assert current.past[-1] == Transition(type(event).__name__, current.state, TODAY)
        assert len(effects) == len(set(effects))


@given(st.lists(st.sampled_from(EVENTS), max_size=30), st.sampled_from([None, ADA]))
def test_after_any_events_a_sandbox_is_removed_or_can_still_be_destroyed(
    events: list[Event], owner: Owner | None
) -> None:
    current = record(owner=owner)
    for event in events:
        try:
            current, effects = step(current, event)
        except InvalidTransition:
            continue
        assert (Effect.FORGET in effects) == (current.state is State.REMOVED)
        assert current.state not in (State.READY, State.WARM) or current.container is not None
        assert current.owner is not None or current.state is not State.READY
        assert current.owner is None or current.state is not State.WARM
        assert current.state in (*RESTING, State.PAUSED) or current.cause is None
    if current.state is not State.REMOVED:
        current, _ = step(current, DestroyAsked())
        assert step(current, TornDown())[0].state is State.REMOVED


def test_a_workspace_is_removed_only_with_a_reason_on_record() -> None:
    for state in (State.CREATING, State.STARTING):
        assert step(record(state), LaunchFailed())[0].removal == "create_failed"
    assert step(record(State.WARM, owner=None), DeathSeen("oom"))[0].removal == "pool"
    asked, _ = step(record(State.READY), DestroyAsked())
    assert asked.removal == "asked"
    assert step(asked, DestroyAsked("create_failed"))[0].removal == "asked"
