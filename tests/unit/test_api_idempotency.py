"""A write with an Idempotency-Key runs at most once, whatever happens in between."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from sandboxd.client import AsyncClient
from sandboxd.client.request import AnswerHeaders, json_request
from sandboxd.errors import Busy, Conflict, InvalidRequest, NotFound, RequestError
from sandboxd.idempotency import IdempotencyStore, KeptAnswer, OutcomeUnknown, parse_key
from sandboxd.sandboxes.layout import Layout
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as world, AsyncClient(world.socket) as client:
        await client.ensure_sandbox("s1")
        yield world


async def test_a_retry_gets_the_first_answer_and_nothing_runs_twice(world: World) -> None:
    command = "echo x >> /workspace/counter; wc -l < /workspace/counter"
    async with AsyncClient(world.socket) as client:
        first = await client.exec("s1", command, idempotency_key="k")
        again = await client.exec("s1", command, idempotency_key="k")
        other = await client.exec("s1", command, idempotency_key="k2")
    assert first == again
    assert (first.stdout.strip(), other.stdout.strip()) == ("1", "2")


async def test_a_replay_is_marked_as_one(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        heads = [await _head(client, {"command": "true"}) for _ in range(2)]
    assert [head.get("idempotency-replayed") for head in heads] == [None, "true"]


async def test_another_request_with_the_same_key_is_a_conflict(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        await client.exec("s1", "true", idempotency_key="k")
        with pytest.raises(Conflict):
            await client.exec("s1", "false", idempotency_key="k")
        await client.ensure_sandbox("s2")
        await client.exec("s2", "false", idempotency_key="k")  # another path, another key


async def test_a_file_is_compared_by_its_content(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        first = await client.write_file("s1", "/workspace/a", b"x" * 300_000, idempotency_key="k")
        file = world.workspace("s1", "default") / "a"
        file.unlink()
        assert await client.write_file("s1", "/workspace/a", b"x" * 300_000, idempotency_key="k") == first
        assert not file.exists()
        with pytest.raises(Conflict):
            await client.write_file("s1", "/workspace/a", b"y" * 300_000, idempotency_key="k")


async def test_a_key_of_a_running_request_is_busy(world: World) -> None:
    gate = world.workspace("s1", "default") / "gate"
    async with AsyncClient(world.socket) as client, anyio.create_task_group() as tasks:
        command = "mkfifo /workspace/gate; echo up; cat /workspace/gate"

        async def first() -> None:
            await client.exec("s1", command, idempotency_key="k")

        tasks.start_soon(first)
        while not gate.exists():  # a file made by another process
            await anyio.sleep(0.02)
        with pytest.raises(Busy):
            await client.exec("s1", command, idempotency_key="k")
        await anyio.to_thread.run_sync(gate.write_text, "go")


async def test_a_refused_request_releases_its_key(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        with pytest.raises(NotFound):
            await client.exec("s9", "true", idempotency_key="k")
        await client.ensure_sandbox("s9")
        assert (await client.exec("s9", "true", idempotency_key="k")).exit_code == 0
        with pytest.raises(InvalidRequest):
            await client.exec("s9", "", idempotency_key="k2")
        assert (await client.exec("s9", "true", idempotency_key="k2")).exit_code == 0


async def test_an_abandoned_command_has_an_unknown_outcome(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        with anyio.move_on_after(0.4):
            await client.exec("s1", "sleep 60", idempotency_key="k")
        with anyio.fail_after(10):
            await world.wait_quiet("s1", "default")
            error = await _refusal(client)
            while isinstance(error, Busy):  # the first request is being cleaned up
                error = await _refusal(client)
    assert error.code == "request.outcome_unknown"


async def _refusal(client: AsyncClient) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await client.exec("s1", "sleep 60", idempotency_key="k")
    return caught.value


async def test_a_wrong_key_is_refused(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        with pytest.raises(InvalidRequest):
            await client.exec("s1", "true", idempotency_key="x" * 256)
        assert world.commands() == 0
    for bad in ("", "é", "a\0b", " a", "a ", "x" * 256):
        with pytest.raises(InvalidRequest):
            parse_key(bad)
    assert parse_key("a b~!") == "a b~!"


async def test_a_crash_between_claim_and_answer_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    path = tmp_path / "answers.db"
    async with IdempotencyStore(path) as store:
        assert await store.begin("t POST /x", "k") is None
        assert await store.begin("t POST /x", "done") is None
        await store.finish("t POST /x", "done", KeptAnswer(b"d", 200, (("a", "b"),), b"body"))
        with pytest.raises(Busy):
            await store.begin("t POST /x", "k")
    async with IdempotencyStore(path) as store:  # as after a crash: the claim was never ended
        with pytest.raises(OutcomeUnknown):
            await store.begin("t POST /x", "k")
        assert await store.begin("t POST /x", "done") == KeptAnswer(b"d", 200, (("a", "b"),), b"body")


@pytest.mark.parametrize(
    ("method", "verb", "body", "status"),
    [
        ("DELETE", "?path=/workspace/a", None, 204),
        ("POST", "/mkdir", {"path": "/workspace/d"}, 201),
        ("POST", "/move", {"from": "/workspace/a", "to": "/workspace/b"}, 409),
    ],
)
async def test_a_file_change_that_a_crash_interrupted_is_repeated_or_unknown(
    tmp_path: Path, method: str, verb: str, body: Any, status: int
) -> None:
    path = f"/v1/tenants/acme/sessions/s1/files{verb}"
    (tmp_path / "data").mkdir(mode=0o700)
    async with IdempotencyStore(Layout(tmp_path / "data").idempotency) as store:
        await store.begin(f"acme {method} {path.partition('?')[0]}", "k")
    async with serving(tmp_path) as world:  # the next daemon: the change was made, and its answer was not stored
        connector = aiohttp.UnixConnector(str(world.socket))
        async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
            await http.put("/v1/tenants/acme/sessions/s1/sandbox", json={"user": "u1"})
            (world.workspace("s1") / "d").mkdir(mode=0o755)
            answer = await http.request(method, path, json=body, headers={"idempotency-key": "k"})
            assert answer.status == status, await answer.text()
            if status == 409:
                assert (await answer.json(content_type=None))["code"] == "request.outcome_unknown"
            answer = await http.request(method, path, json=body)
            assert answer.status in (404, 409)  # without the key nothing says that it was done before


async def test_keys_are_bounded_in_number_and_age(tmp_path: Path) -> None:
    async with IdempotencyStore(tmp_path / "a.db", max_keys=10) as store:
        for number in range(50):
            assert await store.begin("s", str(number)) is None
            await store.finish("s", str(number), KeptAnswer(b"", 200, (), b""))
        assert await store.begin("s", "49") is not None
        assert await store.begin("s", "0") is None
    async with IdempotencyStore(tmp_path / "b.db", keep_s=0) as store:
        assert await store.begin("s", "k") is None
        await store.finish("s", "k", KeptAnswer(b"", 200, (), b""))
        assert await store.begin("s", "k") is None


class Clock:
    """A monotonic clock that a test moves. Like the real one, it starts at an arbitrary value."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


