"""The daemon's HTTP connection as raw bytes: what it accepts, what it refuses, and how it closes."""

from __future__ import annotations

import gc
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxd.api.connection import MAX_HEAD_BYTES, MAX_HEADERS, HttpConnection
from sandboxd.wire_limits import WireLimits
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

SANDBOX = "/v1/tenants/acme/sessions/s1/sandbox"
EXEC = "/v1/tenants/acme/sessions/s1/exec"


def request(method: str, target: str, body: bytes = b"", *lines: str) -> bytes:
    head = [f"{method} {target} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


HEALTH = request("GET", "/healthz")


def chunked_head() -> bytes:
    return f"POST {EXEC} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()


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


async def test_pipelined_requests_are_answered_in_order(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(b"".join(echo(str(number)) for number in range(20)))
        rest = b""
        for number in range(20):
            status, _, body, rest = await read_answer(stream, rest)
            assert (status, json.loads(body)["stdout"]) == (200, f"{number}\n")
        assert (await ask(stream, HEALTH))[0] == 200
    assert rest == b""


async def test_a_request_may_arrive_byte_by_byte(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        for byte in echo("crumbs"):
            await stream.send(bytes([byte]))
        status, _, body, _ = await read_answer(stream)
    assert (status, json.loads(body)["stdout"]) == (200, "crumbs\n")


async def test_a_chunked_body_is_assembled(world: World) -> None:
    raw = f"POST {EXEC} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    body = b'{"command":["echo","hi"]}'
    raw += b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:7], body[7:8], body[8:])) + b"0\r\n\r\n"
    async with await anyio.connect_unix(world.socket) as stream:
        status, _, answer, _ = await ask(stream, raw)
        assert (status, json.loads(answer)["stdout"]) == (200, "hi\n")
        assert (await ask(stream, HEALTH))[0] == 200


async def test_a_client_that_expects_100_continue_gets_it(world: World) -> None:
    body = b'{"command":["echo","hi"]}'
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(request("POST", EXEC, body, "expect: 100-continue")[: -len(body)])
        with anyio.fail_after(20):
            assert await stream.receive() == b"HTTP/1.1 100 Continue\r\n\r\n"
        status, _, answer, _ = await ask(stream, body)
    assert (status, json.loads(answer)["stdout"]) == (200, "hi\n")


async def test_a_refusal_before_the_body_is_sent_closes_the_connection(world: World) -> None:
    head = request("POST", EXEC, b"", "expect: 100-continue").replace(b"content-length: 0", b"content-length: 99999999")
    async with await anyio.connect_unix(world.socket) as stream:
        status, headers, _, _ = await ask(stream, head)
        assert (status, headers["connection"]) == (413, "close")
        await assert_closed(stream)


