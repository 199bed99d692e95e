"""Past events over the wire: found by whose they are and when, across restarts, and followed without a gap."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

import memo
from memo.ids import SessionRef
from sandboxd.client import AsyncClient
from sandboxd.errors import InvalidRequest, SandboxdError
from sandboxd.events import CAPACITY
from sandboxd.models.event import DEFAULT_PAGE, Event
from tests.unit.test_api_memo import SESSION, Wire, wired
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving
from tests.world.world import HANG_S

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with memo.open_store("memory://") as store, serving(tmp_path, store=store) as world:
        yield world


@pytest.fixture
async def client(world: World) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(world.socket) as client:
        yield client


@pytest.fixture
async def wire(world: World) -> AsyncIterator[Wire]:
    async for wire in wired(world):
        yield wire


async def collect(client: AsyncClient, **query: Any) -> list[Event]:
    return [event async for event in client.events(follow=False, **query)]


def publish(world: World, *commands: object, session: str = "s1", kind: str = "exec") -> None:
    for command in commands:
        world.manager.events.publish(kind, tenant="acme", session=session, command=str(command))


async def test_an_event_of_a_command_says_what_ran_how_it_ended_and_for_whom(client: AsyncClient) -> None:
    await client.ensure_sandbox("s1", user="ann")
    await client.exec("s1", "echo hello; exit 3")
    await client.exec("s1", ["printf", "%s", "a b"])
    await client.exec("s1", "sleep 20", timeout_s=0.1)
    words, shell, slow = await collect(client, kinds=["exec"])
    assert {**words.fields, "duration_ms": 0} == {
        "tenant": "default",
        "session": "s1",
        "user": "ann",
        "actor": "host",
        "command": "echo hello; exit 3",
        "exit_code": 3,
        "timed_out": False,
        "limits_hit": [],
        "duration_ms": 0,
    }
    assert shell.fields["command"] == "printf %s a b"
    assert (slow.fields["timed_out"], slow.fields["exit_code"]) == (True, None)


async def test_an_event_of_a_streamed_command_is_that_of_the_command(client: AsyncClient) -> None:
    await client.ensure_sandbox("s1", user="ann")
    async with aclosing(client.exec_stream("s1", "echo one; echo two >&2")) as pieces:
        async for _ in pieces:
            pass
    (event,) = await collect(client, kinds=["exec"])
    assert (event.fields["command"], event.fields["exit_code"]) == ("echo one; echo two >&2", 0)


async def test_an_event_of_a_tool_has_its_command_or_its_path_and_never_a_text(client: AsyncClient) -> None:
    await client.ensure_sandbox("s1", user="ann")
    await client.tool("s1", "Bash", {"command": "echo private; exit 4"})
    await client.tool("s1", "Write", {"file_path": "/workspace/a.txt", "content": "private"})
    await client.tool("s1", "Read", {"file_path": "b.txt"})
    events = await collect(client, kinds=["tool"])
    bash, write, read = (event.fields for event in events)
    assert (bash["command"], bash["exit_code"], bash["ok"], bash["actor"]) == (
        "echo private; exit 4",
        4,
        False,
        "agent",
    )
    assert (write["tool"], write["path"], write["ok"]) == ("Write", "/workspace/a.txt", True)
    assert (read["path"], read["ok"], read["code"]) == ("/workspace/b.txt", False, "file.not_found")
    assert "private" not in "".join(event.model_dump_json() for event in events[1:])


async def test_the_caller_may_say_who_acts(wire: Wire) -> None:
    await wire.ask("POST", f"{SESSION}/exec", json={"command": "true"}, headers={"x-memo-actor": "deploy-bot"})
    await wire.ask("POST", f"{SESSION}/tools/Bash", json={"command": "true"}, headers={"x-memo-actor": "planner"})
    found = await wire.json("GET", "/v1/events?kind=exec,tool", headers={"accept": "application/json"})
    assert [item["actor"] for item in found["items"]] == ["deploy-bot", "planner"]


async def test_messages_and_processes_are_events(wire: Wire) -> None:
    said = [{"role": "user", "content": "private"}]
    await wire.ask("POST", f"{SESSION}/messages", json={"messages": said * 2})
    usage = {"input": 10, "output": 2}
    await wire.ask("POST", f"{SESSION}/turns", json={"messages": said, "usage": usage})
    await wire.ask("POST", f"{SESSION}/compaction", json={"force": True, "summary": "private", "min_messages": 1})
    started = await wire.json("POST", f"{SESSION}/processes", json={"command": "sleep 60"})
    await wire.ask("DELETE", f"{SESSION}/processes/{started['id']}")
    found = await wire.json("GET", "/v1/events?kind=messages&kind=process", headers={"accept": "application/json"})
    appended, turn, compacted, start, kill = found["items"]
    assert (appended["what"], appended["count"], appended["user"]) == ("appended", 2, "u1")
    assert (turn["what"], turn["count"], turn["input_tokens"], turn["output_tokens"]) == ("turn", 1, 10, 2)
    assert compacted["what"] == "compacted"
    assert compacted["count"] > 0
    assert (start["what"], start["command"], kill["what"]) == ("started", "sleep 60", "killed")
    assert "private" not in json.dumps(found)


async def test_events_are_found_by_session_user_kind_and_time(client: AsyncClient, world: World) -> None:
    await client.ensure_sandbox("s1", user="ann")
    await client.ensure_sandbox("s2", user="bob")
    for session in ("s1", "s2"):
        await client.exec(session, f"echo {session}")
    assert [event.fields["command"] for event in await collect(client, session="s2", kinds=["exec"])] == ["echo s2"]
    assert {event.fields["session"] for event in await collect(client, user="ann", tenant="default")} == {"s1"}
    assert await collect(client, tenant="other") == []
    everything = await collect(client, since="1h")
    assert everything[-1].fields["command"] == "echo s2"
    assert await collect(client, since=datetime.now(UTC) + timedelta(hours=1)) == []
    assert await collect(client, until="1h") == []
    middle = everything[1].at
    assert await collect(client, until=middle) + await collect(client, since=middle) == everything
    assert await collect(client, kinds=["exec,tool"]) == await collect(client, kinds=["exec", "tool"])
    assert [event.id for event in await collect(client, limit=2)] == [event.id for event in everything[-2:]]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("since=yesterday", "since"),
        ("since=2026-01-01T00:00:00", "since"),
        ("limit=0", "limit"),
        ("limit=100000", "limit"),
        ("order=up", "order"),
        ("kinds=exec", "kinds"),
    ],
)
async def test_a_wrong_filter_is_refused_and_named(wire: Wire, query: str, problem: str) -> None:
    found = await wire.problem("GET", f"/v1/events?{query}")
    assert (found["status"], found["code"]) == (400, InvalidRequest.code)
    assert problem in found["detail"]


async def test_pages_of_json_hold_every_event_once_in_both_orders(client: AsyncClient, world: World) -> None:
    publish(world, *range(450))
    for order in ("asc", "desc"):
        commands: list[str] = []
        after: int | None = None
        while True:
            page = await client.list_events(after, order=order, session="s1", kinds=["exec"])
            commands += [event.fields["command"] for event in page.items]
            assert len(page.items) <= DEFAULT_PAGE
            if page.next is None:
                break
            after = page.next
        expected = [str(number) for number in range(450)]
        assert commands == (expected if order == "asc" else expected[::-1])


async def test_events_of_before_a_restart_are_there_and_a_reader_resumes_after_them(tmp_path: Path) -> None:
    async with serving(tmp_path) as world, AsyncClient(world.socket) as client:
        publish(world, "one", "two", "three")
        first = (await collect(client))[0]
    async with serving(tmp_path) as world, AsyncClient(world.socket) as client:
        publish(world, "four")
        seen = await collect(client, after=first.id)
        assert [event.fields.get("command") for event in seen] == ["two", "three", "four"]
        assert len({event.id for event in seen}) == 3
        with anyio.fail_after(HANG_S):
            async with aclosing(client.events(first.id)) as events:
                followed = [await anext(events) for _ in range(3)]
                publish(world, "five")
                followed.append(await anext(events))
    assert [event.fields["command"] for event in followed] == ["two", "three", "four", "five"]


async def test_following_since_a_time_shows_past_events_and_then_new_ones_that_match(
    client: AsyncClient, world: World
) -> None:
    publish(world, "past")
    publish(world, "other", session="s2")
    with anyio.fail_after(HANG_S):
        async with aclosing(client.events(since="1h", session="s1")) as events:
            seen = [await anext(events)]
            publish(world, "other", session="s2")
            publish(world, "new")
            seen.append(await anext(events))
    assert [event.fields["command"] for event in seen] == ["past", "new"]


async def test_a_follower_that_is_too_slow_for_the_ring_gets_the_rest_from_the_log(
    client: AsyncClient, world: World
) -> None:
    async with aclosing(client.events(since="1h", kinds=["exec"])) as events:
        publish(world, "first")
        assert (await anext(events)).fields["command"] == "first"
        publish(world, *range(3 * CAPACITY))  # at once: more than the ring has
        with anyio.fail_after(HANG_S):
            seen = [(await anext(events)).fields.get("command") for _ in range(3 * CAPACITY)]
    assert seen == [str(number) for number in range(3 * CAPACITY)]


async def test_following_ends_at_the_time_that_was_given(client: AsyncClient, world: World) -> None:
    publish(world, "past")
    until = datetime.now(UTC) + timedelta(milliseconds=300)
    with anyio.fail_after(HANG_S):
        seen = [event.fields["command"] async for event in client.events(since="1h", until=until)]
    assert seen == ["past"]


async def test_a_reader_learns_that_old_events_were_removed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"history": {"max_events": 1000}}
    async with serving(tmp_path, **settings) as world, AsyncClient(world.socket) as client:
        publish(world, *range(500))
        first = (await collect(client, limit=500))[0]
        publish(world, *range(500, 2000))
        await world.manager.history.log.write()
        seen = await collect(client, after=first.id)
    assert [event.kind for event in seen[:2]] == ["gap", "exec"]
    assert [event.fields["command"] for event in seen[1:]] == [str(number) for number in range(1000, 2000)]


async def test_an_event_of_a_session_is_kept_and_traced_by_itself(client: AsyncClient, world: World) -> None:
    await client.ensure_session("s1", user="ann", tenant="acme")
    publish(world, "one")
    history = world.manager.history
    await history.log.write()
    with anyio.fail_after(HANG_S):
        while not history.figures().traced:
            await anyio.sleep(0.001)
    assert history.figures().kept == 1
    assert [one["data"]["command"] for one in await world.memory.client.store.load_trace_envelopes("acme", "s1")] == [
        "one"
    ]


async def test_an_event_of_a_command_that_its_sandbox_died_under_says_what_the_caller_was_told(
    client: AsyncClient, world: World
) -> None:
    await client.ensure_sandbox("s1", user="ann", tenant="acme")
    told: dict[str, object] = {}

    async def run() -> None:
        try:
            told["exit_code"] = (await client.exec("s1", "sleep 60", tenant="acme")).exit_code
        except SandboxdError as error:  # unless the runner noticed the end of the command before its own
            told["error"] = error.code

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await world.wait_busy()
            with await world.manager.call(SessionRef.of("acme", "s1")) as runner:  # until the command runs
                while not await runner.has_processes():
                    await anyio.sleep(0.001)
            world.table.end(world.running_container("s1"), "oom")
        async with aclosing(client.events(since="1h", kinds=["sandbox"])) as events:
            while (death := await anext(events)).fields["state"] != "gone":
                pass
    assert death.fields["cause"] == "oom"
    (command,) = await collect(client, kinds=["exec"])
    assert command.fields["command"] == "sleep 60"
    assert {name: command.fields[name] for name in ("exit_code", "error") if name in command.fields} == told
