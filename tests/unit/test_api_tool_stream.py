"""Tool calls as streams, and calls that are cancelled by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from sandboxd.client import AnswerLost, AsyncClient, ToolResult
from sandboxd.client.request import json_request
from sandboxd.errors import CallCancelled, Conflict, InvalidRequest, SandboxNotFound
from tests.world.serving import ServedWorld, serving

pytestmark = pytest.mark.anyio

HANG_S = 30
SLEEP = {"command": "echo begun; sleep 600 & sleep 600"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServedWorld]:
    async with serving(tmp_path) as world:
        yield world


@pytest.fixture
async def client(world: ServedWorld) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(world.socket, tenant="acme") as client:
        await client.ensure_sandbox("s1")
        yield client


async def test_output_arrives_before_the_result_which_has_all_of_it(client: AsyncClient) -> None:
    command = {"command": "echo one; until test -e /workspace/go; do sleep 0.01; done; echo two >&2; exit 3"}
    seen: list[str | ToolResult] = []
    with anyio.fail_after(HANG_S):
        async with aclosing(client.tool_stream("s1", "Bash", command)) as items:
            async for item in items:
                if not seen:
                    await client.exec("s1", "touch /workspace/go")
                seen.append(item)
    *output, result = seen
    assert "".join(str(piece) for piece in output).startswith("one\n")
    assert isinstance(result, ToolResult)
    assert (result.ok, result.content) == (False, "one\ntwo\n[exit code 3]")
    assert result.details["exit_code"] == 3


async def test_a_flood_of_output_is_dropped_for_the_reader_and_kept_for_the_result(
    client: AsyncClient, world: ServedWorld
) -> None:
    with anyio.fail_after(HANG_S):
        items = [item async for item in client.tool_stream("s1", "Bash", {"command": "seq 400000"})]
    streamed, whole = items[-1], await client.tool("s1", "Bash", {"command": "seq 400000"})
    assert isinstance(streamed, ToolResult)
    assert streamed.content == whole.content
    assert streamed.details["truncated"]
    assert max(len(str(item)) for item in items[:-1]) <= 8192
    assert world.budget.total == 0


async def test_an_error_is_the_same_with_and_without_a_stream(client: AsyncClient) -> None:
    with pytest.raises(SandboxNotFound):
        _ = [item async for item in client.tool_stream("missing", "Bash", {"command": "true"})]


async def test_a_cancelled_call_has_ended_and_its_processes_are_killed(client: AsyncClient, world: ServedWorld) -> None:
    outcome: list[BaseException] = []

    async def call() -> None:
        try:
            async for item in client.tool_stream("s1", "Bash", SLEEP, call_id="one"):
                assert item == "begun\n"
                begun.set()
        except AnswerLost as error:  # a stream that has begun just breaks
            outcome.append(error)

    begun = anyio.Event()
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await begun.wait()
            with pytest.raises(Conflict, match="use a new one"):
                _ = [item async for item in client.tool_stream("s1", "Bash", SLEEP, call_id="one")]
            await client.cancel_call("s1", "one", tenant="globex")  # another tenant's call of that name
            assert outcome == []
            await client.cancel_call("s1", "one")
            await world.wait_quiet("s1")
    assert len(outcome) == 1


async def test_a_cancelled_call_without_a_stream_is_answered_as_cancelled(
    client: AsyncClient, world: ServedWorld
) -> None:
    async def call() -> None:
        target = "/v1/tenants/acme/sessions/s1/exec"
        request = json_request("POST", target, {"command": "sleep 600"}, headers={"x-call-id": "two"})
        with pytest.raises(CallCancelled):
            await client._send(request)

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await world.wait_busy()
            await client.cancel_call("s1", "two")
        await world.wait_quiet("s1")


async def test_a_call_that_is_not_under_way_counts_as_cancelled(client: AsyncClient) -> None:
    await client.cancel_call("s1", "never")
    await client.cancel_call("missing", "never")
    with pytest.raises(InvalidRequest, match="X-Call-Id"):
        _ = [item async for item in client.tool_stream("s1", "Bash", SLEEP, call_id="not a name")]
