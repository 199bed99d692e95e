"""What a store of another program may return and take: plain objects, times in several forms, options as one object."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from memo import CompactionOptions, InMemoryStore
from memo.app import create_agent_app
from memo.errors import InvalidContent, Unavailable
from memo.sessions import Session, SessionMeta, compact_session, moment_of, session_id_of
from memo.stores import BaseStore
from memo.testing import check_session_store
from memo.wrap import LogProvider

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


# Specification: 001.6
@pytest.mark.parametrize(
    "answer",
    [
        {"sessionId": "s1"},
        {"session_id": "s1"},
        {"session": "s1", "extra": 1},
        SimpleNamespace(session="s1"),
        SimpleNamespace(sessionId="s1"),
        "s1",
        Session.parse({"sessionId": "s1"}, "acme", "ann", "agent"),
    ],
)
def test_a_session_is_read_from_every_shape(answer: object) -> None:
    assert session_id_of(answer) == "s1"
    session = Session.parse(answer, "acme", "ann", "agent")
    assert (session.tenant, session.user, session.agent, session.turns) == ("acme", "ann", "agent", 0)


def test_an_answer_that_names_no_session_is_refused() -> None:
    for answer in (None, {}, 7, {"id": "s1"}, SimpleNamespace()):
        with pytest.raises(Unavailable, match="does not name a session"):
            session_id_of(answer)


# Specification: 001.30
@pytest.mark.parametrize(
    "value",
    [NOON, NOON.replace(tzinfo=None), 1_767_268_800, 1_767_268_800_000, 1_767_268_800.0, "2026-01-01T12:00:00Z"],
)
def test_a_time_is_read_from_every_form(value: object) -> None:
    assert moment_of(value) == NOON
    assert SessionMeta.parse({"sessionId": "s1", "updatedAt": value}).updated_at == NOON


@pytest.mark.parametrize("value", [None, "yesterday", True, float("nan"), float("inf"), 10**30, {}])
def test_a_time_that_cannot_be_read_is_refused(value: object) -> None:
    with pytest.raises(Unavailable, match="a time that cannot be read"):
        moment_of(value)


# Specification: 001.9, 001.14
def test_the_defaults_are_those_of_the_guide() -> None:
    options = CompactionOptions()
    assert (options.trigger_tokens, options.compact_fraction) == (80_000, 0.5)
    for method in (BaseStore.load_messages_with_budget, InMemoryStore.load_messages_with_budget):
        assert inspect.signature(method).parameters["token_budget"].default == 100_000


# Specification: 001.19
def test_options_may_be_one_object_keywords_or_both() -> None:
    expected = CompactionOptions(trigger_tokens=5, min_messages=2)
    assert CompactionOptions.parse({"triggerTokens": 5, "minMessages": 2}) == expected
    assert CompactionOptions.parse({"trigger_tokens": 5, "min_messages": 2}) == expected
    assert CompactionOptions.parse(trigger_tokens=5, min_messages=2) == expected
    assert CompactionOptions.parse(expected) == expected
    assert CompactionOptions.parse({"triggerTokens": 9, "minMessages": 2}, trigger_tokens=5) == expected
    assert CompactionOptions.parse({"triggerTokens": None, "preloadedMessages": []}) == CompactionOptions.parse(None)
    for bad in ({"trigger": 5}, 7, {"compactFraction": 0}):
        with pytest.raises(InvalidContent, match="cannot compact"):
            CompactionOptions.parse(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_wrapped", [False, True])
async def test_our_stores_take_options_in_every_form(store: BaseStore, is_wrapped: bool) -> None:
    used: Any = LogProvider(store) if is_wrapped else store
    small: Mapping[str, Any] = {"triggerTokens": 1, "minMessages": 2}
    forms: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((small,), {}),
        (({"trigger_tokens": 1, "min_messages": 2},), {}),
        ((CompactionOptions(1, min_messages=2),), {}),
        ((), {"trigger_tokens": 1, "min_messages": 2}),
        ((), {"options": small}),
    ]
    for number, (args, named) in enumerate(forms):
        session = f"s{number}"
        await used.get_or_create("acme", "ann", "agent", session)
        await used.append_messages("acme", session, [{"role": "user", "content": str(n)} for n in range(4)])
        assert not await used.compact_if_needed("acme", session, lambda _: "never")
        assert await used.compact_if_needed("acme", session, lambda _: "a summary", *args, **named)
    with pytest.raises(InvalidContent, match="there is no option trigger"):
        await used.compact_if_needed("acme", "s0", lambda _: "x", {"trigger": 1})


# Specification: 001.19
async def test_a_foreign_store_gets_the_options_as_it_takes_them() -> None:
    seen: list[Any] = []

    class OneObject:
        async def compact_if_needed(self, tenant: str, session: str, summarize: Any, options: Any = None) -> bool:
            seen.append((options["triggerTokens"], options["trigger_tokens"], await summarize([])))
            return True

    class SomeKeywords:
        async def compact_if_needed(
            self, tenant: str, session: str, summarize: Any, *, trigger_tokens: int = 1
        ) -> bool:
            seen.append((trigger_tokens, await summarize([])))
            return True

    class AnyKeywords:
        async def compact_if_needed(self, tenant: str, session: str, summarize: Any, **named: Any) -> bool:
            seen.append((named["trigger_tokens"], await summarize([])))
            return True

    class NoOptions:
        async def compact_if_needed(self, tenant: str, session: str, summarize: Any) -> bool:
            seen.append(await summarize([]))
            return True

    for store in (OneObject(), SomeKeywords(), AnyKeywords(), NoOptions()):
        assert await compact_session(store, "acme", "s1", lambda _: "text", CompactionOptions(7))
    assert seen == [(7, 7, "text"), (7, "text"), (7, "text"), "text"]


class PlainAnswers:
    """A store whose answers are plain objects and whose compaction takes one object, over a real store."""

    def __init__(self) -> None:
        self._inner = InMemoryStore()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("append_turn", "get_session"):
            raise AttributeError(name)
        found = getattr(self._inner, name)

        async def noted(*args: Any, **named: Any) -> Any:
            self.calls.append(name)
            return await found(*args, **named)

        return noted

    async def get_or_create(self, tenant: str, user: str, agent: str, session: str | None = None) -> dict[str, str]:
        return {"sessionId": (await self._inner.get_or_create(tenant, user, agent, session)).session}

    async def compact_if_needed(self, tenant: str, session: str, summarize: Any, options: Any) -> bool:
        return await self._inner.compact_if_needed(tenant, session, summarize, options)

    async def list_sessions_by_user(self, tenant: str, user: str) -> list[dict[str, Any]]:
        found = await self._inner.list_sessions_by_user(tenant, user)
        return [{"sessionId": meta.session, "updatedAt": meta.updated_at.isoformat()} for meta in found]


async def test_the_kit_accepts_a_store_with_plain_answers() -> None:
    await check_session_store(PlainAnswers)


# Specification: 001.84
async def test_a_turn_is_appended_and_then_recorded() -> None:
    store = PlainAnswers()
    app = create_agent_app(session_store=store)  # type: ignore[arg-type]  # plain answers
    session = await app.start_session("acme", "ann", "agent")
    await app.finish_turn(session.ref, [{"role": "user", "content": "hello"}], {"inputTokens": 1})
    assert [name for name in store.calls if name in ("append_messages", "record_turn")] == [
        "append_messages",
        "record_turn",
    ]
