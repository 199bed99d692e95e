"""What a session store promises: order, completeness, and all or nothing.

The seven required methods are always checked; of the others, those that the store has.
"""

from __future__ import annotations

from typing import Any

from memo.errors import InvalidContent, MemoError, SessionTaken
from memo.testing.compaction import (
    COMPACTION_PROMISES,
    compaction_extends_the_notes,
    what_compaction_cut_stays_readable_for_ever,
)
from memo.testing.promises import Factory, Promise, expect, expect_equal, fresh, keep, made, together
from memo.testing.talk import call, expect_no_orphan, new_talk, result, said


async def check_session_store(make: Factory) -> None:
    """Check the seven required methods, and of the optional ones those the store has."""
    await keep(make, SESSION_PROMISES)
    async with made(make) as store:
        optional = [p for method, p in OPTIONAL_PROMISES if callable(getattr(store, method, None))]
    await keep(make, optional)


async def a_session_is_made_once_and_keeps_its_user(store: Any) -> None:
    tenant = fresh("t")
    minted = await store.get_or_create(tenant, "user-1", "agent-1")
    again = await store.get_or_create(tenant, "user-1", "agent-1", minted.session)
    expect_equal(again.session, minted.session, "the session id the second time")
    other = await store.get_or_create(tenant, "user-1", "agent-1")
    expect(other.session != minted.session, "two minted sessions are one")
    try:
        await store.get_or_create(tenant, "user-2", "agent-1", minted.session)
    except SessionTaken:
        pass
    else:
        expect(False, "another user was given the session")
    await store.get_or_create(fresh("t"), "user-2", "agent-1", minted.session)


async def messages_come_back_in_order_and_as_given(store: Any) -> None:
    at = await new_talk(store)
    expect_equal(await at.all(), [], "the messages of a new session")
    given = [
        {"role": "user", "content": "Ünïcödé 日本 🜚\r\n", "extra": {"deep": [1, 2.5, None, True, {"k": "v"}]}},
        call("c1"),
        result("c1"),
        {"role": "assistant", "content": ""},
    ]
    await at.append(*given[:1])
    await at.append(*given[1:])
    expect_equal(await at.all(), given, "the messages")
    many = [said(f"message {number}") for number in range(300)]
    await at.append(*many)
    expect_equal(await at.all(), given + many, "the messages after 300 more")


async def a_limit_keeps_the_newest_oldest_first(store: Any) -> None:
    at = await new_talk(store)
    await at.append(*[said(str(number)) for number in range(10)])
    for limit, expected in ((3, ["7", "8", "9"]), (0, []), (100, [str(n) for n in range(10)])):
        seen = await store.load_messages(at.tenant, at.session, limit)
        expect_equal([m["content"] for m in seen], expected, f"the newest {limit}")


async def a_batch_with_one_bad_message_is_refused_entirely(store: Any) -> None:
    at = await new_talk(store)
    await at.append(said("before"))
    bad: list[Any] = [{"content": "no role"}, {"role": "wizard", "content": ""}, "text", {"role": "user", "x": {1, 2}}]
    for message in bad:
        try:
            await store.append_messages(at.tenant, at.session, [said("first"), message, said("last")])
        except (InvalidContent, TypeError, ValueError):
            expect_equal(await at.all(), [said("before")], f"the messages after {message!r} was refused")
        else:
            expect(False, f"{message!r} was accepted")


async def batches_at_once_are_each_kept_whole(store: Any) -> None:
    at = await new_talk(store)
    await together(10, lambda n: at.append(*[said(f"{n}.{k}") for k in range(5)]))
    seen = [m["content"] for m in await at.all()]
    expect_equal(len(seen), 50, "the number of messages")
    groups = [seen[i : i + 5] for i in range(0, 50, 5)]
    for group in groups:
        writer = group[0].split(".")[0]
        expect_equal(group, [f"{writer}.{k}" for k in range(5)], "one batch")


