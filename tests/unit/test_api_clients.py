"""Both clients against the same server: the same calls, the same results, the same errors."""

from __future__ import annotations

import inspect
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from memo.errors import InvalidKey
from sandboxd import failpoints
from sandboxd.client import AsyncClient, Client, DaemonUnreachable, ExecOutput, ExecResult, WriteIncomplete
from sandboxd.client.address import find_address
from sandboxd.client.errors import AnswerLost, rebuild
from sandboxd.client.sse import EventReader
from sandboxd.errors import Conflict, Gone, InternalError, InvalidRequest, NotFound, RequestError, SandboxdError
from sandboxd.runner import client as runner_client
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as world:
        yield world


def test_both_clients_have_the_same_methods() -> None:
    def signatures(client: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in inspect.getmembers(client, callable)
            if not name.startswith("_")
        }

    assert signatures(Client) == signatures(AsyncClient)


@pytest.mark.parametrize("way", ["unix", "tcp"])
async def test_the_async_client_supports_every_call(world: World, way: str) -> None:
    async with _async_client(world, way) as client:
        assert (await client.health())["status"] == "ok"
        assert (await client.ready())["ready"] is True
        made = await client.ensure_sandbox("s1", "u1", agent="a1", env={"A": "b"}, limits={"memory_mb": 64})
        assert (made.created, made.user, made.agent, made.limits["memory_mb"]) == (True, "u1", "a1", 64)
        assert (await client.ensure_sandbox("s1", "u1")).created is False
        assert await client.list_sandboxes() == [await client.get_sandbox("s1")]
        assert (await client.stats("s1"))["pids"] >= 1
        result = await client.exec("s1", ["cat"], stdin=b"\xffhi")
        assert (result.exit_code, result.stdout) == (0, "�hi")
        items = [item async for item in client.exec_stream("s1", "printf '\\377'; exit 5")]
        assert items[0] == ExecOutput("stdout", b"\xff")
        assert isinstance(items[-1], ExecResult)
        assert items[-1].exit_code == 5
        process = await client.start_process("s1", "cat", tty=True, echo=False)
        await client.write_process("s1", process.id, b"\xff", eof=True)
        await client.resize_process("s1", process.id, 24, 80)
        assert (await client.read_process("s1", process.id, wait_s=30)).data == b"\xff"
        assert [one.id for one in await client.list_processes("s1")] == [process.id]
        assert (await client.kill_process("s1", process.id)).running is False
        content = b"x" * 2_000_000
        assert (await client.write_file("s1", "/workspace/a", content)).size_bytes == len(content)
        assert await client.read_file("s1", "/workspace/a") == content
        async with client.open_file("s1", "/workspace/a") as pieces:
            assert sum([len(piece) async for piece in pieces]) == len(content)
        assert {tool.name for tool in await client.tools("s1")} >= {"Bash", "Read"}
        assert (await client.tool("s1", "Bash", {"command": "echo hi"})).content == "hi"
        kinds = [event.kind async for event in client.events(follow=False)]
        assert kinds[0] == "sandbox"
        assert (await client.collect_garbage())["containers"] == 0
        await client.destroy_sandbox("s1")
        with pytest.raises(NotFound):
            await client.get_sandbox("s1")


@pytest.mark.parametrize("way", ["unix", "tcp"])
async def test_the_sync_client_supports_every_call(world: World, way: str) -> None:
    await anyio.to_thread.run_sync(_do_everything, world, way)


