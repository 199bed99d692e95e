"""Compaction on real stores: with concurrent writers, with full notes, and twice at the same time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from memo.documents import DocumentKey
from memo.errors import Absent, InvalidContent
from memo.limits import StoreLimits
from memo.sessions import Usage
from memo.stores import BaseStore, StoreOptions
from tests.memo.conftest import MakeStore

pytestmark = pytest.mark.anyio


def said(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"message {number}"}


async def talk(store: BaseStore, count: int) -> None:
    await store.get_or_create("acme", "ann", "a", "s1")
    await store.append_messages("acme", "s1", [said(n) for n in range(count)])


async def test_messages_appended_while_the_summariser_works_are_kept(store: BaseStore) -> None:
    await talk(store, 10)

    async def summarize(messages: list[Any]) -> str:
        await store.append_messages("acme", "s1", [said(10)])
        return "summary"

    assert await store.compact_if_needed("acme", "s1", summarize, force=True)
    assert (await store.load_all_messages("acme", "s1"))[1:] == [said(n) for n in range(5, 11)]
    assert await store.load_full_history("acme", "s1") == [said(n) for n in range(11)]


async def test_one_of_two_concurrent_compactions_wins_and_nothing_is_lost(store: BaseStore) -> None:
    await talk(store, 10)
    both = anyio.Event()
    waiting = 0
    done: list[bool] = []

    async def summarize(messages: list[Any]) -> str:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            both.set()
        await both.wait()
        return "summary"

    async def compact() -> None:
        done.append(await store.compact_if_needed("acme", "s1", summarize, force=True))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(compact)
        tasks.start_soon(compact)
    assert sorted(done) == [False, True]
    assert await store.load_full_history("acme", "s1") == [said(n) for n in range(10)]
    assert len(await store.load_all_messages("acme", "s1")) == 6


async def test_compaction_writes_a_dated_section_that_the_feed_reports(store: BaseStore) -> None:
    await talk(store, 4)
    assert await store.compact_if_needed("acme", "s1", lambda m: "we met", force=True, workspace_snapshot="a.py")
    key = DocumentKey.of("acme", "s1", "session", "NOTES.md")
    (revision,) = await store.document_history(key)
    assert (revision.actor, revision.session) == ("compaction", "s1")
    notes = await store.read_document(key)
    assert notes is not None
    assert f"{revision.at:%Y-%m-%d}" in notes.content
    async with store.changes() as feed:
        assert (await anext(feed)).key == key
    first = (await store.load_all_messages("acme", "s1"))[0]
    assert first == {"role": "user", "content": "[Conversation summary]: we met\n\n[Workspace]: a.py"}


async def test_full_notes_do_not_stop_compaction(make_store: MakeStore) -> None:
    async with make_store(StoreOptions(limits=StoreLimits(document_bytes=100))) as store:
        await talk(store, 10)
        await store.write_memory_document("acme", "s1", "session", "NOTES.md", "x" * 90)
        assert await store.compact_if_needed("acme", "s1", lambda m: "long summary", force=True)
        assert await store.read_memory_document("acme", "s1", "session", "NOTES.md") == "x" * 90
        assert len(await store.load_all_messages("acme", "s1")) == 6


async def test_the_trigger_counts_what_is_visible(store: BaseStore) -> None:
    await store.get_or_create("acme", "ann", "a", "s1")
    await store.append_messages("acme", "s1", [{"role": "user", "content": "x" * 400} for _ in range(40)])
    calls = 0

    def summarize(messages: list[Any]) -> str:
        nonlocal calls
        calls += 1
        return "s"

    assert await store.compact_if_needed("acme", "s1", summarize, trigger_tokens=40 * 104)
    assert not await store.compact_if_needed("acme", "s1", summarize, trigger_tokens=40 * 104)
    assert calls == 1


async def test_writing_to_a_session_that_does_not_exist_is_an_error(store: BaseStore) -> None:
    for call in (
        store.append_messages("acme", "s1", [said(1)]),
        store.record_turn("acme", "s1", Usage(1)),
        store.compact_if_needed("acme", "s1", lambda m: "s", force=True),
    ):
        with pytest.raises(Absent, match="cannot find session acme:s1"):
            await call
    assert await store.load_messages("acme", "s1") == []
    assert await store.get_session("acme", "s1") is None


async def test_an_invalid_fraction_is_refused(store: BaseStore) -> None:
    await talk(store, 4)
    for fraction in (0, -1, 1.5):
        with pytest.raises(InvalidContent, match="compact_fraction"):
            await store.compact_if_needed("acme", "s1", lambda m: "s", force=True, compact_fraction=fraction)


async def test_the_same_request_appends_once(store: BaseStore) -> None:
    await talk(store, 1)
    for _ in range(3):
        await store.append_turn("acme", "s1", [said(1)], {"input": 2}, request="turn-1")
    session = await store.get_session("acme", "s1")
    assert session is not None
    assert (session.turns, session.tokens, session.message_count) == (1, 2, 2)


async def test_users_with_sessions_are_listed(store: BaseStore) -> None:
    for tenant, user in (("b", "zed"), ("a", "ann"), ("a", "bob"), ("a", "ann")):
        await store.get_or_create(tenant, user, "agent")
    assert [str(user) for user in await store.list_users()] == ["a:ann", "a:bob", "b:zed"]
