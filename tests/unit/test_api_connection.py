"""The daemon's HTTP connection as raw bytes: what it takes, what it refuses, and how it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxd.api.connection import MAX_HEAD_BYTES
from tests.unit.standin import World, serving

pytestmark = pytest.mark.anyio

EXEC = "/v1/tenants/acme/sessions/s1/exec"


def request(method: str, target: str, body: bytes = b"", *lines: str) -> bytes:
    head = [f"{method} {target} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


HEALTH = request("GET", "/healthz")


def echo(word: str) -> bytes:
    return request("POST", EXEC, json.dumps({"command": ["echo", word]}).encode())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as world:
        async with await anyio.connect_unix(world.socket) as stream:
            created = await ask(stream, request("PUT", "/v1/tenants/acme/sessions/s1/sandbox", b'{"user":"u1"}'))
            assert created[0] == 201
        yield world


async def read_answer(stream: SocketStream, rest: bytes = b"") -> tuple[int, dict[str, str], bytes, bytes]:
    """Read one answer of known size: its status, headers and body, and what came after it."""
    data = rest
    with anyio.fail_after(20):
        while b"\r\n\r\n" not in data:
            data += await stream.receive()
        head, _, body = data.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        size = int(headers.get("content-length", "0"))
        while len(body) < size:
            body += await stream.receive()
    return int(status.split()[1]), headers, body[:size], body[size:]


async def ask(stream: SocketStream, raw: bytes) -> tuple[int, dict[str, str], bytes, bytes]:
    await stream.send(raw)
    return await read_answer(stream)


async def assert_closed(stream: SocketStream) -> None:
    with anyio.fail_after(20), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
        while True:
            await stream.receive()


async def test_a_short_answer_leaves_in_one_write(world: World) -> None:
    """A datagram-like look at the stream: the first read already holds everything."""
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(HEALTH)
        with anyio.fail_after(20):
            data = await stream.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head
    assert json.loads(body)["status"] == "ok"


async def test_requests_sent_ahead_are_answered_in_order(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(b"".join(echo(str(number)) for number in range(20)))
        rest = b""
        for number in range(20):
            status, _, body, rest = await read_answer(stream, rest)
            assert (status, json.loads(body)["stdout"]) == (200, f"{number}\n")
        assert (await ask(stream, HEALTH))[0] == 200
    assert rest == b""


async def test_a_request_may_come_in_crumbs(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        for byte in echo("crumbs"):
            await stream.send(bytes([byte]))
        status, _, body, _ = await read_answer(stream)
    assert (status, json.loads(body)["stdout"]) == (200, "crumbs\n")


async def test_a_body_in_chunks_is_put_together(world: World) -> None:
    raw = f"POST {EXEC} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    body = b'{"command":["echo","hi"]}'
    raw += b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:7], body[7:8], body[8:])) + b"0\r\n\r\n"
    async with await anyio.connect_unix(world.socket) as stream:
        status, _, answer, _ = await ask(stream, raw)
        assert (status, json.loads(answer)["stdout"]) == (200, "hi\n")
        assert (await ask(stream, HEALTH))[0] == 200


async def test_whoever_waits_for_leave_to_send_gets_it(world: World) -> None:
    body = b'{"command":["echo","hi"]}'
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(request("POST", EXEC, body, "expect: 100-continue")[: -len(body)])
        with anyio.fail_after(20):
            assert await stream.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        status, _, answer, _ = await ask(stream, body)
    assert (status, json.loads(answer)["stdout"]) == (200, "hi\n")


async def test_whoever_is_refused_before_sending_the_body_finds_the_connection_closed(world: World) -> None:
    head = request("POST", EXEC, b"", "expect: 100-continue").replace(b"content-length: 0", b"content-length: 99999999")
    async with await anyio.connect_unix(world.socket) as stream:
        status, headers, _, _ = await ask(stream, head)
        assert (status, headers["connection"]) == (413, "close")
        await assert_closed(stream)


async def test_an_old_client_gets_its_answer_and_the_end(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        status, headers, body, _ = await ask(stream, HEALTH.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (status, headers["connection"], json.loads(body)["status"]) == (200, "close", "ok")
        await assert_closed(stream)


async def test_an_offer_of_another_protocol_is_answered_in_this_one(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        status, _, _, _ = await ask(
            stream, request("GET", "/healthz", b"", "connection: upgrade", "upgrade: websocket")
        )
        assert status == 200
        await assert_closed(stream)


async def test_an_answer_to_head_has_no_body(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(request("HEAD", "/healthz"))
        with anyio.fail_after(20):
            head = await stream.receive()
            assert head.startswith(b"HTTP/1.1 405 ")
            assert head.endswith(b"\r\n\r\n")
        assert (await ask(stream, HEALTH))[0] == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nho st: x\r\n\r\n",
        b"CONNECT localhost:1 HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_as_a_problem(world: World, raw: bytes) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        status, headers, body, _ = await ask(stream, raw)
        assert (status, headers["content-type"]) == (400, "application/problem+json")
        assert json.loads(body)["detail"].startswith("cannot read this request")
        await assert_closed(stream)


async def test_headers_without_end_are_refused(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(b"GET /healthz HTTP/1.1\r\nx: ")
        with anyio.fail_after(20):
            sent = 0
            while sent <= MAX_HEAD_BYTES:
                await stream.send(b"a" * 8192)
                sent += 8192
            status, _, body, _ = await read_answer(stream)
        assert status == 400
        assert "headers are longer" in json.loads(body)["detail"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(min_size=1, max_size=200))
async def test_no_garbage_hangs_or_breaks_the_daemon(world: World, raw: bytes) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(raw)
        await stream.send_eof()
        await assert_closed(stream)
    async with await anyio.connect_unix(world.socket) as stream:
        assert (await ask(stream, HEALTH))[0] == 200


async def test_what_is_under_way_is_answered_before_the_end(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"

    async def finish(stream: SocketStream, idle: SocketStream) -> None:
        async with stream, idle:
            await assert_closed(idle)  # the server has begun to stop
            await anyio.to_thread.run_sync(fifo.write_text, "late\n")
            status, headers, body, _ = await read_answer(stream)
            assert (status, headers["connection"], json.loads(body)["stdout"]) == (200, "close", "late\ndone\n")

    async with anyio.create_task_group() as tasks, serving(tmp_path) as world:
        stream, idle = await anyio.connect_unix(world.socket), await anyio.connect_unix(world.socket)
        await ask(stream, request("PUT", "/v1/tenants/acme/sessions/s1/sandbox", b'{"user":"u1"}'))
        command = f"mkfifo {fifo}; cat {fifo}; echo done"
        await stream.send(request("POST", EXEC, json.dumps({"command": command}).encode()))
        with anyio.fail_after(20):
            while not fifo.exists():  # the command is another process: there is no event for it
                await anyio.sleep(0.02)
        tasks.start_soon(finish, stream, idle)