def _do_everything(world: World, way: str) -> None:
    where = {"socket": world.socket} if way == "unix" else {"url": world.url, "token": world.token}
    with Client(**where) as client:
        assert client.health()["status"] == "ok"
        assert client.ready()["ready"] is True
        assert client.ensure_sandbox("s1", "u1").created is True
        assert client.list_sandboxes() == [client.get_sandbox("s1")]
        assert client.exec("s1", ["cat"], stdin="hä").stdout == "hä"
        items = list(client.exec_stream("s1", "echo out; echo err >&2; exit 5"))
        assert items[:2] == [ExecOutput("stdout", b"out\n"), ExecOutput("stderr", b"err\n")]
        assert isinstance(items[-1], ExecResult)
        process = client.start_process("s1", "cat")
        client.write_process("s1", process.id, "abc")
        with pytest.raises(InvalidRequest, match="it has no terminal"):
            client.resize_process("s1", process.id, 24, 80)
        assert client.read_process("s1", process.id, offset=1, wait_s=30).data == b"bc"
        assert client.kill_process("s1", process.id).exit_code == 137
        assert len(client.list_processes("s1")) == 1
        pieces: Iterator[bytes] = iter([b"x" * 1000] * 1000)
        assert client.write_file("s1", "/workspace/a", pieces).size_bytes == 1_000_000
        assert len(client.read_file("s1", "/workspace/a")) == 1_000_000
        with client.open_file("s1", "/workspace/a") as stream:
            assert sum(map(len, stream)) == 1_000_000
        assert client.tool("s1", "Bash", {"command": "exit 1"}).ok is False
        assert {tool.name for tool in client.tools("s1")} >= {"Bash", "Read"}
        assert next(iter(client.events(0))).kind == "gap"
        assert client.stats("s1")["pids"] >= 1
        assert client.collect_garbage()["containers"] == 0
        client.destroy_sandbox("s1")
        with pytest.raises(NotFound):
            client.exec("s1", "true")


