"""A model that makes every common mistake, through each door: it is always told what to do, and nothing raises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from memo import SQLiteStore
from sandboxd.client import Client
from sandboxd.errors import SandboxNotFound, StoreUnavailable
from sandboxd.tools import Toolbox
from tests.model_mistakes import FILES, MISTAKES, Mistake, prepare
from tests.tool_doors import DOORS, post
from tests.world.serving import ServedWorld, serving

SESSION = "s1"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWorld]:
    directory = tmp_path_factory.mktemp("mistakes")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(SQLiteStore(directory / "memo.db")) as store,
        portal.wrap_async_context_manager(serving(directory, store=store)) as world,
    ):
        with Client(world.socket) as client:
            client.ensure_sandbox(SESSION, "ann")
        yield world


def test_the_table_has_every_kind_once() -> None:
    assert len({mistake.kind for mistake in MISTAKES}) == len(MISTAKES) >= 30


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.kind)
def test_a_model_is_told_what_to_do_through_every_door(world: ServedWorld, mistake: Mistake, door: str) -> None:
    with Client(world.socket) as client:
        prepare(client, SESSION, "ann")
        mistake.check_result(DOORS[door](world.socket, SESSION, mistake.tool, mistake.arguments))
        after = {path: client.read_file(SESSION, path) for path in FILES}
    assert after == FILES


@pytest.mark.parametrize("name", ["", ".", "..", "../Read", "a/b", "Read?x=1", "R%65ad", "Lire été", "x" * 500, "\n"])
def test_a_client_accepts_any_name_of_a_tool(world: ServedWorld, name: str) -> None:
    with Client(world.socket) as client:
        result = client.tool(SESSION, name, {"file_path": "list.txt"})
    assert (result.ok, result.details["code"]) == (False, "tool.not_found")


def test_what_the_program_or_the_platform_gets_wrong_stays_an_error(world: ServedWorld) -> None:
    with Client(world.socket) as client:
        with pytest.raises(SandboxNotFound):
            client.tool("none", "Read", {"file_path": "a"})
        with pytest.raises(SandboxNotFound):
            client.tool("none", "Nothing", {})
        with pytest.raises(SandboxNotFound):
            client.tool(SESSION, "Read", {}, tenant="other")
    for body in (b"[]", b'"text"', b"null", b"{", b"", b"\xff", b'{"file_path": "\\ud83"}', b"[" * 100_000):
        status, problem = post(world.socket, f"/v1/tenants/default/sessions/{SESSION}/tools/Read", body)
        assert (status, json.loads(problem)["code"]) == (400, "request.invalid"), body[:20]


def test_a_repeated_mistake_with_a_key_is_answered_alike(world: ServedWorld) -> None:
    with Client(world.socket) as client:
        answers = [client.tool(SESSION, "Read", {"limit": "x"}, idempotency_key="k") for _ in range(2)]
    assert answers[0] == answers[1]
    assert not answers[0].ok


def test_a_mistake_is_an_event_of_its_tool_and_an_unknown_name_is_none(world: ServedWorld) -> None:
    with Client(world.socket) as client:
        client.tool(SESSION, "Grep", {})
        client.tool(SESSION, "Secret_name", {})
    events = [event for event in world.manager.events.recent() if event.kind == "tool"]
    assert events[-1].model_dump().items() >= {"tool": "Grep", "ok": False}.items()


def test_every_tool_of_the_table_exists_or_is_said_to_be_unknown() -> None:
    toolbox = Toolbox.discover()
    for mistake in MISTAKES:
        assert (mistake.tool in toolbox) == (mistake.code != "tool.not_found")


def test_without_a_store_memory_is_unavailable_as_a_result(tmp_path: Path) -> None:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(tmp_path)) as world,
        Client(world.socket) as client,
    ):
        client.ensure_sandbox(SESSION, "ann")
        result = client.tool(SESSION, "write_notes", {"content": "x"})
    assert (result.ok, result.details["code"]) == (False, StoreUnavailable.code)
    assert "keep files under /workspace" in result.content
