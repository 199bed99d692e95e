"""What a session store promises: order, completeness, atomic appends, and compaction that loses nothing.

The seven required methods are always checked, the optional ones if the store has them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from memo.compaction import CompactionOptions
from memo.errors import InvalidContent, MemoError, SessionTaken
from memo.messages import call_ids, result_id
from memo.sessions import SessionMeta, compact_session, session_id_of
from memo.testing.promises import Factory, Promise, expect, expect_equal, fresh, keep, made, together


async def check_session_store(make: Factory) -> None:
    """Check the seven required methods, and the optional ones that the store has."""
    await keep(make, SESSION_PROMISES)
    async with made(make) as store:
        optional = [p for method, p in OPTIONAL_PROMISES if callable(getattr(store, method, None))]
    await keep(make, optional)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session that the promises append to and read from."""

    store: Any
    tenant: str
    session: str

    async def append(self, *messages: dict[str, Any]) -> None:
        await self.store.append_messages(self.tenant, self.session, list(messages))

    async def all(self) -> list[dict[str, Any]]:
        return list(await self.store.load_all_messages(self.tenant, self.session))

    async def within(self, budget: int) -> list[dict[str, Any]]:
        return list(await self.store.load_messages_with_budget(self.tenant, self.session, budget))

    async def compact(self, summarize: Any, **options: Any) -> bool:
        given = CompactionOptions.parse(options)
        return await compact_session(self.store, self.tenant, self.session, summarize, given)


async def new_conversation(store: Any) -> Conversation:
    at = Conversation(store, fresh("t"), fresh("s"))
    await store.get_or_create(at.tenant, "user-1", "agent-1", at.session)
    return at


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def call(name: str) -> dict[str, Any]:
    block = {"type": "toolCall", "id": name, "name": "Bash", "arguments": {"command": "true"}}
    return {"role": "assistant", "content": [{"type": "text", "text": "running"}, block]}


def result(name: str) -> dict[str, Any]:
    return {"role": "toolResult", "toolCallId": name, "content": [{"type": "text", "text": f"result of {name}"}]}


def expect_no_orphan(messages: list[dict[str, Any]], where: str) -> None:
    made_calls: set[str] = set()
    for message in messages:
        made_calls |= call_ids(message)
        answered = result_id(message)
        expect(answered is None or answered in made_calls, f"{where}, the result of {answered} has lost its call")


# Specification: 001.4, 001.5
async def a_session_is_created_once_and_keeps_its_user(store: Any) -> None:
    tenant = fresh("t")
    minted = session_id_of(await store.get_or_create(tenant, "user-1", "agent-1"))
    again = session_id_of(await store.get_or_create(tenant, "user-1", "agent-1", minted))
    expect_equal(again, minted, "the session id the second time")
    other = session_id_of(await store.get_or_create(tenant, "user-1", "agent-1"))
    expect(other != minted, "two generated session ids are equal")
    try:
        await store.get_or_create(tenant, "user-2", "agent-1", minted)
    except SessionTaken:
        pass
    else:
        expect(False, "another user was given the session")
    await store.get_or_create(fresh("t"), "user-2", "agent-1", minted)


# Specification: 001.10, 001.11
async def messages_come_back_in_order_and_unchanged(store: Any) -> None:
    at = await new_conversation(store)
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


# Specification: 001.7
async def a_limit_keeps_the_newest_messages_oldest_first(store: Any) -> None:
    at = await new_conversation(store)
    await at.append(*[said(str(number)) for number in range(10)])
    for limit, expected in ((3, ["7", "8", "9"]), (0, []), (100, [str(n) for n in range(10)])):
        seen = await store.load_messages(at.tenant, at.session, limit)
        expect_equal([m["content"] for m in seen], expected, f"the newest {limit}")


async def a_batch_with_one_bad_message_is_refused_entirely(store: Any) -> None:
    at = await new_conversation(store)
    await at.append(said("before"))
    bad: list[Any] = [{"content": "no role"}, {"role": "wizard", "content": ""}, "text", {"role": "user", "x": {1, 2}}]
    for message in bad:
        try:
            await store.append_messages(at.tenant, at.session, [said("first"), message, said("last")])
        except (InvalidContent, TypeError, ValueError):
            expect_equal(await at.all(), [said("before")], f"the messages after {message!r} was refused")
        else:
            expect(False, f"{message!r} was accepted")


