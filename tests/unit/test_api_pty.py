"""Terminals over a WebSocket: what the protocol promises, what it refuses, and what it holds."""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from anyio.abc import SocketStream

from memo.ids import SessionRef
from sandboxd.api.admission import MAX_SESSION_SOCKETS
from sandboxd.client import AsyncClient, AsyncSandbox, Client, Sandbox
from sandboxd.client.errors import AnswerLost
from sandboxd.errors import Gone, ProcessNotFound, SandboxNotFound
from sandboxd.wire_limits import WireLimits
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

REF = SessionRef.of("default", "s1")
PTY = "/v1/tenants/default/sessions/s1/pty"
WAIT_S = 30
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving_sandbox(tmp_path) as world:
        yield world


@asynccontextmanager
async def serving_sandbox(directory: Path, **settings: Any) -> AsyncIterator[World]:
    async with serving(directory, **settings) as world:
        async with AsyncClient(world.socket) as client:
            await client.ensure_sandbox("s1", "u1")
        yield world


@asynccontextmanager
async def session_of(world: World) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession("http://localhost", connector=aiohttp.UnixConnector(str(world.socket))) as session:
        yield session


@asynccontextmanager
async def opened(world: World, query: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with session_of(world) as session, session.ws_connect(f"{PTY}?{query}") as socket:
        yield socket


async def read_message(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(await socket.receive_str(timeout=WAIT_S))
    return message


async def read_until(socket: aiohttp.ClientWebSocketResponse, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += await socket.receive_bytes(timeout=WAIT_S)
    return seen


async def read_rest(socket: aiohttp.ClientWebSocketResponse) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the bytes and the messages until the daemon closes."""
    seen, messages = b"", []
    with anyio.fail_after(WAIT_S):
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                seen += message.data
            else:
                messages.append(json.loads(message.data))
    return seen, messages


def head(target: str = PTY, *lines: str, leave_out: str = "", host: str = "localhost") -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    usual = [f"host: {host}", "connection: Upgrade", "upgrade: websocket", f"sec-websocket-key: {key}"]
    usual += ["sec-websocket-version: 13", *lines]
    kept = [line for line in usual if not leave_out or not line.startswith(leave_out)]
    return "\r\n".join([f"GET {target} HTTP/1.1", *kept, "", ""]).encode()


def frame(opcode: int, data: bytes, *, fin: bool = True, masked: bool = True) -> bytes:
    first = (0x80 if fin else 0) | opcode
    mark = 0x80 if masked else 0
    if len(data) < 126:
        size = struct.pack("!BB", first, mark | len(data))
    elif len(data) < 65_536:
        size = struct.pack("!BBH", first, mark | 126, len(data))
    else:
        size = struct.pack("!BBQ", first, mark | 127, len(data))
    return size + (bytes(4) if masked else b"") + data


async def read_answer(stream: SocketStream) -> tuple[int, dict[str, Any]]:
    """Return the status of an answer, and the problem it holds."""
    data = b""
    with anyio.fail_after(WAIT_S):
        while b"\r\n\r\n" not in data:
            data += await stream.receive()
        top, _, body = data.partition(b"\r\n\r\n")
        lines = top.decode().lower().split("\r\n")
        size = next((int(line.split(": ")[1]) for line in lines if line.startswith("content-length")), 0)
        while len(body) < size:
            body += await stream.receive()
    return int(lines[0].split()[1]), json.loads(body[:size]) if size else {}


async def read_close(stream: SocketStream) -> int:
    """Return the code of the close frame that ends this connection."""
    data = b""
    with anyio.fail_after(WAIT_S):
        try:
            while True:
                data += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass
    position, code = 0, 1006
    while position + 2 <= len(data):
        opcode, size = data[position] & 15, data[position + 1]
        position += 2
        if size == 126:
            size = struct.unpack_from("!H", data, position)[0]
            position += 2
        elif size == 127:
            size = struct.unpack_from("!Q", data, position)[0]
            position += 8
        if opcode == CLOSE:
            code = struct.unpack_from("!H", data, position)[0]
        position += size
    return code


def calls_under_way(world: World) -> int:
    return world.manager._sandboxes.find(REF).active_calls


async def until_no_call_is_under_way(world: World) -> None:
    with anyio.fail_after(WAIT_S):
        while calls_under_way(world):
            await anyio.sleep(0.02)


# What the protocol promises


async def test_a_new_terminal_has_the_size_asked_for_and_ends_with_its_exit_code(world: World) -> None:
    async with opened(world, "command=stty+size;+exit+5&cols=101&rows=33") as socket:
        assert await read_message(socket) == {"type": "attached", "process": "p1", "offset": 0}
        seen, messages = await read_rest(socket)
        assert (seen, messages, socket.close_code) == (b"33 101\r\n", [{"type": "exit", "exit_code": 5}], 1000)


async def test_typed_bytes_reach_the_terminal_and_its_size_follows_the_window(world: World) -> None:
    async with opened(world, "command=bash+--norc") as socket:
        await read_message(socket)
        await socket.send_str(json.dumps({"type": "resize", "cols": 132, "rows": 50}))
        await socket.send_bytes(b"stty size\n")
        await read_until(socket, b"50 132")


async def test_closing_the_socket_leaves_the_process_and_another_socket_shows_what_it_missed(world: World) -> None:
    async with opened(world, "command=read+a;+echo+got+$a;+read+b;+echo+then+$b") as socket:
        await read_message(socket)
        await socket.send_bytes(b"one\n")
        seen = await read_until(socket, b"got one\r\n")
    await until_no_call_is_under_way(world)
    async with opened(world, f"process=p1&offset={len(seen)}") as socket:
        assert (await read_message(socket))["offset"] == len(seen)
        await socket.send_bytes(b"two\n")
        assert (await read_rest(socket))[0] == b"two\r\nthen two\r\n"


async def test_a_client_that_attaches_sees_about_the_last_screenful_from_the_start_of_a_line(world: World) -> None:
    async with opened(world, "command=seq+100000;+read+line") as socket:
        await read_message(socket)
        await read_until(socket, b"\n100000\r\n")
    async with opened(world, "process=p1") as socket:
        offset = (await read_message(socket))["offset"]
        seen = await read_until(socket, b"\n100000\r\n")
        first = int(seen.split(b"\r\n")[0])
        assert offset > 0
        assert 90_000 < first < 100_000
        assert seen == b"".join(b"%d\r\n" % number for number in range(first, 100_001))


async def test_attaching_to_a_process_that_has_ended_shows_its_output_and_exit_code(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        process = await client.start_process("s1", "echo done; exit 4")
    async with opened(world, f"process={process.id}") as socket:
        await read_message(socket)
        assert await read_rest(socket) == (b"done\n", [{"type": "exit", "exit_code": 4}])


async def test_a_process_without_a_terminal_gets_stdin_and_its_end_and_ignores_a_resize(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        process = await client.start_process("s1", "wc -c")
    async with opened(world, f"process={process.id}") as socket:
        await socket.send_str('{"type":"resize","cols":10,"rows":10}')
        for _ in range(20):
            await socket.send_bytes(bytes(65_536))
        await socket.send_str('{"type":"eof"}')
        await read_message(socket)
        assert (await read_rest(socket))[0].strip() == str(20 * 65_536).encode()


async def test_the_exit_of_a_shell_is_told_although_a_job_keeps_its_terminal(world: World) -> None:
    async with opened(world, "command=sleep+600+%26+exit+3") as socket:
        await read_message(socket)
        assert (await read_rest(socket))[1] == [{"type": "exit", "exit_code": 3}]
    async with AsyncClient(world.socket) as client:
        await client.kill_process("s1", "p1")


async def test_everything_a_terminal_shows_before_its_exit_is_sent(world: World) -> None:
    for _ in range(5):
        async with opened(world, "command=seq+20000") as socket:
            await read_message(socket)
            seen, messages = await read_rest(socket)
            assert seen == b"".join(b"%d\r\n" % number for number in range(1, 20_001))
            assert messages[-1]["type"] == "exit"


async def test_frames_that_arrive_with_the_handshake_are_not_lost(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(head(f"{PTY}?command=read+line;+exit+9") + frame(BINARY, b"now\n"))
        data = b""
        with anyio.fail_after(WAIT_S):
            while b'"exit_code":9' not in data:
                data += await stream.receive()
        assert data.startswith(b"HTTP/1.1 101 ")


async def test_a_message_in_fragments_with_pings_between_them_is_one_message(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        text = b'{"type":"resize","cols":77,"rows":44}'
        await stream.send(head(f"{PTY}?command=read+line;+stty+size"))
        await stream.send(frame(TEXT, text[:10], fin=False) + frame(PING, b"hi"))
        await stream.send(frame(CONTINUATION, b"", fin=False) * 1000 + frame(CONTINUATION, text[10:]))
        await stream.send(frame(BINARY, b"\n"))
        data = b""
        with anyio.fail_after(WAIT_S):
            while b"44 77" not in data:
                data += await stream.receive()
        assert frame(PONG, b"hi", masked=False) in data


async def test_an_attached_terminal_keeps_its_sandbox_from_being_idle(world: World) -> None:
    assert calls_under_way(world) == 0
    async with opened(world, "command=cat") as socket:
        await read_message(socket)
        assert calls_under_way(world) == 1
    await until_no_call_is_under_way(world)


async def test_a_daemon_that_stops_says_so_and_leaves_the_process(tmp_path: Path) -> None:
    async with serving_sandbox(tmp_path) as world, opened(world, "command=cat") as socket:
        await read_message(socket)
        world.stop_server()
        assert await read_rest(socket) == (b"", [])
        assert socket.close_code == 1001
        with await world.manager.call(REF) as runner:
            assert [process.running for process in await runner.list_processes()] == [True]


async def test_a_handshake_under_way_when_the_daemon_stops_does_not_hold_up_the_drain(world: World) -> None:
    with await world.manager.call(REF) as runner:
        held, start = anyio.Event(), runner.start_process

        async def start_late(*arguments: Any, **options: Any) -> Any:
            held.set()
            while not world.is_stopping():
                await anyio.sleep(0.01)
            await anyio.sleep(0.05)  # the server asks its connections to end
            return await start(*arguments, **options)

        runner.start_process = start_late  # type: ignore[method-assign]
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(head(f"{PTY}?command=cat"))
        await held.wait()
        world.stop_server()
        assert (await read_answer(stream))[0] == 101
        assert await read_close(stream) == 1001


# What it refuses


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("cols=0", 400, "request.invalid"),
        ("colums=80", 400, "request.invalid"),
        ("process=p1&command=ls", 400, "request.invalid"),
        ("offset=3", 400, "request.invalid"),
        ("process=p1&cols=3", 400, "request.invalid"),
        ("process=p99", 404, "process.not_found"),
        ("process=..%2f", 404, "process.not_found"),
    ],
)
async def test_a_wrong_query_is_a_problem_before_the_upgrade(world: World, query: str, status: int, code: str) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(head(f"{PTY}?{query}"))
        answer = await read_answer(stream)
        assert (answer[0], answer[1]["code"]) == (status, code)


async def test_an_unknown_session_is_not_found(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(head(PTY.replace("s1", "s2")))
        status, problem = await read_answer(stream)
        assert (status, problem["code"]) == (404, "sandbox.not_found")


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (head(leave_out="upgrade"), 426, "request.upgrade_required"),
        (head(leave_out="sec-websocket-key"), 400, "request.invalid"),
        (head(leave_out="sec-websocket-version"), 400, "request.invalid"),
        (head(leave_out="sec-websocket-key").replace(b"\r\n\r\n", b"\r\nsec-websocket-key: x\r\n\r\n"), 400, None),
        (head().replace(b"GET ", b"POST ", 1), 405, "request.method_not_allowed"),
        (head(PTY, "content-length: 3") + b"abc", 400, "request.invalid"),
        (head(PTY, "transfer-encoding: chunked"), 400, "request.invalid"),
        (head().replace(b"HTTP/1.1", b"HTTP/1.0", 1), 400, None),
        (head("/healthz"), 400, "request.invalid"),
        (head("/v1/tenants/default/sessions/s1/processes"), 400, "request.invalid"),
        (head("/v1/nowhere"), 404, "route.not_found"),
        (head("/v1/tenants/default/sessions/s1/../s1/pty"), 400, "request.invalid"),
    ],
)
async def test_what_is_not_a_handshake_for_this_route_is_a_clear_problem(
    world: World, raw: bytes, status: int, code: str | None
) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(raw)
        answer = await read_answer(stream)
        assert answer[0] == status
        assert code is None or answer[1]["code"] == code
    async with AsyncClient(world.socket) as client:
        assert await client.list_processes("s1") == []


@pytest.mark.parametrize(
    ("lines", "host", "status"),
    [
        ([], None, 401),
        (["authorization: Bearer wrong"], None, 401),
        (["authorization: Bearer TOKEN", "origin: http://localhost"], None, 403),
        (["authorization: Bearer TOKEN"], "evil.example", 403),
        (["authorization: Bearer TOKEN"], None, 101),
    ],
)
async def test_over_tcp_a_handshake_needs_token_and_host_and_no_origin(
    world: World, lines: list[str], host: str | None, status: int
) -> None:
    name, _, port = world.url.removeprefix("http://").partition(":")
    given = [line.replace("TOKEN", world.token) for line in lines]
    async with await anyio.connect_tcp(name, int(port)) as stream:
        await stream.send(head(PTY, *given, host=host or f"{name}:{port}"))
        assert (await read_answer(stream))[0] == status


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (frame(BINARY, bytes(65_537)), 1009),
        (frame(BINARY, bytes(40_000), fin=False) + frame(CONTINUATION, bytes(40_000)), 1009),
        (struct.pack("!BBQ", 0x82, 0xFF, 2**62) + bytes(4), 1009),
        (frame(BINARY, b"x", masked=False), 1002),
        (frame(CONTINUATION, b"x"), 1002),
        (frame(3, b"x"), 1002),
        (frame(PING, bytes(126)), 1002),
        (frame(BINARY | 0x40, b"compressed"), 1002),
        (frame(TEXT, b"\xff"), 1007),
        (frame(TEXT, b"{}"), 1007),
        (frame(TEXT, b'{"type":"resize","cols":0,"rows":1}'), 1007),
        (frame(TEXT, b"["), 1007),
        (frame(CLOSE, struct.pack("!H", 1000)), 1000),
    ],
)
async def test_a_frame_that_is_refused_closes_the_socket_with_a_code(world: World, frames: bytes, code: int) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(head(f"{PTY}?command=cat"))
        assert (await read_answer(stream))[0] == 101
        await stream.send(frames)
        assert await read_close(stream) == code
    async with AsyncClient(world.socket) as client:
        assert (await client.list_processes("s1"))[0].running, "closing detaches, whatever the reason"


# What it holds


async def test_a_client_that_never_reads_holds_up_only_itself_and_is_told_what_it_missed(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as silent:
        await silent.send(head(f"{PTY}?command=stty+raw;+head+-c+8000000+/dev/zero;+echo+over;+read+line"))
        assert (await read_answer(silent))[0] == 101
        async with AsyncClient(world.socket) as client:
            with anyio.fail_after(WAIT_S):
                # The process is not held up by the client, and other calls are answered.
                while (await client.list_processes("s1"))[0].output_bytes < 8_000_000:
                    await anyio.sleep(0.01)
        data = b""
        with anyio.fail_after(WAIT_S):
            while b"over\n" not in data:
                data += await silent.receive()
        assert b'"type":"dropped"' in data
        assert len(data) < 3_000_000, "only the runner's ring and the buffers on the way were kept"


async def test_pings_of_a_client_that_never_reads_are_not_answered_without_end(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as flooding:
        await flooding.send(head(f"{PTY}?command=cat"))
        block = frame(PING, bytes(125)) * 1000
        sent = 0
        with anyio.move_on_after(2):
            while sent < 200_000_000:
                await flooding.send(block)
                sent += len(block)
        assert sent < 20_000_000, "the daemon stops reading when its answers are not read"


async def test_input_that_a_process_does_not_read_stops_the_client_and_a_hang_up_is_noticed(world: World) -> None:
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(head(f"{PTY}?command=stty+raw+-echo;+exec+sleep+600"))
        assert (await read_answer(stream))[0] == 101
        sent = 0
        with anyio.move_on_after(2):
            while sent < 200_000_000:
                await stream.send(frame(BINARY, bytes(60_000)))
                sent += 60_000
        assert sent < 20_000_000
        assert calls_under_way(world) == 1
    await until_no_call_is_under_way(world)


async def test_a_silent_client_is_disconnected_and_one_that_answers_pings_is_not(tmp_path: Path) -> None:
    async with (
        serving_sandbox(tmp_path, wire=WireLimits(ping_s=0.3, head_timeout_s=0.5)) as world,
        opened(world, "command=cat") as lively,
        await anyio.connect_unix(world.socket) as silent,
    ):
        await read_message(lively)
        reading: list[Any] = []

        async def read() -> None:
            reading.append(await lively.receive())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await silent.send(head(f"{PTY}?command=cat"))
            assert (await read_answer(silent))[0] == 101
            await read_close(silent)
            assert not reading, "neither pings nor the deadline of a request end a socket whose client is there"
            tasks.cancel_scope.cancel()


async def test_open_sockets_do_not_take_the_place_of_calls(tmp_path: Path) -> None:
    async with serving_sandbox(tmp_path, max_calls=8) as world, AsyncExitStack() as stack:
        session = await stack.enter_async_context(session_of(world))
        await stack.enter_async_context(session.ws_connect(f"{PTY}?command=cat"))
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await stack.enter_async_context(session.ws_connect(f"{PTY}?command=cat"))
        assert refused.value.status == 409
        async with AsyncClient(world.socket) as client:
            assert len(await client.list_processes("s1")) == 1, "a socket without a place starts nothing"

            async with anyio.create_task_group() as tasks:
                for _ in range(6):  # three quarters of 8
                    tasks.start_soon(client.exec, "s1", "sleep 0.5")


async def test_of_200_sockets_on_one_session_64_are_open_and_the_rest_are_refused(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        process = await client.start_process("s1", "cat")
        statuses = []
        async with AsyncExitStack() as stack:
            for _ in range(200):
                stream = await stack.enter_async_context(await anyio.connect_unix(world.socket))
                await stream.send(head(f"{PTY}?process={process.id}"))
                statuses.append((await read_answer(stream))[0])
            assert (statuses.count(101), statuses.count(429)) == (MAX_SESSION_SOCKETS, 200 - MAX_SESSION_SOCKETS)
            assert (await client.exec("s1", "echo works")).stdout == "works\n"
        await until_no_call_is_under_way(world)
        async with opened(world, f"process={process.id}") as socket:
            assert (await read_message(socket))["process"] == process.id
    assert world.budget.total == 0


async def test_an_upgrade_that_stops_half_way_ends_at_the_deadline_of_a_request(tmp_path: Path) -> None:
    async with (
        serving_sandbox(tmp_path, wire=WireLimits(head_timeout_s=0.5)) as world,
        await anyio.connect_unix(world.socket) as stream,
    ):
        await stream.send(head()[:-2])
        assert (await read_answer(stream))[0] == 408


# The clients


async def test_a_terminal_of_the_async_client_sends_resizes_detaches_and_goes_on(world: World) -> None:
    async with await AsyncSandbox.connect("s1", socket=world.socket) as sandbox:
        terminal = await sandbox.pty.create("bash --norc", rows=10, columns=20)
        seen = b""
        await terminal.attach()
        await terminal.resize(30, 90)
        await terminal.send("stty size\n")
        async for piece in terminal:
            seen += piece
            if b"30 90" in seen:
                break
        await terminal.close()
        assert (await terminal.get_record()).running
        await terminal.send("exit 6\n")
        rest = b"".join([piece async for piece in terminal])
        assert b"stty" not in rest, "it goes on where it ended"
        assert (terminal.exit_code, (await terminal.wait()).exit_code) == (6, 6)
        again = sandbox.pty.connect(terminal.id)
        assert b"".join([piece async for piece in again]).startswith(seen)


async def test_a_terminal_of_the_synchronous_client_does_the_same(world: World) -> None:
    def talk() -> None:
        with Client(url=world.url, token=world.token) as client:
            sandbox = Sandbox.connect("s1", client=client)
            with sandbox.pty.create("bash --norc", rows=10, columns=20) as terminal:
                seen = b""
                terminal.attach()
                terminal.resize(30, 90)
                terminal.send("stty size\n")
                for piece in terminal:
                    seen += piece
                    if b"30 90" in seen:
                        break
                terminal.close()
                assert terminal.get_record().running
                terminal.send("exit 6\n")
                assert b"stty" not in b"".join(terminal)
                assert terminal.wait().exit_code == terminal.exit_code == 6
            with pytest.raises(ProcessNotFound):
                sandbox.pty.connect("p99").attach()
            left_open = sandbox.pty.create("cat")
            left_open.send("x")

    await anyio.to_thread.run_sync(talk)
    await until_no_call_is_under_way(world)


async def test_an_error_of_the_daemon_is_the_same_error_in_the_client(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        with pytest.raises(ProcessNotFound, match="cannot find process 'p99'"):
            await client.open_pty("s1", "p99")
        with pytest.raises(SandboxNotFound):
            await client.open_pty("s2", "p1")


async def test_a_terminal_whose_sandbox_is_removed_raises_why(world: World) -> None:
    async with await AsyncSandbox.connect("s1", socket=world.socket) as sandbox:
        terminal = await sandbox.pty.create("cat")
        await terminal.attach()
        await terminal.send("x")
        pieces = aiter(terminal)
        assert await anext(pieces) == b"x"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.kill)
            with pytest.raises(Gone), anyio.fail_after(WAIT_S):
                await anext(pieces)


async def test_a_terminal_that_was_disconnected_for_its_silence_goes_on_where_it_ended(tmp_path: Path) -> None:
    async with (
        serving_sandbox(tmp_path, wire=WireLimits(ping_s=0.1)) as world,
        await AsyncSandbox.connect("s1", socket=world.socket) as sandbox,
    ):
        terminal = await sandbox.pty.create("cat")
        await terminal.send("one\n")  # opens the socket, and nothing here answers pings
        await until_no_call_is_under_way(world)
        await terminal.send("two\n")
        seen = b""
        async for piece in terminal:
            seen += piece
            if seen.count(b"two") == 2:
                break
        assert seen == b"one\r\none\r\ntwo\r\ntwo\r\n"
        await terminal.kill()


async def test_a_client_that_was_closed_opens_nothing(world: World) -> None:
    client = AsyncClient(world.socket)
    socket = await client.open_pty("s1", (await client.start_process("s1", "cat")).id)
    await client.close()
    with pytest.raises(AnswerLost):
        while True:
            await socket.receive()
    await until_no_call_is_under_way(world)
