"""The door to MCP in the daemon, on the wire: authentication, what it refuses, its bounds, and the drain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from memo import open_store
from tests.mcp_clients import connect, text_of
from tests.unit.test_mcp import ACCEPT, INITIALIZE
from tests.world.serving import ServedWorld, serving

pytestmark = pytest.mark.anyio

HANG_S = 30


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServedWorld]:
    async with open_store("memory://") as store, serving(tmp_path, store=store, mcp_sessions=2) as world:
        with anyio.fail_after(2 * HANG_S):
            yield world


@pytest.fixture
async def http(world: ServedWorld) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {world.token}", **ACCEPT}
    async with httpx2.AsyncClient(base_url=world.url, headers=headers, timeout=HANG_S) as http:
        yield http


async def open_session(http: httpx2.AsyncClient, query: str = "") -> dict[str, str]:
    answer = await http.post(f"/mcp{query}", json=INITIALIZE)
    assert answer.status_code == 200, answer.text
    return {"mcp-session-id": answer.headers["mcp-session-id"]}


def tool_call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": ""}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"origin": "http://localhost"}, 403),
        ({"host": "evil.example"}, 403),
    ],
)
async def test_the_daemons_rules_for_tcp_hold_for_mcp(
    http: httpx2.AsyncClient, headers: dict[str, str], status: int
) -> None:
    for method in ("POST", "GET", "DELETE"):
        answer = await http.request(method, "/mcp", headers=headers, json=INITIALIZE if method == "POST" else None)
        assert answer.status_code == status


@pytest.mark.parametrize(
    "query", ["?session=../x", "?tenant=a/b", "?user=", "?nonsense=1", "?read_only=maybe", "?read_only=1&manage=1"]
)
async def test_a_query_that_cannot_be_meant_is_refused_with_a_problem(http: httpx2.AsyncClient, query: str) -> None:
    answer = await http.post(f"/mcp{query}", json=INITIALIZE)
    if query == "?user=":  # an empty field is not given
        assert answer.status_code == 200
        return
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("cannot use")


async def test_headers_choose_the_session_too(world: ServedWorld, http: httpx2.AsyncClient) -> None:
    headers = {"x-sandboxd-tenant": "acme", "x-sandboxd-session": "s7", "x-sandboxd-user": "ann"}
    opened = await http.post("/mcp", json=INITIALIZE, headers=headers)
    headers["mcp-session-id"] = opened.headers["mcp-session-id"]
    await http.post("/mcp", json=tool_call("Bash", command="true"), headers=headers)
    assert [(view.session, view.user) for view in world.manager.of_tenant("acme")] == [("s7", "ann")]  # type: ignore[arg-type]


async def test_sessions_are_bounded_and_room_frees_up(http: httpx2.AsyncClient) -> None:
    one = await open_session(http)
    await open_session(http)
    refused = await http.post("/mcp", json=INITIALIZE)
    assert refused.status_code == 503
    await http.delete("/mcp", headers=one)
    assert (await http.post("/mcp", json=tool_call("Bash", command="true"), headers=one)).status_code == 404
    await open_session(http)


async def test_an_idle_session_expires(tmp_path: Path) -> None:
    async with serving(tmp_path, mcp_idle_s=0.05) as world:
        headers = {"authorization": f"Bearer {world.token}", **ACCEPT}
        async with httpx2.AsyncClient(base_url=world.url, headers=headers) as http:
            session = await open_session(http)
            with anyio.fail_after(HANG_S):
                while (await http.get("/healthz")).status_code == 200:
                    await anyio.sleep(0.1)
                    listed = await http.post(
                        "/mcp", json={"jsonrpc": "2.0", "id": 3, "method": "tools/list"}, headers=session
                    )
                    if listed.status_code == 404:
                        break


async def test_a_body_over_the_limit_is_refused(http: httpx2.AsyncClient) -> None:
    body = json.dumps({**INITIALIZE, "padding": "x" * 5_000_000})
    answer = await http.post("/mcp", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 413


async def test_the_memory_of_requests_is_given_back(world: ServedWorld, http: httpx2.AsyncClient) -> None:
    session = await open_session(http)
    answer = await http.post("/mcp", json=tool_call("Write", file_path="a", content="x" * 1_000_000), headers=session)
    assert '"isError":false' in answer.text
    with anyio.fail_after(HANG_S):
        while world.budget.total:
            await anyio.sleep(0.01)


async def test_a_drain_ends_waiting_streams_and_lets_a_call_finish(world: ServedWorld) -> None:
    results: list[str] = []
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            async with connect("http", world.url, world.token, tenant="acme", session="s1") as client:

                async def drain(progress: float, total: float | None, message: str | None) -> None:
                    world.stop_server()  # with the client's stream of notifications open
                    (world.workspace("s1") / "go").touch()

                await client.list_tools()  # the client does so after its first call, when there is no daemon any more
                command = "echo begun; until test -e /workspace/go; do sleep 0.01; done; echo done"
                result = await client.call_tool("Bash", {"command": command}, progress_callback=drain)
                results.append(text_of(result))

        async def listen() -> None:
            async with (
                connect("http", world.url, world.token, era="2026-07-28", tenant="acme", session="s2") as client,
                client.listen(resources_list_changed=True) as changes,
            ):
                tasks.start_soon(call)
                results.extend([type(change).__name__ async for change in changes])

        tasks.start_soon(listen)
    assert results == ["begun\ndone"]
    assert world.is_stopping()


async def test_a_client_that_disconnects_cancels_its_call(world: ServedWorld, http: httpx2.AsyncClient) -> None:
    session = await open_session(http, "?tenant=acme&session=s1")
    body = tool_call("Bash", command="touch /workspace/begun; sleep 600 & sleep 600")
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            await http.post("/mcp?tenant=acme&session=s1", json=body, headers=session)

        tasks.start_soon(call)
        with anyio.fail_after(HANG_S):
            await world.wait_busy()
            while not (world.workspace("s1") / "begun").exists():
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    await world.wait_quiet("s1")