async def test_an_http_1_0_client_gets_its_answer_and_a_close(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        status, headers, body, _ = await ask(stream, HEALTH.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (status, headers["connection"], json.loads(body)["status"]) == (200, "close", "ok")
        await assert_closed(stream)


async def test_an_upgrade_to_another_version_of_http_is_answered_in_http_1_1(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        status, _, _, _ = await ask(stream, request("GET", "/healthz", b"", "connection: upgrade", "upgrade: h2c"))
        assert status == 200
        await assert_closed(stream)


async def test_an_answer_to_head_has_no_body(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(request("HEAD", "/healthz"))
        with anyio.fail_after(20):
            head = await stream.receive()
            assert head.startswith(b"HTTP/1.1 405 ")
            assert head.endswith(b"\r\n\r\n")
        status, headers, _, _ = await ask(stream, HEALTH)
        assert (status, headers["content-type"]) == (200, "application/json")


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


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /healthz HTTP/1.1\r\nx: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
        b"GET /" + b"a" * (MAX_HEAD_BYTES + 1) + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * (MAX_HEADERS + 1) + b"\r\n",
        HEALTH + b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * (MAX_HEADERS + 1) + b"\r\n",
    ],
    ids=["one header", "target", "count of headers", "second request"],
)
async def test_a_head_over_its_bounds_is_refused(world: World, raw: bytes) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        if raw.startswith(HEALTH):
            assert (await ask(stream, HEALTH))[0] == 200
            raw = raw.removeprefix(HEALTH)
        status, headers, body, _ = await ask(stream, raw)
        assert (status, headers["content-type"], headers["connection"]) == (431, "application/problem+json", "close")
        assert json.loads(body)["code"] == "request.head_too_large"
        await assert_closed(stream)


@pytest.mark.parametrize("start", [b"0\r\nx: ", b"5;x="], ids=["trailer", "chunk extension"])
async def test_a_trailer_or_chunk_extension_over_the_bound_is_refused(world: World, start: bytes) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(chunked_head() + start)
        await stream.send(b"a" * (2 * MAX_HEAD_BYTES))
        status, _, body, _ = await read_answer(stream)
        assert (status, json.loads(body)["code"]) == (400, "request.invalid")
        assert "trailer or chunk extension" in json.loads(body)["detail"]
        await assert_closed(stream)


async def test_trailers_are_dropped_and_never_treated_as_headers(world: World) -> None:
    """A trailer arrives after the guard and idempotency have checked the headers."""
    body = b'{"command":["echo","hi"]}'
    raw = chunked_head() + b"%x;note=1\r\n%b\r\n0\r\nidempotency-key: k1\r\norigin: x\r\n\r\n" % (len(body), body)
    async with await anyio.connect_unix(world.socket) as stream:
        for count in (1, 2):
            status, headers, answer, _ = await ask(stream, raw)
            assert (status, json.loads(answer)["stdout"]) == (200, "hi\n")
            assert "idempotency-replayed" not in headers
            assert world.commands() == count
        assert (await ask(stream, HEALTH))[0] == 200


async def test_more_pipelined_requests_than_are_parsed_at_once_are_all_answered(world: World) -> None:
    count = 5000
    async with await anyio.connect_unix(world.socket) as stream, anyio.create_task_group() as tasks:
        tasks.start_soon(stream.send, HEALTH * count)
        rest = b""
        for _ in range(count):
            status, _, _, rest = await read_answer(stream, rest)
            assert status == 200
        assert rest == b""


async def test_a_client_that_pipelines_and_disconnects_cancels_its_calls(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        sleep = request("POST", EXEC, json.dumps({"command": ["sleep", "60"]}).encode())
        await stream.send(sleep + HEALTH)
        await world.wait_busy()
    await world.wait_quiet("s1")


SHORT = WireLimits(head_timeout_s=1, body_timeout_s=0.5, body_min_bytes_per_s=10_000)


async def test_a_silent_connection_is_closed(tmp_path: Path) -> None:
    async with serving(tmp_path, wire=SHORT) as world, await anyio.connect_unix(world.socket) as stream:
        with anyio.fail_after(20), pytest.raises(anyio.EndOfStream):
            await stream.receive()


@pytest.mark.parametrize(
    ("start", "crumb"),
    [
        (b"GET /healthz HTTP/1.1\r\n", b"x: y\r\n"),
        (request("POST", EXEC).replace(b"content-length: 0", b"content-length: 50000"), b" "),
        (request("POST", EXEC).replace(b"content-length: 0", b"transfer-encoding: chunked"), b"1\r\n \r\n"),
    ],
    ids=["head", "body", "chunks"],
)
async def test_a_request_that_arrives_too_slowly_is_ended(tmp_path: Path, start: bytes, crumb: bytes) -> None:
    async with serving(tmp_path, wire=SHORT) as world, await anyio.connect_unix(world.socket) as stream:
        assert (await ask(stream, request("PUT", SANDBOX, b'{"user":"u1"}')))[0] == 201
        await stream.send(start)

        async def drip() -> None:
            with suppress(anyio.BrokenResourceError):
                while True:
                    await stream.send(crumb)
                    await anyio.sleep(0.02)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drip)
            status, headers, body, _ = await read_answer(stream)
            tasks.cancel_scope.cancel()
        problem = json.loads(body)
        assert (status, headers["connection"]) == (408, "close")
        assert (problem["code"], problem["retryable"]) == ("request.timeout", True)
        await assert_closed(stream)
        assert world.commands() == 0


async def test_deadlines_do_not_affect_calls_that_are_slow_for_other_reasons(tmp_path: Path) -> None:
    """A long command, a stream of events, a client that reads slowly, an upload that the sandbox takes slowly."""
    async with serving(tmp_path, wire=SHORT) as world, await anyio.connect_unix(world.socket) as stream:
        assert (await ask(stream, request("PUT", SANDBOX, b'{"user":"u1"}')))[0] == 201
        command = json.dumps({"command": ["sleep", "1.5"]}).encode()
        assert (await ask(stream, request("POST", EXEC, command)))[0] == 200
        await stream.send(request("POST", EXEC, command, "accept: text/event-stream"))
        with anyio.fail_after(20):
            data = b""
            while b"event: exit" not in data:
                data += await stream.receive()
    async with serving(tmp_path, wire=SHORT) as world, await anyio.connect_unix(world.socket) as stream:
        assert (await ask(stream, request("PUT", SANDBOX, b'{"user":"u1"}')))[0] in (200, 201)
        (world.workspace("s1") / "big").write_bytes(bytes(8_000_000))
        target = "/v1/tenants/acme/sessions/s1/files?path=/workspace/big"
        await stream.send(request("GET", target))
        await anyio.sleep(1)
        _, _, body, _ = await read_answer(stream)
        assert len(body) == 8_000_000
        container = world.running_container("s1")
        async with anyio.create_task_group() as tasks:

            async def pause() -> None:
                world.table.containers[container].signal(signal.SIGSTOP)
                await anyio.sleep(1)
                world.table.containers[container].signal(signal.SIGCONT)

            tasks.start_soon(pause)
            assert (await ask(stream, request("PUT", target, bytes(2_000_000))))[0] == 200


async def test_an_answer_that_does_not_wait_for_the_body_gives_the_client_time_to_read_it(tmp_path: Path) -> None:
    async with serving(tmp_path, wire=SHORT) as world, await anyio.connect_unix(world.socket) as stream:
        head = request("POST", EXEC).replace(b"content-length: 0", b"content-length: 99999999")
        status, _, _, rest = await ask(stream, head + b"{")
        assert (status, rest) == (413, b"")
        await assert_closed(stream)  # and no second answer


async def test_an_endless_body_is_cut_off_after_its_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, wire=SHORT) as world, await anyio.connect_unix(world.socket) as stream:
        head = request("POST", EXEC).replace(b"content-length: 0", b"content-length: 999999999999")
        assert (await ask(stream, head))[0] == 413
        with anyio.fail_after(20), pytest.raises(anyio.BrokenResourceError):
            while True:
                await stream.send(bytes(65_536))  # faster than any minimum


async def test_one_body_above_the_cap_ends_only_the_slowest(tmp_path: Path) -> None:
    async with serving(tmp_path, max_calls=8) as world, AsyncExitStack() as stack:
        body = json.dumps({"command": ["echo", "x" * 500]}).encode()
        raw = request("POST", EXEC, body)
        *uploads, other = [await stack.enter_async_context(await anyio.connect_unix(world.socket)) for _ in range(6)]
        assert (await ask(uploads[0], request("PUT", SANDBOX, b'{"user":"u1"}')))[0] == 201
        for number, stream in enumerate(uploads):
            received = 1 if number == 2 else 300  # the third is the slowest
            await stream.send(raw[: len(raw) - len(body) + received])
            assert (await ask(other, HEALTH))[0] == 200  # what was sent before has been read
        status, _, answer, _ = await read_answer(uploads[2])
        assert (status, json.loads(answer)["code"]) == (408, "request.timeout")
        for number in (0, 1, 3, 4):
            assert (await ask(uploads[number], raw[len(raw) - len(body) + 300 :]))[0] == 200


async def test_a_closed_connection_is_freed_without_the_garbage_collector(world: World) -> None:
    """The daemon collects garbage rarely, and a connection may hold much data of an unauthenticated client."""
    port = int(world.url.rpartition(":")[2])
    gc.collect()
    gc.disable()
    try:
        for start in (
            b"GET /" + b"a" * 60_000,
            chunked_head() + b"5\r\nhal",
            HEALTH * 2,
            HEALTH * 500,
            b"GARBAGE\r\n\r\n",
        ):
            for _ in range(5):
                async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                    await stream.send(start)
        with anyio.fail_after(20):
            while any(isinstance(thing, HttpConnection) for thing in gc.get_objects()):
                await anyio.sleep(0.02)
    finally:
        gc.enable()


async def test_at_the_cap_the_oldest_unauthenticated_connection_is_closed(tmp_path: Path) -> None:
    limits = WireLimits(max_connections=4, max_unauthenticated=2)
    async with serving(tmp_path, wire=limits) as world, AsyncExitStack() as stack:
        port = int(world.url.rpartition(":")[2])

        async def connect() -> SocketStream:
            return await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))

        known_health = (
            f"GET /healthz HTTP/1.1\r\nhost: localhost:{port}\r\nauthorization: Bearer {world.token}\r\n\r\n".encode()
        )
        known = [await connect() for _ in range(2)]
        for stream in known:
            assert (await ask(stream, known_health))[0] == 200
        strangers = [await connect() for _ in range(3)]
        await assert_closed(strangers[0])
        for stream in known:
            assert (await ask(stream, known_health))[0] == 200
        for stream in strangers[1:]:  # they have the token after all
            assert (await ask(stream, known_health))[0] == 200
        newcomer = await connect()  # all are authenticated and idle: the longest idle is closed
        assert (await ask(newcomer, known_health))[0] == 200
        await assert_closed(known[0])
        assert (await ask(known[1], known_health))[0] == 200