async def test_errors_are_rebuilt_as_their_own_classes(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        await client.ensure_sandbox("s1", "u1")
        with pytest.raises(Conflict, match=r"^cannot"):
            await client.ensure_sandbox("s1", "u2")
        with pytest.raises(InvalidRequest):
            await client.exec("s1", "")
        with pytest.raises(InvalidKey):
            await client.get_sandbox("a b")
        failpoints.arm("create.answer=bug")
        try:
            with pytest.raises(InternalError):
                await client.ensure_sandbox("s1", "u1")
        finally:
            failpoints.arm("")


def test_an_unknown_code_keeps_its_code_and_family() -> None:
    error = rebuild({"code": "request.brand_new", "detail": "cannot", "retryable": True})
    assert isinstance(error, RequestError)
    assert (error.code, error.retryable) == ("request.brand_new", True)
    error = rebuild({"code": "quite.new", "detail": "cannot"})
    assert type(error).__mro__[1] is SandboxdError
    gone = rebuild({"code": "sandbox.gone", "detail": "cannot", "cause": "oom"})
    assert isinstance(gone, Gone)
    assert gone.cause == "oom"


async def test_a_missing_daemon_has_its_own_error(tmp_path: Path) -> None:
    with Client(tmp_path / "none") as client, pytest.raises(DaemonUnreachable, match=r"^cannot reach"):
        client.health()
    async with AsyncClient(tmp_path / "none") as client2:
        with pytest.raises(DaemonUnreachable, match=r"^cannot reach"):
            await client2.health()


def test_a_write_whose_answer_is_lost_is_not_sent_again(tmp_path: Path) -> None:
    """A server that answers once, then closes after reading each request."""
    path = tmp_path / "s"
    requests: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            for answers in (1, 0, 1):
                connection, _ = listener.accept()
                with connection:
                    for _ in range(answers):
                        requests.append(connection.recv(65_536))
                        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                    requests.append(connection.recv(65_536))

        thread = threading.Thread(target=serve)
        thread.start()
        with Client(path) as client:
            client.health()
            with pytest.raises(AnswerLost, match="outcome"):
                client.exec("s", "true")  # on the used connection, which dies under it
            with pytest.raises(AnswerLost):
                client.exec("s", "true")  # on a new one, which also dies
            client.health()
        thread.join(10)
    assert sum(request.startswith(b"POST") for request in requests) == 2


async def test_a_connection_the_daemon_closed_is_replaced(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        client = Client(world.socket)
        await anyio.to_thread.run_sync(client.health)
    async with serving(tmp_path) as world:
        await anyio.to_thread.run_sync(client.ensure_sandbox, "s1")  # a write: only safe because nothing was sent
        client.close()
        assert len(world.table.containers) == 1


async def test_threads_share_a_client(world: World) -> None:
    with Client(world.socket) as client:
        await anyio.to_thread.run_sync(client.ensure_sandbox, "s1")
        outputs: list[str] = []

        def work(number: int) -> None:
            outputs.append(client.exec("s1", f"echo {number}").stdout)

        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(anyio.to_thread.run_sync, work, number)
    assert sorted(map(int, outputs)) == list(range(12))


async def test_leaving_a_stream_early_kills_the_command(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        await client.ensure_sandbox("s1")
        stream = client.exec_stream("s1", "echo up; sleep 60")
        async for item in stream:
            assert item == ExecOutput("stdout", b"up\n")
            break
        await stream.aclose()
        await world.wait_quiet("s1", "default")


def test_the_address_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXD_SOCKET", "/tmp/from-env")
    assert str(find_address()) == "/tmp/from-env"
    assert str(find_address("/tmp/given")) == "/tmp/given"
    assert str(find_address(url="http://[::1]:80", token="t")) == "[::1]:80"
    assert find_address(url="https://sandboxes.example.com/").url == "https://sandboxes.example.com:443"
    monkeypatch.setenv("SANDBOXD_URL", "http://127.0.0.1:8080")
    monkeypatch.setenv("SANDBOXD_TOKEN", "secret")
    assert (find_address().url, find_address().token) == ("http://127.0.0.1:8080", "secret")
    assert find_address(url="http://127.0.0.1:1", token="other").token == "other"
    assert str(find_address("/tmp/given")) == "/tmp/given"
    assert "secret" not in repr(find_address())


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:80", "ftp://x:1", "http://", "http://x:port", "http://x/v1", "http://user:secret@x:1", "http://[x"],
)
def test_a_wrong_url_is_refused_and_not_repeated_in_the_error(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^cannot use this URL") as refused:
        find_address(url=url)
    assert "secret" not in str(refused.value)


def test_a_socket_and_a_url_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="give only one"):
        Client("/tmp/given", url="http://127.0.0.1:1")


def test_events_are_assembled_from_any_chunks() -> None:
    raw = 'id: 1\nevent: exec\ndata: {"a": "ä"}\n\n: comment\n\nevent: exit\ndata: {}\n\n'.encode()
    for size in (1, 3, 7, len(raw)):
        reader = EventReader()
        pieces = [raw[start : start + size] for start in range(0, len(raw), size)]
        events = [event for piece in pieces for event in reader.feed(piece)]
        assert events == [("exec", '{"a": "ä"}'), ("exit", "{}")]


async def test_a_long_write_to_a_process_is_written_in_full_and_once(world: World) -> None:
    data = bytes(range(250)) * 20_000
    async with _async_client(world, "unix") as client:
        await client.ensure_sandbox("s1", "u1")
        process = await client.start_process("s1", "cat > /workspace/written")
        await client.write_process("s1", process.id, data, eof=True)
        await world.wait_quiet("s1", "default")
        assert (world.workspace("s1", "default") / "written").read_bytes() == data


async def test_a_partial_write_to_a_process_is_reported_and_completed_with_its_key(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_client, "WRITE_PATIENCE_S", 0.5)
    data = bytes(range(250)) * 20_000
    key = "k" * 250
    until = "while [ ! -e /workspace/{} ]; do sleep 0.02; done"
    command = f"{until.format('some')}; head -c 1000000; {until.format('all')}; cat"

    def write(client: Client, process: str) -> None:
        client.write_process("s1", process, data, idempotency_key=key)

    with Client(world.socket) as client:
        await anyio.to_thread.run_sync(client.ensure_sandbox, "s1", "u1")
        workspace = world.workspace("s1", "default")
        process = (await anyio.to_thread.run_sync(client.start_process, "s1", f"({command}) > /workspace/read")).id
        taken = []
        for gate in ("some", "all"):
            with pytest.raises(WriteIncomplete, match="does not read") as failure:
                await anyio.to_thread.run_sync(write, client, process)
            assert not failure.value.retryable
            taken.append(failure.value.taken_bytes)
            (workspace / gate).touch()
        assert 0 < taken[0] < 1_000_000 <= taken[1] < len(data)
        await anyio.to_thread.run_sync(write, client, process)
        with anyio.fail_after(10):
            while (workspace / "read").stat().st_size < len(data):
                await anyio.sleep(0.02)
    assert (workspace / "read").read_bytes() == data


def _async_client(world: World, way: str) -> AsyncClient:
    return AsyncClient(world.socket) if way == "unix" else AsyncClient(url=world.url, token=world.token)