# Specification: 001.11
async def concurrent_batches_are_atomic(store: Any) -> None:
    at = await new_conversation(store)
    await together(10, lambda n: at.append(*[said(f"{n}.{k}") for k in range(5)]))
    seen = [m["content"] for m in await at.all()]
    expect_equal(len(seen), 50, "the number of messages")
    groups = [seen[i : i + 5] for i in range(0, 50, 5)]
    for group in groups:
        writer = group[0].split(".")[0]
        expect_equal(group, [f"{writer}.{k}" for k in range(5)], "one batch")


# Specification: 001.8
async def a_budget_drops_the_oldest_messages_and_keeps_at_least_one(store: Any) -> None:
    at = await new_conversation(store)
    expect_equal(await at.within(10), [], "the messages of an empty session")
    log = [said(f"{number} " + "word " * 200) for number in range(20)]
    await at.append(*log)
    expect_equal(await at.within(1), log[-1:], "the messages within a budget of 1")
    expect_equal(await at.within(10_000_000), log, "the messages within a large budget")
    last = 0
    for budget in (300, 1000, 2500):
        seen = await at.within(budget)
        expect_equal(seen, log[len(log) - len(seen) :], f"the tail within {budget}")
        expect(last <= len(seen) < len(log), f"{len(seen)} messages fit {budget} tokens, {last} fit fewer")
        last = len(seen)
    expect(last > 1, "no more than one message ever fits")


async def a_budget_never_splits_a_call_from_its_result(store: Any) -> None:
    at = await new_conversation(store)
    log: list[dict[str, Any]] = []
    for number in range(6):
        log += [said(f"ask {number}"), call(f"c{number}"), result(f"c{number}")]
    await at.append(*log)
    for budget in range(1, 400, 7):
        seen = await at.within(budget)
        expect(len(seen) >= 1, f"nothing is left within {budget}")
        expect_no_orphan(seen, f"within {budget}")


async def sessions_and_tenants_do_not_see_each_other(store: Any) -> None:
    at = await new_conversation(store)
    await at.append(said("mine"))
    for tenant, session in ((fresh("t"), at.session), (at.tenant, fresh("s"))):
        expect_equal(await store.load_all_messages(tenant, session), [], f"the messages of {tenant}:{session}")
    stranger = await new_conversation(store)
    await stranger.append(said("theirs"))
    expect_equal(await at.all(), [said("mine")], "my messages")


# Specification: 001.12
async def a_turn_is_recorded(store: Any) -> None:
    at = await new_conversation(store)
    await at.append(said("ask"))
    await store.record_turn(at.tenant, at.session, {"input": 10, "output": 5, "cacheRead": 2, "cacheWrite": 1})
    for usage in ({"input": -1}, {"output": "many"}):
        try:
            await store.record_turn(at.tenant, at.session, usage)
        except (MemoError, ValueError, TypeError):
            continue
        expect(False, f"the usage {usage} was accepted")


# Specification: 001.83
async def a_turn_is_appended_atomically(store: Any) -> None:
    at = await new_conversation(store)
    await store.append_turn(at.tenant, at.session, [said("ask")], {"input": 1, "output": 2})
    try:
        await store.append_turn(at.tenant, at.session, [said("more")], {"input": -1})
    except MemoError:
        expect_equal(await at.all(), [said("ask")], "the messages after a refused turn")
    else:
        expect(False, "a turn with -1 tokens was accepted")
    session = await store.get_session(at.tenant, at.session)
    expect_equal((session.turns, session.tokens), (1, 3), "turns and tokens")


# Specification: 001.29, 001.30
async def all_sessions_of_a_user_are_listed_newest_first(store: Any) -> None:
    tenant, user = fresh("t"), fresh("u")
    sessions = [session_id_of(await store.get_or_create(tenant, user, "agent-1")) for _ in range(5)]
    await store.get_or_create(tenant, fresh("u"), "agent-1")
    for session in (sessions[3], sessions[0]):
        await store.append_messages(tenant, session, [said("again")])
    seen = [SessionMeta.parse(meta) for meta in await store.list_sessions_by_user(tenant, user)]
    expect_equal([m.session for m in seen][:2], [sessions[0], sessions[3]], "the newest two")
    expect_equal({m.session for m in seen}, set(sessions), "the sessions")
    times = [m.updated_at for m in seen]
    expect(times == sorted(times, reverse=True), "they are not sorted by time")