async def test_at_the_cap_of_the_unix_socket_the_longest_idle_connection_is_closed(tmp_path: Path) -> None:
    limits = _FewConnections()
    async with serving(tmp_path, wire=limits) as world, AsyncExitStack() as stack:

        async def connect() -> SocketStream:
            return await stack.enter_async_context(await anyio.connect_unix(world.socket))

        streams = [await connect() for _ in range(3)]
        for stream in streams:
            assert (await ask(stream, HEALTH))[0] == 200
        await streams[0].send(request("GET", "/v1/events"))  # busy from now on
        await streams[0].receive()
        newcomer = await connect()
        assert (await ask(newcomer, HEALTH))[0] == 200
        await assert_closed(streams[1])
        assert (await ask(streams[2], HEALTH))[0] == 200


class _FewConnections(WireLimits):
    def unix_connections(self, open_files: int) -> int:
        return 3


async def test_endless_headers_are_refused(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(b"GET /healthz HTTP/1.1\r\nx: ")
        with anyio.fail_after(20):
            sent = 0
            while sent <= MAX_HEAD_BYTES:
                await stream.send(b"a" * 8192)
                sent += 8192
            status, _, body, _ = await read_answer(stream)
        assert status == 431
        assert "bytes or 100 lines of headers" in json.loads(body)["detail"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(min_size=1, max_size=200))
async def test_no_garbage_hangs_or_breaks_the_daemon(world: World, raw: bytes) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(raw)
        await stream.send_eof()
        await assert_closed(stream)
    async with await anyio.connect_unix(world.socket) as stream:
        assert (await ask(stream, HEALTH))[0] == 200


async def test_a_call_that_outlasts_the_drain_loses_its_connection(tmp_path: Path) -> None:
    """Its outcome is unknown, so it gets no answer at all."""

    async def expect_no_answer(stream: SocketStream) -> None:
        async with stream:
            with anyio.fail_after(20), pytest.raises(anyio.EndOfStream):
                await stream.receive()

    async with anyio.create_task_group() as tasks, serving(tmp_path, drain_s=1) as world:
        stream = await anyio.connect_unix(world.socket)
        await ask(stream, request("PUT", SANDBOX, b'{"user":"u1"}'))
        await stream.send(request("POST", EXEC, json.dumps({"command": ["sleep", "60"]}).encode()))
        await world.wait_busy()
        tasks.start_soon(expect_no_answer, stream)


async def test_an_idle_connection_is_closed_after_its_keep_alive(tmp_path: Path) -> None:
    async with serving(tmp_path, wire=WireLimits(keep_alive_s=1)) as world:
        async with await anyio.connect_unix(world.socket) as stream:
            assert (await ask(stream, HEALTH))[0] == 200
            await assert_closed(stream)
        async with await anyio.connect_unix(world.socket) as stream:  # the rest of a body does not keep it open
            head = request("POST", EXEC).replace(b"content-length: 0", b"content-length: 99999999")
            assert (await ask(stream, head))[0] == 413
            await stream.send(b"x")
            await assert_closed(stream)


async def test_calls_in_flight_are_answered_before_the_server_stops(tmp_path: Path) -> None:
    async def finish(stream: SocketStream, idle: SocketStream, fifo: Path) -> None:
        async with stream, idle:
            await assert_closed(idle)  # the server has begun to stop
            await anyio.to_thread.run_sync(fifo.write_text, "late\n")
            status, headers, body, _ = await read_answer(stream)
            assert (status, headers["connection"], json.loads(body)["stdout"]) == (200, "close", "late\ndone\n")

    async with anyio.create_task_group() as tasks, serving(tmp_path) as world:
        stream, idle = await anyio.connect_unix(world.socket), await anyio.connect_unix(world.socket)
        await ask(stream, request("PUT", "/v1/tenants/acme/sessions/s1/sandbox", b'{"user":"u1"}'))
        fifo = world.workspace("s1") / "fifo"
        command = "mkfifo /workspace/fifo; cat /workspace/fifo; echo done"
        await stream.send(request("POST", EXEC, json.dumps({"command": command}).encode()))
        with anyio.fail_after(20):
            while not fifo.exists():  # the command is another process: there is no event for it
                await anyio.sleep(0.02)
        tasks.start_soon(finish, stream, idle, fifo)
