"""Commands through both clients and the bare wire: streamed stdin, exact bytes, merged output, signals, terminals."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

import anyio
import anyio.to_thread
import pytest

from sandboxd.client import AsyncClient, Client, ExecOutput, ExecResult
from sandboxd.errors import InvalidRequest, NotFound
from sandboxd.wire_limits import WireLimits
from tests.unit.test_api_connection import EXEC, SANDBOX, ask, read_answer, request
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

HANG_S = 30
CONTENT = bytes(range(256)) * 12_000
MOST = 16_777_216
DIGEST = f"{hashlib.sha256(CONTENT).hexdigest()}  -\n"
WITH_STDIN = "content-type: application/vnd.sandboxd.exec"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as world:
        async with AsyncClient(world.socket, tenant="acme") as client:
            await client.ensure_sandbox("s1")
        yield world


def _slices() -> Iterator[bytes]:
    for start in range(0, len(CONTENT), 10_000):
        yield CONTENT[start : start + 10_000]


SOURCES: dict[str, Callable[[], Any]] = {
    "bytes": lambda: CONTENT,
    "file": lambda: io.BytesIO(CONTENT),
    "generator": _slices,
    "list": lambda: [b"", CONTENT, b""],
    "buffered": lambda: io.BufferedReader(io.BytesIO(CONTENT)),
}


async def blocking(world: World, use: Callable[[Client], Any]) -> Any:
    """Use the synchronous client in a thread: the server runs in this one."""

    def work() -> Any:
        with Client(world.socket, tenant="acme") as client:
            return use(client)

    with anyio.fail_after(HANG_S):
        return await anyio.to_thread.run_sync(work)


@pytest.mark.parametrize("source", SOURCES)
async def test_stdin_from_any_source_arrives_in_full(world: World, source: str) -> None:
    def stream(client: Client) -> str:
        items = client.exec_stream("s1", ["sha256sum"], stdin=SOURCES[source]())
        return b"".join(item.data for item in items if isinstance(item, ExecOutput)).decode()

    assert (await blocking(world, lambda c: c.exec("s1", ["sha256sum"], stdin=SOURCES[source]()))).stdout == DIGEST
    assert await blocking(world, stream) == DIGEST
    async with AsyncClient(world.socket, tenant="acme") as client:
        with anyio.fail_after(HANG_S):
            assert (await client.exec("s1", ["sha256sum"], stdin=SOURCES[source]())).stdout == DIGEST
            items = [item async for item in client.exec_stream("s1", ["sha256sum"], stdin=SOURCES[source]())]
            assert items[0] == ExecOutput("stdout", DIGEST.encode())


async def test_stdin_from_an_async_iterable_arrives_in_full(world: World) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in _slices():
            yield piece

    async with AsyncClient(world.socket, tenant="acme") as client:
        with anyio.fail_after(HANG_S):
            assert (await client.exec("s1", ["sha256sum"], stdin=pieces())).stdout == DIGEST


async def test_a_command_may_write_output_while_its_stdin_is_still_being_sent(world: World) -> None:
    def echo(client: Client) -> int:
        endless = itertools.repeat(CONTENT, 4)  # more than all buffers on the way hold
        items = client.exec_stream("s1", ["cat"], stdin=endless, max_output_bytes=MOST)
        return sum(len(item.data) for item in items if _is_output(item))

    assert await blocking(world, echo) == 4 * len(CONTENT)
    async with AsyncClient(world.socket, tenant="acme") as client:
        with anyio.fail_after(HANG_S):
            stream = client.exec_stream("s1", ["cat"], stdin=CONTENT * 4, max_output_bytes=MOST)
            assert sum([len(item.data) async for item in stream if _is_output(item)]) == 4 * len(CONTENT)


def _is_output(item: ExecOutput | ExecResult) -> TypeGuard[ExecOutput]:
    return isinstance(item, ExecOutput)


async def test_a_command_that_ends_early_does_not_wait_for_its_stdin(world: World) -> None:
    is_over = threading.Event()

    def waiting() -> Iterator[bytes]:
        yield b"one\n"
        is_over.wait(HANG_S)
        yield b"two\n"

    async def async_waiting() -> AsyncIterator[bytes]:
        yield b"one\n"
        await anyio.sleep_forever()

    assert (await blocking(world, lambda c: c.exec("s1", ["head", "-1"], stdin=waiting()))).stdout == "one\n"
    is_over.set()
    endless = itertools.repeat(CONTENT)
    assert (await blocking(world, lambda c: c.exec("s1", ["head", "-c", "1"], stdin=endless))).stdout == "\0"
    async with AsyncClient(world.socket, tenant="acme") as client:
        with anyio.fail_after(HANG_S):
            assert (await client.exec("s1", ["head", "-1"], stdin=async_waiting())).stdout == "one\n"
            assert (await client.exec("s1", ["true"])).exit_code == 0


async def test_a_source_that_fails_kills_the_command_and_its_error_is_raised(world: World) -> None:
    def broken() -> Iterator[bytes]:
        yield b"one\n"
        raise ZeroDivisionError("the source broke")

    for use in (
        lambda c: c.exec("s1", "cat; sleep 60", stdin=broken()),
        lambda c: list(c.exec_stream("s1", "cat; sleep 60", stdin=broken())),
    ):
        with pytest.raises(ZeroDivisionError, match="the source broke"):
            await blocking(world, use)
    async with AsyncClient(world.socket, tenant="acme") as client:
        with anyio.fail_after(HANG_S), pytest.raises(ZeroDivisionError):
            await client.exec("s1", "cat; sleep 60", stdin=broken())
        with anyio.fail_after(HANG_S), pytest.raises(InvalidRequest, match="open a file in binary mode"):
            await client.exec("s1", "cat; sleep 60", stdin=io.StringIO("text"))  # type: ignore[arg-type]
    await world.wait_quiet("s1")


async def test_a_key_is_refused_where_a_retry_could_not_be_recognised(world: World) -> None:
    def use(client: Client) -> None:
        assert client.exec("s1", ["wc", "-c"], stdin=CONTENT, idempotency_key="k1").stdout.strip() == str(len(CONTENT))
        with pytest.raises(InvalidRequest, match="idempotency key"):
            client.exec("s1", ["wc", "-c"], stdin=iter([b"x"]), idempotency_key="k2")
        with pytest.raises(InvalidRequest, match="idempotency key"):
            client.exec("s1", ["wc", "-c"], stdin=bytes(16_777_217), idempotency_key="k3")

    await blocking(world, use)
    async with await anyio.connect_unix(world.socket) as stream:
        body = b'{"command": "cat"}\nhello'
        status, _, content, _ = await ask(stream, request("POST", EXEC, body, WITH_STDIN, "idempotency-key: k4"))
        assert (status, json.loads(content)["code"]) == (400, "request.invalid")


@pytest.mark.parametrize(
    ("body", "status", "stdout"),
    [
        (b'{"command": "cat"}\nhello\n\xff', 200, "hello\n\ufffd"),
        (b'{"command": "cat"}\n', 200, ""),
        (b'{"command": "cat"}', 200, ""),
        (b'{"command": "cat", "stdin": "x"}\nhello', 400, None),
        (b"hello", 400, None),
        (b"\n{}", 400, None),
        (b"", 400, None),
    ],
)
async def test_the_first_line_is_the_call_and_the_rest_is_stdin(
    world: World, body: bytes, status: int, stdout: str | None
) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        found, _, content, _ = await ask(stream, request("POST", EXEC, body, WITH_STDIN))
        assert (found, json.loads(content).get("stdout")) == (status, stdout)
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(request("POST", EXEC, body, WITH_STDIN, "accept: text/event-stream"))
        found, headers, content, _ = await read_answer(stream)
        assert (found, headers["content-type"].startswith("text/event-stream")) == (status, status == 200)


async def test_a_body_that_ends_with_its_first_line_gives_no_stdin(world: World) -> None:
    look = b'{"command": "readlink /proc/self/fd/0"}'
    async with await anyio.connect_unix(world.socket) as stream:
        for body in (look + b"\n", look):
            status, _, content, _ = await ask(stream, request("POST", EXEC, body, WITH_STDIN))
            assert (status, json.loads(content)["stdout"]) == (200, "/dev/null\n")


async def test_stdin_may_arrive_slowly(tmp_path: Path) -> None:
    limits = WireLimits(head_timeout_s=1, body_timeout_s=0.3, body_min_bytes_per_s=10_000)
    async with serving(tmp_path, wire=limits) as world, await anyio.connect_unix(world.socket) as stream:
        assert (await ask(stream, request("PUT", SANDBOX, b'{"user":"u1"}')))[0] == 201
        head = request("POST", EXEC, b"", WITH_STDIN).replace(b"content-length: 0", b"transfer-encoding: chunked")
        await stream.send(head + b'13\r\n{"command": "cat"}\n\r\n')
        for letter in b"abc":
            await anyio.sleep(0.5)
            await stream.send(b"1\r\n%c\r\n" % letter)
        await stream.send(b"0\r\n\r\n")
        status, _, content, _ = await read_answer(stream)
        assert (status, json.loads(content)["stdout"]) == (200, "abc")


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_the_command_dies_when_its_client_disconnects_before_its_stdin_is_read(world: World, accept: str) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        head = request("POST", EXEC, b"", WITH_STDIN, f"accept: {accept}")
        await stream.send(head.replace(b"content-length: 0", b"content-length: 10000000"))
        await stream.send(b'{"command": "sleep 60"}\n')
        with anyio.move_on_after(1):  # until no more is accepted
            while True:
                await stream.send(bytes(65_536))
    await world.wait_quiet("s1")


async def test_output_comes_back_as_the_bytes_that_were_written(world: World) -> None:
    cases = {
        "printf 'h\\303\\244'": (b"h\xc3\xa4", b""),
        "printf '\\377\\000a'; echo err >&2": (b"\xff\0a", b"err\n"),
        "yes | head -c 300000; printf '\\303' >&2": (b"y\n" * 150_000, b"\xc3"),
        "yes | head -c 300000": (b"y\n" * 150_000, b""),
    }

    def use(client: Client) -> None:
        for command, (stdout, stderr) in cases.items():
            for stdin in (None, b"\xff", "text"):
                result = client.exec("s1", command, stdin=stdin)
                assert (result.stdout_bytes, result.stderr_bytes) == (stdout, stderr)
                assert result.stdout == stdout.decode("utf-8", "replace")
                assert result.stderr == stderr.decode("utf-8", "replace")

    await blocking(world, use)
    async with AsyncClient(world.socket, tenant="acme") as client:
        for command, (stdout, stderr) in cases.items():
            result = await client.exec("s1", command)
            assert (result.stdout_bytes, result.stderr_bytes) == (stdout, stderr)


async def test_an_answer_says_how_its_output_is_written(world: World) -> None:
    async def run(command: str, *headers: str, **fields: Any) -> bytes:
        body = json.dumps({"command": command, **fields}).encode()
        async with await anyio.connect_unix(world.socket) as stream:
            await stream.send(request("POST", EXEC, body, "connection: close", *headers))
            return b"".join([piece async for piece in stream]).partition(b"\r\n\r\n")[2]

    assert json.loads(await run("printf hi", encoding="auto"))["encoding"] == "text"
    answer = json.loads(await run("printf '\\377'", encoding="auto", stdin="text"))
    assert (answer["encoding"], answer["stdout"]) == ("base64", "/w==")
    assert "encoding" not in json.loads(await run("printf hi"))
    assert json.loads(await run("printf hi", encoding="base64"))["encoding"] == "base64"
    events = await run("printf hi; sleep 0.1; printf '\\377'", "accept: text/event-stream", encoding="auto")
    assert b'data: {"data":"hi","encoding":"text"}' in events
    assert b'data: {"data":"/w==","encoding":"base64"}' in events


async def test_stderr_is_merged_on_request(world: World) -> None:
    command = "echo a; echo b >&2; echo c"
    result = await blocking(world, lambda client: client.exec("s1", command, merge_stderr=True))
    assert (result.stdout, result.stderr) == ("a\nb\nc\n", "")
    async with AsyncClient(world.socket, tenant="acme") as client:
        items = [item async for item in client.exec_stream("s1", command, merge_stderr=True)]
        assert {item.stream for item in items if isinstance(item, ExecOutput)} == {"stdout"}


async def test_signals_and_terminal_options_reach_the_process(world: World) -> None:
    trap = "trap 'echo got INT' INT; trap 'echo got HUP' HUP; echo up; while true; do sleep 0.02; done"
    async with AsyncClient(world.socket, tenant="acme") as client:
        shown = await client.start_process("s1", "tty; echo $TERM; stty size", tty=True, term="vt100", rows=5)
        await until_shown(client, shown.id, "vt100\r\n5 80")
        process = await client.start_process("s1", trap)
        await until_shown(client, process.id, "up")
        assert await client.signal_process("s1", process.id, "INT") >= 1
        await until_shown(client, process.id, "got INT")
        assert await client.signal_process("s1", process.id, "HUP", to="process") == 1
        await until_shown(client, process.id, "got HUP")
        assert (await client.kill_process("s1", process.id, signal="TERM", grace_s=0.5)).ended_by == "TERM"
        stubborn = await client.start_process("s1", "trap '' TERM; echo up; sleep 60")
        await until_shown(client, stubborn.id, "up")
        assert (await client.kill_process("s1", stubborn.id, signal="TERM", grace_s=0.1)).ended_by == "KILL"
        for signal in ("NOPE", "int", "9", "CHLD"):
            with pytest.raises(InvalidRequest):
                await client.signal_process("s1", process.id, signal)
            with pytest.raises(InvalidRequest):
                await client.kill_process("s1", process.id, signal=signal)
        for wrong in ({"term": "vt100"}, {"echo": False}, {"rows": 5}, {"tty": True, "term": "a b"}):
            with pytest.raises(InvalidRequest):
                await client.start_process("s1", "cat", **wrong)


async def until_shown(client: AsyncClient, process: str, text: str) -> None:
    with anyio.fail_after(HANG_S):
        while text.encode() not in (await client.read_process("s1", process)).data:
            await anyio.sleep(0.02)


async def test_a_second_destroy_succeeds_with_missing_ok(world: World) -> None:
    async with AsyncClient(world.socket, tenant="acme") as client:
        await client.destroy_sandbox("s1", missing_ok=True)
        await client.destroy_sandbox("s1", missing_ok=True)
        with pytest.raises(NotFound):
            await client.destroy_sandbox("s1")
    await blocking(world, lambda ordinary: ordinary.destroy_sandbox("s1", missing_ok=True))


async def test_the_openapi_document_describes_streamed_stdin(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        document = json.loads((await ask(stream, request("GET", "/openapi.json")))[2])
    described = document["paths"]["/v1/tenants/{tenant}/sessions/{session}/exec"]["post"]
    assert set(described["requestBody"]["content"]) == {"application/json", "application/vnd.sandboxd.exec"}
    assert "application/vnd.sandboxd.exec" in described["summary"]
