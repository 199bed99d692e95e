"""An AgentApp over HTTP, on real stores: turns, streams, probes and the inspector."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from memo import CompactionOptions
from memo.app import AgentApp, create_agent_app
from memo.errors import Unsupported
from memo.ids import SessionRef
from memo.profiles import AgentReply, AgentTurn, MemoryContext, Profile, ProfileContext
from memo.stores import BaseStore
from tests.guide_store import GuideStore

pytestmark = pytest.mark.anyio

ASK = {"message": "hello", "tenantId": "acme", "userId": "ann", "sessionId": "s1"}
INSPECTOR = "/__inspector/api"


async def echo(turn: AgentTurn) -> AgentReply:
    return AgentReply(f"{len(turn.messages)}: {turn.message}", usage={"inputTokens": 7, "outputTokens": 2})


async def in_pieces(turn: AgentTurn) -> AsyncIterator[Any]:
    for delta in ("he", "llo"):
        yield {"type": "message_update", "delta": delta}
    yield {"type": "tool_execution_end", "toolCallId": "call-1"}
    call = {"type": "toolCall", "id": "call-1", "name": "Bash", "arguments": {}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": [call]},
        {"role": "toolResult", "toolCallId": "call-1", "content": "done"},
        {"role": "assistant", "content": "hello"},
    ]
    yield AgentReply("hello", messages, stop_reason="stop")


def client_of(app: AgentApp) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://app")


def events_in(text: str) -> list[dict[str, Any]]:
    frames = [frame.split("\n") for frame in text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name.removeprefix("event: ") for name, _ in frames] == [event["type"] for event in events]
    return events


async def test_a_chat_is_a_stored_turn_of_its_session(store: BaseStore) -> None:
    app = create_agent_app(session_store=store, profiles=[Profile("default", echo)])
    async with client_of(app) as http:
        first = await http.post("/chat", json=ASK)
        assert (first.status_code, first.json()) == (
            200,
            {
                "sessionId": "s1",
                "text": "1: hello",
                "usage": {"inputTokens": 7, "outputTokens": 2, "cacheReadTokens": 0, "cacheWriteTokens": 0},
                "stopReason": "end_turn",
                "compacted": False,
            },
        )
        assert (await http.post("/chat", json=ASK)).json()["text"] == "3: hello"
        snake = {"message": "hi", "tenant_id": "acme", "user_id": "ann", "session_id": "s1"}
        assert (await http.post("/chat", json=snake)).json()["text"] == "5: hi"
    session = await store.get_session("acme", "s1")
    assert session is not None
    assert (session.user, session.agent, session.turns, session.tokens) == ("ann", "default", 3, 27)
    roles = [message["role"] for message in await store.load_all_messages("acme", "s1")]
    assert roles == ["user", "assistant"] * 3


async def test_a_new_session_is_made_when_none_is_named(store: BaseStore) -> None:
    app = create_agent_app(session_store=store, profiles=[Profile("default", echo)])
    async with client_of(app) as http:
        made = [(await http.post("/chat", json={**ASK, "sessionId": None})).json()["sessionId"] for _ in range(2)]
    assert made[0] != made[1]
    assert {session.session for session in await store.list_sessions("acme")} == set(made)


# Specification: 001.35
async def test_a_stream_sends_each_event_and_stores_the_turn(store: BaseStore) -> None:
    app = create_agent_app(session_store=store, profiles=[Profile("default", in_pieces)])
    async with client_of(app) as http:
        answer = await http.post("/stream", json=ASK)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-session-id"] == "s1"
    types = [event["type"] for event in events_in(answer.text)]
    assert types == ["session.start", "message_update", "message_update", "tool_execution_end", "agent_end"]
    assert events_in(answer.text)[-1]["text"] == "hello"
    messages = await store.load_all_messages("acme", "s1")
    assert [message["role"] for message in messages] == ["user", "assistant", "toolResult", "assistant"]
    traced = [envelope["event"]["type"] for envelope in await store.load_trace_envelopes("acme", "s1")]
    assert traced == ["session.start", "tool_execution_end", "agent_end"]
    assert [envelope["sequence"] for envelope in await store.load_trace_envelopes("acme", "s1")] == [0, 1, 2]


# Specification: 001.80
async def test_the_profile_is_the_named_one_or_the_default(store: BaseStore) -> None:
    def named(name: str) -> Profile:
        async def answer(turn: AgentTurn) -> str:
            return f"{name} as {turn.context.agent_id}"

        return Profile(name, answer)

    profiles = [named("one"), named("two"), named("three")]
    app = create_agent_app(session_store=store, profiles=profiles, default_profile="two")
    async with client_of(app) as http:
        assert (await http.post("/chat", json={**ASK, "sessionId": "a"})).json()["text"] == "two as two"
        asked = {**ASK, "sessionId": "b", "agentId": "three"}
        assert (await http.post("/chat", json=asked)).json()["text"] == "three as three"
        unknown = await http.post("/chat", json={**ASK, "agentId": "four"})
        assert (unknown.status_code, unknown.json()) == (404, {"error": "cannot find profile four"})
    async with client_of(create_agent_app(session_store=store, profiles=profiles)) as http:
        assert (await http.post("/chat", json={**ASK, "sessionId": "c"})).json()["text"] == "one as one"
    async with client_of(create_agent_app(session_store=store)) as http:
        assert (await http.post("/chat", json=ASK)).status_code == 404


# Specification: 001.72
async def test_memory_is_wired_through_the_profiles_own_functions(store: BaseStore) -> None:
    await store.get_or_create("acme", "ann", "default", "s1")
    long = {"role": "toolResult", "toolCallId": "call-1", "content": "line\n" * 5000}
    await store.append_messages("acme", "s1", [long])
    kept: list[tuple[SessionRef, str, int]] = []
    seen: list[AgentTurn] = []

    async def keep(context: ProfileContext, tool_call_id: str, content: str) -> None:
        kept.append((context.session_ref, tool_call_id, len(content)))

    async def shorten(messages: list[Any], context: ProfileContext) -> list[Any]:
        await context.write_tool_result_artifact("call-1", messages[0]["content"])
        return [{"role": "user", "content": "short"}, *messages[1:]]

    async def answer(turn: AgentTurn) -> str:
        seen.append(turn)
        return "ok"

    memory = MemoryContext(lambda context: f"index of {context.user_id}", keep, shorten)
    app = create_agent_app(session_store=store, profiles=[Profile("default", answer, memory=memory)])
    async with client_of(app) as http:
        assert (await http.post("/chat", json=ASK)).status_code == 200
    assert seen[0].memory_index == "index of ann"
    assert [message["content"] for message in seen[0].messages] == ["short", "hello"]
    assert kept == [(SessionRef.of("acme", "s1"), "call-1", 25_000)]
    assert (await store.load_all_messages("acme", "s1"))[0] == long


# Specification: 001.72
async def test_without_functions_of_its_own_a_profile_gets_the_stores_memory(store: BaseStore) -> None:
    await store.get_or_create("acme", "ann", "default", "s1")
    await store.write_memory_document("acme", "s1", "session", "NOTES.md", "# Notes\n")
    results = [{"role": "toolResult", "toolCallId": f"call-{n}", "content": "line\n" * 5000} for n in range(3)]
    await store.append_messages("acme", "s1", results)
    seen: list[AgentTurn] = []

    async def answer(turn: AgentTurn) -> str:
        seen.append(turn)
        return "ok"

    app = create_agent_app(session_store=store, profiles=[Profile("default", answer)])
    async with client_of(app) as http:
        await http.post("/chat", json=ASK)
    assert [entry.path for entry in seen[0].memory_index] == ["/workspace/memo/session/NOTES.md"]
    assert "tool-results/call-0.txt" in seen[0].messages[0]["content"]
    assert await store.read_tool_result_artifact("acme:s1", "call-0") == "line\n" * 5000


# Specification: 001.81
async def test_a_turn_that_makes_the_session_long_is_compacted(store: BaseStore) -> None:
    app = create_agent_app(
        session_store=store,
        profiles=[Profile("default", echo)],
        summarize=lambda messages: f"{len(messages)} messages",
        compaction={"triggerTokens": 1, "minMessages": 4},
    )
    async with client_of(app) as http:
        assert [(await http.post("/chat", json=ASK)).json()["compacted"] for _ in range(2)] == [False, True]
        assert (await http.post("/chat", json=ASK)).json()["text"] == "4: hello"


async def fail(turn: AgentTurn) -> str:
    raise ConnectionError("SECRET")


async def fail_late(turn: AgentTurn) -> AsyncIterator[Any]:
    yield {"type": "message_update", "delta": "x"}
    raise ConnectionError("SECRET")


async def say_nothing(turn: AgentTurn) -> AsyncIterator[Any]:
    yield {"type": "message_update", "delta": "x"}


# Specification: 001.35
@pytest.mark.parametrize("agent", [fail, fail_late, say_nothing])
async def test_a_turn_that_fails_stores_nothing_and_says_so(store: BaseStore, agent: Any) -> None:
    app = create_agent_app(session_store=store, profiles=[Profile("default", agent)])
    async with client_of(app) as http:
        answer = await http.post("/chat", json=ASK)
        assert answer.status_code in (400, 500)
        assert "SECRET" not in answer.text
        streamed = events_in((await http.post("/stream", json=ASK)).text)
    assert streamed[-1]["type"] == "error"
    assert "SECRET" not in str(streamed)
    assert await store.load_all_messages("acme", "s1") == []
    assert (await store.load_trace_envelopes("acme", "s1"))[-1]["event"]["type"] == "error"


BAD: list[tuple[Any, int, str]] = [
    (b"{", 400, "is not JSON"),
    (b"[]", 400, "is not a JSON object"),
    ({}, 400, "the request lacks message, tenantId, userId"),
    ({**ASK, "message": 7}, 400, "message must be text"),
    ({**ASK, "tenantId": "../x"}, 400, "cannot use this tenant id"),
    ({**ASK, "userId": "bob"}, 409, "belongs to another user"),
    (b" " * 5_000_000, 413, "larger than"),
]


@pytest.mark.parametrize("path", ["/chat", "/stream"])
@pytest.mark.parametrize(("body", "status", "why"), BAD)
async def test_a_bad_request_is_refused_and_says_why(
    store: BaseStore, path: str, body: Any, status: int, why: str
) -> None:
    await store.get_or_create("acme", "ann", "default", "s1")
    app = create_agent_app(session_store=store, profiles=[Profile("default", echo)])
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    async with client_of(app) as http:
        answer = await http.post(path, **sent)
    assert (answer.status_code, why in answer.json()["error"]) == (status, True)


async def test_health_and_readiness_are_reported(store: BaseStore) -> None:
    async def fine() -> dict[str, str]:
        return {"name": "model", "status": "ok"}

    async def broken() -> None:
        raise ConnectionError("SECRET")

    app = create_agent_app(session_store=store, profiles=[Profile("default", echo)], readiness_checks=[fine])
    async with client_of(app) as http:
        assert (await http.get("/health")).json() == {"status": "ok"}
        ready = await http.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        assert [check["name"] for check in ready.json()["checks"]] == ["store", "model"]
    async with client_of(create_agent_app(session_store=store, readiness_checks=[fine, broken])) as http:
        failed = await http.get("/ready")
        assert (failed.status_code, failed.json()["status"]) == (503, "not ready")
        assert "SECRET" not in failed.text


async def test_the_inspector_is_served_only_when_asked_for(store: BaseStore) -> None:
    async with client_of(create_agent_app(session_store=store, profiles=[Profile("default", echo)])) as http:
        assert (await http.get(f"{INSPECTOR}/sessions")).status_code == 404


# Specification: 001.50, 001.51, 001.52, 001.53, 001.54, 001.55, 001.79
async def test_the_inspector_shows_sessions_messages_trace_and_orchestration(store: BaseStore) -> None:
    app = create_agent_app(session_store=store, profiles=[Profile("default", echo)], inspector=True)
    at = f"{INSPECTOR}/tenants/acme/sessions/s1"
    async with client_of(app) as http:
        await http.post("/chat", json=ASK)
        await http.post("/chat", json={**ASK, "tenantId": "globex", "userId": "bob"})
        await app.orchestration("acme:s1").append_event({"eventId": "e1"})
        await app.orchestration("acme:s1").write_checkpoint({"agents": {}})

        async def get(path: str) -> Any:
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
            return answer.json()

        assert {item["tenant"] for item in (await get(f"{INSPECTOR}/sessions"))["items"]} == {"acme", "globex"}
        (session,) = (await get(f"{INSPECTOR}/sessions?tenant=acme&user=ann"))["items"]
        assert (session["session"], session["user"], session["turns"], session["tokens"]) == ("s1", "ann", 1, 9)
        assert [m["role"] for m in (await get(f"{at}/messages"))["items"]] == ["user", "assistant"]
        assert [e["event"]["type"] for e in (await get(f"{at}/trace"))["items"]] == ["session.start", "agent_end"]
        assert (await get(f"{at}/orchestration/state"))["snapshot"] == {"agents": {}}
        assert (await get(f"{at}/orchestration/events"))["items"] == [{"eventId": "e1"}]
        assert await get(f"{INSPECTOR}/tenants/acme/sessions/none/orchestration/state") is None
        assert (await http.get(f"{INSPECTOR}/tenants/acme/sessions/a b/messages")).status_code == 400
        assert (await http.post(f"{at}/messages")).status_code == 405


# Specification: 001.6, 001.56
async def test_a_store_of_another_program_serves_turns_and_its_own_inspector(tmp_path: Path) -> None:
    store = GuideStore(tmp_path / "store.json")

    class Source:
        async def list_sessions(self) -> list[dict[str, Any]]:
            return [
                {"tenantId": "acme", "sessionId": "s1", "userId": "ann", "updatedAt": 1_767_268_800_000, "turns": 1}
            ]

        async def load_messages(self, tenant: str, session: str) -> list[dict[str, Any]]:
            return await store.load_all_messages(tenant, session)

    app = create_agent_app(
        session_store=store,  # type: ignore[arg-type]  # plain objects, as the guide has them
        profiles=[Profile("default", echo)],
        inspector=Source(),  # type: ignore[arg-type]
        summarize=lambda messages: "a summary",
        compaction=CompactionOptions(trigger_tokens=30),
    )
    async with client_of(app) as http:
        answers = [(await http.post("/chat", json=ASK)).json() for _ in range(2)]
        assert [answer["compacted"] for answer in answers] == [False, True]
        assert answers[0]["sessionId"] == "s1"
        (session,) = (await http.get(f"{INSPECTOR}/sessions")).json()["items"]
        assert session["updated_at"] == "2026-01-01T12:00:00+00:00"
        messages = (await http.get(f"{INSPECTOR}/tenants/acme/sessions/s1/messages")).json()["items"]
        assert messages[0]["content"] == "[Conversation summary]: a summary"
        assert (await http.get(f"{INSPECTOR}/tenants/acme/sessions/s1/trace")).status_code == 501
    with pytest.raises(Unsupported, match="cannot inspect"):
        create_agent_app(session_store=store, inspector=True)  # type: ignore[arg-type]


async def test_a_client_that_leaves_ends_the_turn_and_stores_nothing(store: BaseStore) -> None:
    is_over = anyio.Event()

    async def endless(turn: AgentTurn) -> AsyncIterator[Any]:
        try:
            while True:
                yield {"type": "message_update", "delta": "x"}
                await anyio.sleep(0)
        finally:
            is_over.set()

    app = create_agent_app(session_store=store, profiles=[Profile("default", endless)])
    with anyio.fail_after(30):
        await _leave_early(app)
        await is_over.wait()
    assert await store.load_all_messages("acme", "s1") == []


async def _leave_early(app: Callable[..., Any]) -> None:
    """Send a request as a server does, and disconnect after a few pieces of the answer."""
    pieces, has_some = 0, anyio.Event()
    sent = [{"type": "http.request", "body": json.dumps(ASK).encode(), "more_body": False}]

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        await has_some.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal pieces
        pieces += message["type"] == "http.response.body"
        if pieces == 5:
            has_some.set()

    scope = {"type": "http", "method": "POST", "path": "/stream", "headers": [], "query_string": b""}
    await app(scope | {"asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"}, receive, send)
