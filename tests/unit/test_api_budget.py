"""How much memory calls may hold: reserved before they run, bounded, shared fairly, released."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memo import InMemoryStore
from memo.errors import RevisionConflict
from sandboxd.api.budget import MIB, SMALL_BYTES, Allotment, ByteBudget
from sandboxd.api.pieces import Pieces, list_answer, object_answer
from sandboxd.client import AsyncClient
from sandboxd.errors import Busy, InvalidRequest
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

EXEC = "/v1/tenants/default/sessions/s1/exec"
LARGE = 3 * MIB


def test_one_tenant_alone_may_hold_three_quarters() -> None:
    budget = ByteBudget(800)
    budget.take("flood", 600)
    with pytest.raises(Busy, match=r"^cannot accept this call: .* 1 bytes .* 600 of 800; try again") as refused:
        budget.take("flood", 1)
    assert refused.value.retryable
    budget.take("calm", 150)
    budget.give_back("flood", 300)
    budget.take("flood", 100)


def test_a_call_that_could_never_fit_gets_an_error_with_the_bound() -> None:
    with pytest.raises(InvalidRequest, match=r"may hold 601 bytes .* together may hold 600; split it"):
        ByteBudget(800).take("acme", 601)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 500), st.booleans()), max_size=200))
def test_the_bound_holds_and_everything_is_released(moves: list[tuple[str, int, bool]]) -> None:
    budget = ByteBudget(1000)
    calls: list[Allotment] = []
    for tenant, size, is_entering in moves:
        if is_entering:
            call = Allotment(budget, tenant)
            try:
                call.take(size)
            except Busy:
                continue
            calls.append(call)
        elif calls:
            calls[size % len(calls)].shrink(size // 2)
        assert budget.total <= 1000
    for call in calls:
        call.shrink(0)
    assert budget.total == 0


def test_shrinking_releases_only_what_exceeds_the_size() -> None:
    budget = ByteBudget(1000)
    call = Allotment(budget, "acme")
    call.take(500)
    call.shrink(100)
    assert budget.total == 100
    call.shrink(400)
    assert budget.total == 100
    call.shrink(0)
    assert budget.total == 0


async def _body(response: Any) -> bytes:
    """What a response sends."""
    sent = bytearray()

    async def send(message: Any) -> None:
        sent.extend(message.get("body", b""))

    await response({"type": "http"}, None, send)
    return bytes(sent)


OUTPUT = st.binary(min_size=1, max_size=40) | st.text(min_size=1, max_size=10).map(str.encode)


@pytest.mark.anyio
@given(seed=OUTPUT, is_base64=st.booleans())
async def test_pieces_are_the_same_json_as_the_whole(seed: bytes, is_base64: bool) -> None:
    output = seed * (3 * SMALL_BYTES // len(seed))
    allotment = Allotment(ByteBudget(), "acme")
    texts: dict[str, str | bytes] = {"stdout": output, "stderr": output[1:]}
    response = object_answer({"exit_code": 0}, texts, allotment, is_base64=is_base64)
    assert isinstance(response, Pieces)
    small = object_answer({}, {"stdout": seed}, allotment, is_base64=is_base64)
    assert not isinstance(small, Pieces)
    answer = json.loads(await _body(response))
    if not is_base64:
        assert answer == {
            "exit_code": 0,
            "stdout": output.decode("utf-8", "replace"),
            "stderr": output[1:].decode("utf-8", "replace"),
        }
    else:
        assert base64.b64decode(answer["stdout"], validate=True) == output


@pytest.mark.anyio
@pytest.mark.parametrize("items", [[], [{"a": 1}], [{"n": n, "text": "é" * 500} for n in range(1000)], ["x" * 400_000]])
async def test_a_list_is_the_same_json_however_long(items: list[Any]) -> None:
    budget = ByteBudget()
    allotment = Allotment(budget, "acme")
    response = await list_answer(items, allotment, artifacts=["a"])
    sent = await _body(response)
    assert json.loads(sent) == {"items": items, "artifacts": ["a"]}
    assert budget.total == 0 or len(sent) / 2 < budget.total < len(sent) * 2


@pytest.mark.anyio
async def test_a_piece_is_rendered_only_once_the_previous_one_was_sent() -> None:
    rendered = 0

    def render() -> Iterator[bytes]:
        nonlocal rendered
        for _ in range(10):
            rendered += 1
            yield b"x"

    taken = anyio.Semaphore(0)

    async def send(message: Any) -> None:
        if "body" in message:
            await taken.acquire()

    response = Pieces(render(), Allotment(ByteBudget(), "acme"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(response, {}, None, send)  # type: ignore[arg-type]  # it receives nothing
        for number in range(1, 11):
            await anyio.wait_all_tasks_blocked()
            assert rendered == number
            taken.release()
        taken.release()


@pytest.mark.anyio
async def test_one_iteration_of_the_event_loop_renders_one_piece_across_all_answers() -> None:
    budget = ByteBudget()
    passes = rendered = 0

    def render() -> Iterator[bytes]:
        nonlocal rendered
        for _ in range(5):
            rendered += 1
            yield b"x"

    async def send(message: Any) -> None:
        pass

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(Pieces(render(), Allotment(budget, "acme")), {}, None, send)  # type: ignore[arg-type]  # it receives nothing
        while rendered < 100:
            before = rendered
            await anyio.sleep(0)
            passes += 1
            assert rendered - before <= 2 or passes == 1  # each starts with its first piece


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path, store=InMemoryStore(), call_memory_bytes=8 * MIB) as world:
        async with AsyncClient(world.socket) as client:
            await client.ensure_sandbox("s1")
        yield world


@pytest.mark.anyio
async def test_without_free_memory_a_command_is_refused_before_it_runs(world: World) -> None:
    command = f"head -c {LARGE} /dev/zero | tr '\\0' '\\001'"
    async with AsyncClient(world.socket) as client:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: client.exec("s1", "sleep 30", max_output_bytes=LARGE))
                await world.wait_busy()
                with pytest.raises(Busy):
                    await client.exec("s1", command, max_output_bytes=LARGE)
                with pytest.raises(Busy):
                    await client.exec("s1", command, max_output_bytes=LARGE, idempotency_key="k")
                assert world.commands() == 0
                assert (await client.exec("s1", "true", max_output_bytes=0)).exit_code == 0
                tasks.cancel_scope.cancel()
            while world.budget.total:
                await anyio.sleep(0.01)
            for _ in range(2):
                result = await client.exec("s1", "head -c 200000 /dev/zero", idempotency_key="k")
                assert result.stdout == "\0" * 200_000  # the key was released, and now it has an answer
    assert world.commands() == 2  # the small one, and one of the two with a key


@pytest.mark.anyio
async def test_a_command_that_could_never_fit_is_invalid(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        with pytest.raises(InvalidRequest, match="split it into smaller calls"):
            await client.exec("s1", "true", max_output_bytes=4 * MIB)
    assert world.commands() == 0
    assert world.budget.total == 0


@pytest.mark.anyio
async def test_bodies_are_counted_before_they_are_read(world: World) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b" " * (7 * MIB)

    connector = aiohttp.UnixConnector(str(world.socket))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
        headers = {"content-type": "application/json"}
        for body in (io.BytesIO(b" " * (7 * MIB)), slowly()):
            async with http.post(EXEC, data=body, headers=headers) as answer:
                assert answer.status in (400, 409), await answer.text()
                assert "bytes in memory" in (await answer.json())["detail"]
    assert world.budget.total == 0


@pytest.mark.anyio
async def test_an_answer_is_counted_until_its_client_has_read_it(world: World) -> None:
    command = f"head -c {LARGE} /dev/zero | tr '\\0' '\\001'"
    request = json.dumps({"command": command, "max_output_bytes": LARGE}).encode()
    async with await anyio.connect_unix(str(world.socket)) as stream:
        head = f"POST {EXEC} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(request)}\r\n\r\n".encode()
        await stream.send(head + request)
        with anyio.fail_after(20):
            first = await stream.receive()
            received = len(first)
            assert world.budget.total == LARGE, first  # what stderr did not need is given back
            while received < 6 * LARGE:
                received += len(await stream.receive())
            while world.budget.total:
                await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_a_long_list_of_messages_is_counted_and_complete(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        messages = [{"role": "user", "content": f"{number} " + "x" * 2000} for number in range(250)]
        await client.append_messages("s1", messages)
        assert await client.load_messages("s1") == messages
        with pytest.raises((Busy, InvalidRequest)):
            await client.append_messages("s1", [{"deep": [[]] * 100_000}])
    assert world.budget.total == 0


@pytest.mark.anyio
async def test_a_conflict_with_a_large_document_includes_its_text_and_counts_it(world: World) -> None:
    text = "\x01é" * 100_000
    async with AsyncClient(world.socket) as client:
        await client.write_memo("s1", "NOTES.md", text)
        assert (await client.read_memo("s1", "NOTES.md")).text == text
        with pytest.raises(RevisionConflict) as refused:
            await client.write_memo("s1", "NOTES.md", "mine", expected=0)
    assert refused.value.current is not None
    assert refused.value.current.content == text
    assert world.budget.total == 0
