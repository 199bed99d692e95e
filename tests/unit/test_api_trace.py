"""Traces and orchestration over HTTP and through the clients, on every store and on stores that lack parts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

import memo
from memo.errors import Unavailable
from memo.ids import SessionRef
from sandboxd.client import AsyncClient, AsyncSandbox, Client
from sandboxd.errors import NotFound, StoreUnavailable
from tests.plain_store import PlainStore
from tests.unit.test_api_memo import SESSION, Wire, wired
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

PLACE = f"{SESSION}/orchestration"
OTHER = "/v1/tenants/other/sessions/s1"


@pytest.fixture(params=["memory", "sqlite", "file"])
async def wire(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/memo.db", "file": f"file:///{tmp_path}/store"}
    async with (
        memo.open_store(urls[request.param]) as store,
        serving(tmp_path, store=store, history={"traces": False}) as world,
    ):
        async for wire in wired(world):
            yield wire


async def test_envelopes_are_kept_as_given_in_order_and_come_in_pages(wire: Wire) -> None:
    envelopes = [{"type": "turn.start", "n": number, "deep": {"ä": [None, 1.5]}} for number in range(5)]
    assert await wire.json("POST", f"{SESSION}/trace", json={"envelopes": envelopes[:3]}) == {"appended": 3}
    assert await wire.json("POST", f"{SESSION}/trace", json={"envelopes": envelopes[3:]}) == {"appended": 2}
    assert (await wire.json("GET", f"{SESSION}/trace"))["items"] == envelopes
    assert (await wire.json("GET", f"{SESSION}/trace?after=1&limit=2"))["items"] == envelopes[1:3]
    assert (await wire.json("GET", f"{SESSION}/trace?after=9"))["items"] == []


async def test_an_envelope_that_claims_to_be_the_daemons_is_refused(wire: Wire) -> None:
    forged = [{"type": "ok"}, {"id": "1", "source": "sandboxd", "type": "exec"}]
    problem = await wire.problem("POST", f"{SESSION}/trace", json={"envelopes": forged})
    assert (problem["status"], problem["code"]) == (400, "request.invalid")
    assert (await wire.json("GET", f"{SESSION}/trace"))["items"] == []


async def test_a_retry_with_the_same_key_appends_once(wire: Wire) -> None:
    for _ in range(2):
        await wire.json(
            "POST", f"{SESSION}/trace", json={"envelopes": [{"n": 1}]}, headers={"idempotency-key": "turn-1"}
        )
        await wire.json("POST", f"{PLACE}/events", json={"events": [{"n": 1}]}, headers={"idempotency-key": "turn-2"})
    assert len((await wire.json("GET", f"{SESSION}/trace"))["items"]) == 1
    assert len((await wire.json("GET", f"{PLACE}/events"))["items"]) == 1


async def test_all_eleven_operations_of_orchestration_work_over_the_wire(wire: Wire) -> None:
    assert await wire.json("GET", f"{PLACE}/checkpoint") == {"snapshot": None}
    assert await wire.json("POST", f"{PLACE}/events", json={"events": [{"eventId": f"e{n}"} for n in range(3)]})
    assert (await wire.ask("PUT", f"{PLACE}/checkpoint", json={"snapshot": {"lastEventId": "e1", "x": 1}}))[0] == 204
    assert (await wire.json("GET", f"{PLACE}/checkpoint"))["snapshot"]["x"] == 1
    assert [event["eventId"] for event in (await wire.json("GET", f"{PLACE}/events"))["items"]] == ["e0", "e1", "e2"]
    state = await wire.json("GET", f"{PLACE}/state")
    assert (state["snapshot"]["x"], state["events"], state["source"]) == (1, [{"eventId": "e2"}], "checkpoint")
    agent = f"{PLACE}/agents/worker-1"
    assert await wire.json("POST", f"{agent}/mailbox", json={"events": [{"m": 1}, {"m": 2}]}) == {"appended": 2}
    assert (await wire.json("GET", f"{agent}/mailbox?limit=1"))["items"] == [{"m": 1}]
    assert await wire.json("GET", f"{agent}/mailbox-state") == {"state": {}}
    assert (await wire.ask("PUT", f"{agent}/mailbox-state", json={"state": {"processed": 2}}))[0] == 204
    assert await wire.json("GET", f"{agent}/mailbox-state") == {"state": {"processed": 2}}
    assert await wire.json("GET", f"{agent}/history") == {"history": []}
    assert (await wire.ask("PUT", f"{agent}/history", json={"history": [{"role": "user"}, 1]}))[0] == 204
    assert await wire.json("GET", f"{agent}/history") == {"history": [{"role": "user"}, 1]}
    assert await wire.json("GET", f"{PLACE}/agents") == {"items": ["worker-1"]}


async def test_another_tenants_session_and_an_illegal_agent_are_not_found_or_refused(wire: Wire) -> None:
    await wire.json("POST", f"{SESSION}/trace", json={"envelopes": [{"secret": 1}]})
    for path in ("trace", "orchestration/events", "orchestration/state", "orchestration/agents"):
        assert (await wire.problem("GET", f"{OTHER}/{path}"))["status"] == 404, path
    assert (await wire.problem("POST", f"{OTHER}/trace", json={"envelopes": [{}]}))["status"] == 404
    assert (await wire.problem("PUT", f"{OTHER}/orchestration/checkpoint", json={"snapshot": {}}))["status"] == 404
    assert (await wire.problem("GET", f"{PLACE}/agents/a%20b/mailbox"))["status"] == 400
    bodies: list[Any] = [{"envelopes": ["text"]}, {"envelopes": {}}, {"envelopes": [], "more": 1}, {}]
    for body in bodies:
        assert (await wire.problem("POST", f"{SESSION}/trace", json=body))["status"] == 400


async def test_the_clients_have_every_call(wire: Wire) -> None:
    async with AsyncClient(wire.world.socket, tenant="acme") as client:
        assert await client.append_trace("s1", [{"type": "one"}, {"type": "two"}]) == 2
        assert await client.load_trace("s1", after=1) == [{"type": "two"}]
        calls = client.orchestration
        assert await calls.append_events("s1", [{"eventId": "e1"}, {"eventId": "e2"}]) == 2
        await calls.write_checkpoint("s1", {"lastEventId": "e1"})
        assert await calls.load_snapshot("s1") == {"lastEventId": "e1"}
        assert (await calls.recover_state("s1")).events == [{"eventId": "e2"}]
        assert await calls.append_mailbox_events("s1", "a", [{"m": 1}]) == 1
        await calls.write_mailbox_state("s1", "a", {"processed": 1})
        await calls.write_agent_history("s1", "a", ["said"])
        sandbox = await AsyncSandbox.connect("s1", client=client, tenant="acme")
        await sandbox.append_trace([{"type": "three"}])
        assert len(await sandbox.load_trace()) == 3
        assert (await client.inspect_session("s1")).state == "ready"

    def in_a_thread() -> None:
        with Client(wire.world.socket, tenant="acme") as client:
            assert client.orchestration.load_events("s1", limit=1) == [{"eventId": "e1"}]
            assert client.orchestration.load_mailbox_events("s1", "a") == [{"m": 1}]
            assert client.orchestration.load_mailbox_state("s1", "a") == {"processed": 1}
            assert client.orchestration.load_agent_history("s1", "a") == ["said"]
            assert client.orchestration.list_agents("s1") == ["a"]
            with pytest.raises(NotFound):
                client.load_trace("s1", tenant="other")

    await to_thread.run_sync(in_a_thread)


async def test_the_agentrail_inspector_finds_its_own_paths(wire: Wire) -> None:
    await wire.json("POST", f"{SESSION}/messages", json={"messages": [{"role": "user", "content": "hi"}]})
    await wire.json("POST", f"{SESSION}/trace", json={"envelopes": [{"id": "x", "event": {"type": "session.start"}}]})
    await wire.json(
        "POST", f"{PLACE}/events", json={"events": [{"eventId": "e1", "occurredAt": "2026-01-01T00:00:00Z"}]}
    )
    snapshot = {
        "runs": {"r": {"id": "r", "status": "running", "more": 1}},
        "agents": {"a": {"id": "a", "role": "lead"}},
    }
    await wire.ask("PUT", f"{PLACE}/checkpoint", json={"snapshot": snapshot})
    await wire.ask("PUT", f"{PLACE}/agents/a/mailbox-state", json={"state": {"processedEventCount": 4, "x": 1}})
    assert await wire.json("GET", "/__inspector/health") == {"status": "ok"}
    (session,) = (await wire.json("GET", "/__inspector/sessions"))["sessions"]
    assert (session["tenantId"], session["sessionId"], session["userId"], session["status"]) == (
        "acme",
        "s1",
        "u1",
        "idle",
    )
    place = "/__inspector/sessions/s1"
    trace = (await wire.json("GET", f"{place}/trace?tenantId=acme"))["envelopes"]
    assert [(one["id"], one["sequence"], one.get("source")) for one in trace] == [
        ("x", 0, None),
        ("orchestration-e1", 1, "orchestration"),
    ]
    assert (await wire.json("GET", f"{place}/messages?tenantId=acme"))["messages"] == [
        {"role": "user", "content": "hi"}
    ]
    orchestration = await wire.json("GET", f"{place}/orchestration?tenantId=acme")
    assert orchestration["run"] == {"id": "r", "status": "running"}
    assert orchestration["agents"] == [{"id": "a", "role": "lead", "mailbox": {"processedEventCount": 4}}]
    for part in ("trace", "messages", "orchestration"):
        assert (await wire.problem("GET", f"{place}/{part}"))["status"] == 404, "the default tenant has no such session"


class TroublesomeTraces:
    """A foreign trace store that fails as third-party code may."""

    def __init__(self, trouble: str) -> None:
        self._trouble = trouble
        self.kept: list[Mapping[str, Any]] = []

    async def append_envelope(self, envelope: Mapping[str, Any]) -> None:
        if self._trouble == "hangs":
            await anyio.sleep_forever()
        if self._trouble == "down":
            raise Unavailable("cannot append: the disk is away")
        self.kept.append(envelope)

    async def load_envelopes(self) -> Any:
        if self._trouble == "raises":
            raise KeyError("secret text")
        return {"not": "a list"} if self._trouble == "odd" else self.kept


class TroublesomeStore(memo.InMemoryStore):
    def __init__(self, trouble: str) -> None:
        super().__init__()
        self._trouble = trouble
        self.made: list[SessionRef] = []

    def session_trace_store(self, session_ref: Any) -> Any:
        self.made.append(session_ref)
        return TroublesomeTraces(self._trouble)


@pytest.mark.parametrize(("trouble", "verb"), [("hangs", "POST"), ("down", "POST"), ("raises", "GET"), ("odd", "GET")])
async def test_what_a_foreign_trace_store_does_wrong_is_one_clear_error(
    tmp_path: Path, trouble: str, verb: str
) -> None:
    async with (
        TroublesomeStore(trouble) as store,
        serving(tmp_path, store=store, store_timeout_s=0.5, history={"traces": False}) as world,
    ):
        async for wire in wired(world):
            body: dict[str, Any] = {"json": {"envelopes": [{}]}} if verb == "POST" else {}
            problem = await wire.problem(verb, f"{SESSION}/trace", **body)
            assert problem["code"].startswith(("store.", "memo."))
            assert "secret" not in json.dumps(problem)


async def test_a_session_has_one_trace_store(tmp_path: Path) -> None:
    async with TroublesomeStore("") as store, serving(tmp_path, store=store, history={"traces": False}) as world:
        async for wire in wired(world):
            for _ in range(3):
                await wire.json("POST", f"{SESSION}/trace", json={"envelopes": [{"n": 1}, {"n": 2}]})
            assert len((await wire.json("GET", f"{SESSION}/trace"))["items"]) == 6
    assert store.made == [SessionRef.of("acme", "s1")]


async def test_a_store_without_traces_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path, store=PlainStore(tmp_path / "plain")) as world:
        async for wire in wired(world):
            for verb, path, body in (
                ("GET", "trace", None),
                ("POST", "trace", {"envelopes": [{}]}),
                ("GET", "orchestration/state", None),
                ("PUT", "orchestration/checkpoint", {"snapshot": {}}),
            ):
                problem = await wire.problem(verb, f"{SESSION}/{path}", **({} if body is None else {"json": body}))
                assert problem["code"] == "memo.unsupported", path
    async with serving(tmp_path) as world, AsyncClient(world.socket, tenant="acme") as client:
        await client.ensure_sandbox("s2")
        with pytest.raises(StoreUnavailable):
            await client.load_trace("s2")
