"""What orchestration persistence promises.

The factory under test makes a factory: session → persistence. The meaning of events is not checked.
"""

from __future__ import annotations

from typing import Any

from memo.ids import SessionRef
from memo.testing.promises import Factory, Promise, expect, expect_equal, fresh, keep, together


async def check_orchestration(make: Factory) -> None:
    await keep(make, ORCHESTRATION_PROMISES)


def _ref() -> SessionRef:
    return SessionRef.of(fresh("t"), fresh("s"))


def _event(number: int) -> dict[str, Any]:
    return {"eventId": f"e{number}", "type": "step", "payload": {"number": number}}


# Specification: 001.41, 001.42
async def events_come_back_in_order_and_unchanged(factory: Any) -> None:
    persistence = factory(_ref())
    expect_equal(await persistence.load_events(), [], "the events of a new session")
    for number in range(30):
        await persistence.append_event(_event(number))
    expect_equal(await persistence.load_events(), [_event(n) for n in range(30)], "the events")
    await together(10, lambda number: persistence.append_event(_event(100 + number)))
    expect_equal(len(await persistence.load_events()), 40, "the number of events after ten concurrent appends")


# Specification: 001.43, 001.44
async def the_latest_checkpoint_is_the_snapshot(factory: Any) -> None:
    persistence = factory(_ref())
    expect(await persistence.load_snapshot() is None, "a new session has a snapshot")
    for number in range(3):
        await persistence.write_checkpoint({"agents": {"a": number}})
    expect_equal(await persistence.load_snapshot(), {"agents": {"a": 2}}, "the snapshot")


# Specification: 001.45
async def recovery_is_the_checkpoint_and_the_events_after_it(factory: Any) -> None:
    persistence = factory(_ref())
    for number in range(3):
        await persistence.append_event(_event(number))
    fresh_state = await persistence.recover_state()
    expect(fresh_state.snapshot is None, "there is a snapshot without a checkpoint")
    expect_equal(fresh_state.events, [_event(n) for n in range(3)], "the events to replay without a checkpoint")
    await persistence.write_checkpoint({"count": 3})
    await persistence.append_event(_event(3))
    state = await persistence.recover_state()
    expect_equal((state.snapshot, state.events), ({"count": 3}, [_event(3)]), "snapshot and events")
    await persistence.write_checkpoint({"count": 2, "lastEventId": "e1"})
    state = await persistence.recover_state()
    expect_equal(state.events, [_event(2), _event(3)], "the events after the one the checkpoint names")


# Specification: 001.45
async def an_unknown_checkpoint_means_replay_from_the_first_event(factory: Any) -> None:
    persistence = factory(_ref())
    for number in range(3):
        await persistence.append_event(_event(number))
    await persistence.write_checkpoint({"count": 9, "lastEventId": "an unknown event"})
    state = await persistence.recover_state()
    expect(state.snapshot is None, f"it starts from {state.snapshot}")
    expect_equal(state.events, [_event(n) for n in range(3)], "the events to replay")


# Specification: 001.45
async def a_checkpoint_without_any_event_is_the_state(factory: Any) -> None:
    persistence = factory(_ref())
    await persistence.write_checkpoint({"agents": {"a": 1}, "lastEventId": "e9"})
    state = await persistence.recover_state()
    expect_equal((state.snapshot, state.events), ({"agents": {"a": 1}, "lastEventId": "e9"}, []), "snapshot and events")


# Specification: 001.41, 001.46, 001.47, 001.48
async def mailboxes_and_histories_are_kept_per_agent(factory: Any) -> None:
    ref = _ref()
    persistence = factory(ref)
    expect_equal(await persistence.load_mailbox_events("a"), [], "a new mailbox")
    expect_equal(await persistence.load_mailbox_state("a"), {}, "a new mailbox state")
    expect_equal(await persistence.load_agent_history("a"), [], "a new history")
    for agent in ("a", "b"):
        for number in range(5):
            await persistence.append_mailbox_event(agent, {"to": agent, "number": number})
        await persistence.write_mailbox_state(agent, {"processed": 1})
        await persistence.write_mailbox_state(agent, {"processed": 2, "agent": agent})
        await persistence.write_agent_history(agent, [{"role": "user", "content": f"for {agent}"}])
    for agent in ("a", "b"):
        expected = [{"to": agent, "number": number} for number in range(5)]
        expect_equal(await persistence.load_mailbox_events(agent), expected, f"the mailbox of {agent}")
        expect_equal(await persistence.load_mailbox_state(agent), {"processed": 2, "agent": agent}, "its state")
        history = [{"role": "user", "content": f"for {agent}"}]
        expect_equal(await persistence.load_agent_history(agent), history, "its history")
    expect_equal(await persistence.load_events(), [], "the session's own events")
    if hasattr(persistence, "list_agents"):
        expect_equal(await persistence.list_agents(), ["a", "b"], "the agents")
    stranger = factory(SessionRef.of(fresh("t"), ref.session))
    expect_equal(await stranger.load_mailbox_events("a"), [], "the mailbox of the same agent for another tenant")


ORCHESTRATION_PROMISES: tuple[Promise, ...] = (
    events_come_back_in_order_and_unchanged,
    the_latest_checkpoint_is_the_snapshot,
    recovery_is_the_checkpoint_and_the_events_after_it,
    an_unknown_checkpoint_means_replay_from_the_first_event,
    a_checkpoint_without_any_event_is_the_state,
    mailboxes_and_histories_are_kept_per_agent,
)