async def _keep(store: IdempotencyStore, key: str) -> None:
    assert await store.begin("s", key) is None
    await store.finish("s", key, KeptAnswer(b"", 200, (), b""))


async def test_a_wall_clock_that_jumps_ten_years_drops_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with IdempotencyStore(tmp_path / "a.db") as store:
        await _keep(store, "k")
        today = time.time()
        monkeypatch.setattr(time, "time", lambda: today + 10 * 365 * 86_400)
        assert await store.begin("s", "k") is not None
        await _keep(store, "later")
    monkeypatch.setattr(time, "time", lambda: today - 86_400)
    async with IdempotencyStore(tmp_path / "a.db") as store:
        assert await store.begin("s", "k") is not None
        assert await store.begin("s", "later") is not None


async def test_answers_age_only_while_a_daemon_runs(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    clock = Clock(5_000)
    async with IdempotencyStore(path, keep_s=100, clock=clock) as store:
        await _keep(store, "old")
        clock.now_s += 60
    clock = Clock(3)  # the host was rebooted
    async with IdempotencyStore(path, keep_s=100, clock=clock) as store:
        await _keep(store, "new")
        clock.now_s += 30
        assert await store.begin("s", "old") is not None
        clock.now_s += 30
        assert await store.begin("s", "old") is None
        assert await store.begin("s", "new") is not None


async def _head(client: AsyncClient, content: dict[str, Any]) -> AnswerHeaders:
    request = json_request("POST", "/v1/tenants/default/sessions/s1/exec", content, key="head")
    answer = await client._transport.send(request)
    return answer.headers