async def a_budget_drops_the_oldest_and_keeps_at_least_one(store: Any) -> None:
    at = await new_talk(store)
    expect_equal(await at.within(10), [], "the messages of an empty session")
    log = [said(f"{number} " + "word " * 200) for number in range(20)]
    await at.append(*log)
    expect_equal(await at.within(1), log[-1:], "the messages within a budget of 1")
    expect_equal(await at.within(10_000_000), log, "the messages within a great budget")
    last = 0
    for budget in (300, 1000, 2500):
        seen = await at.within(budget)
        expect_equal(seen, log[len(log) - len(seen) :], f"the tail within {budget}")
        expect(last <= len(seen) < len(log), f"{len(seen)} messages fit {budget} tokens, {last} fit fewer")
        last = len(seen)
    expect(last > 1, "no more than one message ever fits")


async def a_budget_never_splits_a_call_from_its_result(store: Any) -> None:
    at = await new_talk(store)
    log: list[dict[str, Any]] = []
    for number in range(6):
        log += [said(f"ask {number}"), call(f"c{number}"), result(f"c{number}")]
    await at.append(*log)
    for budget in range(1, 400, 7):
        seen = await at.within(budget)
        expect(len(seen) >= 1, f"nothing is left within {budget}")
        expect_no_orphan(seen, f"within {budget}")


async def sessions_and_tenants_do_not_see_each_other(store: Any) -> None:
    at = await new_talk(store)
    await at.append(said("mine"))
    for tenant, session in ((fresh("t"), at.session), (at.tenant, fresh("s"))):
        expect_equal(await store.load_all_messages(tenant, session), [], f"the messages of {tenant}:{session}")
    stranger = await new_talk(store)
    await stranger.append(said("theirs"))
    expect_equal(await at.all(), [said("mine")], "my messages")


async def a_turn_is_recorded(store: Any) -> None:
    at = await new_talk(store)
    await at.append(said("ask"))
    await store.record_turn(at.tenant, at.session, {"input": 10, "output": 5, "cacheRead": 2, "cacheWrite": 1})
    for usage in ({"input": -1}, {"output": "many"}):
        try:
            await store.record_turn(at.tenant, at.session, usage)
        except (MemoError, ValueError, TypeError):
            continue
        expect(False, f"the usage {usage} was accepted")


async def a_turn_is_appended_entirely_or_not_at_all(store: Any) -> None:
    at = await new_talk(store)
    await store.append_turn(at.tenant, at.session, [said("ask")], {"input": 1, "output": 2})
    try:
        await store.append_turn(at.tenant, at.session, [said("more")], {"input": -1})
    except MemoError:
        expect_equal(await at.all(), [said("ask")], "the messages after a refused turn")
    else:
        expect(False, "a turn with -1 tokens was accepted")
    session = await store.get_session(at.tenant, at.session)
    expect_equal((session.turns, session.tokens), (1, 3), "turns and tokens")


async def the_sessions_of_a_user_are_all_listed_newest_first(store: Any) -> None:
    tenant, user = fresh("t"), fresh("u")
    sessions = [(await store.get_or_create(tenant, user, "agent-1")).session for _ in range(5)]
    await store.get_or_create(tenant, fresh("u"), "agent-1")
    for session in (sessions[3], sessions[0]):
        await store.append_messages(tenant, session, [said("again")])
    seen = await store.list_sessions_by_user(tenant, user)
    expect_equal([m.session for m in seen][:2], [sessions[0], sessions[3]], "the newest two")
    expect_equal({m.session for m in seen}, set(sessions), "the sessions")
    times = [m.updated_at for m in seen]
    expect(times == sorted(times, reverse=True), "they are not sorted by time")


SESSION_PROMISES: tuple[Promise, ...] = (
    a_session_is_made_once_and_keeps_its_user,
    messages_come_back_in_order_and_as_given,
    a_limit_keeps_the_newest_oldest_first,
    a_batch_with_one_bad_message_is_refused_entirely,
    batches_at_once_are_each_kept_whole,
    a_budget_drops_the_oldest_and_keeps_at_least_one,
    a_budget_never_splits_a_call_from_its_result,
    sessions_and_tenants_do_not_see_each_other,
    a_turn_is_recorded,
    *COMPACTION_PROMISES,
)
OPTIONAL_PROMISES: tuple[tuple[str, Promise], ...] = (
    ("load_full_history", what_compaction_cut_stays_readable_for_ever),
    ("read_memory_document", compaction_extends_the_notes),
    ("append_turn", a_turn_is_appended_entirely_or_not_at_all),
    ("list_sessions_by_user", the_sessions_of_a_user_are_all_listed_newest_first),
)