# Specification: 001.13, 001.16, 001.17, 001.18
async def compaction_replaces_the_oldest_messages_with_a_summary(store: Any) -> None:
    at = await new_conversation(store)
    log = [said(f"message {number} " + "word " * 50) for number in range(30)]
    await at.append(*log)
    given: list[Any] = []

    async def summarize(messages: list[Any]) -> str:
        given.extend(messages)
        return "they talked"

    expect(await at.compact(summarize, trigger_tokens=1_000_000) is False, "it compacted below the trigger")
    expect(await at.compact(summarize, trigger_tokens=10, min_messages=31) is False, "it compacted too few messages")
    expect_equal((given, await at.all()), ([], log), "what the summariser was given, and the log")
    expect(await at.compact(summarize, trigger_tokens=10) is True, "it did not compact")
    expect_equal(given, log[:15], "what the summariser was given")
    seen = await at.all()
    expect_equal(seen[1:], log[15:], "the tail")
    expect("they talked" in str(seen[0]["content"]), "the first message is not the summary")
    await at.append(said("after"))
    expect_equal((await at.all())[-1], said("after"), "the newest message after a compaction")


async def a_summariser_that_fails_or_returns_nothing_changes_nothing(store: Any) -> None:
    at = await new_conversation(store)
    log = [said(f"message {number}") for number in range(30)]
    await at.append(*log)

    async def fail(messages: list[Any]) -> str:
        raise ConnectionError("the model is down")

    async def say_nothing(messages: list[Any]) -> str:
        return "  \n"

    with contextlib.suppress(ConnectionError):
        expect(await at.compact(fail, force=True) is False, "a failed compaction reported success")
    expect_equal(await at.all(), log, "the log after the summariser failed")
    expect(await at.compact(say_nothing, force=True) is False, "an empty summary was used")
    expect_equal(await at.all(), log, "the log after the summariser returned nothing")


async def compaction_never_splits_a_call_from_its_result(store: Any) -> None:
    at = await new_conversation(store)
    log = [said("ask"), call("a"), result("a"), call("b"), result("b"), said("and"), call("c"), result("c")]
    await at.append(*log)
    for fraction in (0.25, 0.5, 0.9):
        await at.compact(lambda messages: f"summary of {len(messages)}", force=True, compact_fraction=fraction)
        expect_no_orphan(await at.all(), f"after a cut at {fraction}")


async def messages_that_compaction_cut_stay_readable(store: Any) -> None:
    at = await new_conversation(store)
    log: list[dict[str, Any]] = []
    for turn in range(4):
        batch = [said(f"turn {turn} message {number}") for number in range(6)]
        log += batch
        await at.append(*batch)
        await at.compact(lambda messages: "a summary", force=True)
    expect(len(await at.all()) < len(log), "nothing was compacted")
    expect_equal(await store.load_full_history(at.tenant, at.session), log, "the full history")


async def compaction_extends_the_notes(store: Any) -> None:
    at = await new_conversation(store)
    await store.write_memory_document(at.tenant, at.session, "session", "NOTES.md", "my notes\n")
    await at.append(*[said(str(number)) for number in range(10)])
    await at.compact(lambda messages: "they counted to ten", force=True)
    notes = await store.read_memory_document(at.tenant, at.session, "session", "NOTES.md")
    expect(notes.startswith("my notes\n") and "they counted to ten" in notes, f"the notes are {notes!r}")


COMPACTION_PROMISES: tuple[Promise, ...] = (
    compaction_replaces_the_oldest_messages_with_a_summary,
    a_summariser_that_fails_or_returns_nothing_changes_nothing,
    compaction_never_splits_a_call_from_its_result,
)
SESSION_PROMISES: tuple[Promise, ...] = (
    a_session_is_created_once_and_keeps_its_user,
    messages_come_back_in_order_and_unchanged,
    a_limit_keeps_the_newest_messages_oldest_first,
    a_batch_with_one_bad_message_is_refused_entirely,
    concurrent_batches_are_atomic,
    a_budget_drops_the_oldest_messages_and_keeps_at_least_one,
    a_budget_never_splits_a_call_from_its_result,
    sessions_and_tenants_do_not_see_each_other,
    a_turn_is_recorded,
    *COMPACTION_PROMISES,
)
OPTIONAL_PROMISES: tuple[tuple[str, Promise], ...] = (
    ("load_full_history", messages_that_compaction_cut_stay_readable),
    ("read_memory_document", compaction_extends_the_notes),
    ("append_turn", a_turn_is_appended_atomically),
    ("list_sessions_by_user", all_sessions_of_a_user_are_listed_newest_first),
)
