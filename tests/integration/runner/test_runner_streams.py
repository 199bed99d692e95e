"""Streams to servers in a real container: any length both ways, half-closed, reset, and never in the way of a call."""

from __future__ import annotations

import hashlib

import anyio
import pytest

from sandboxd.errors import Busy, NothingListens, StreamClosed
from sandboxd.runner.calls import Exec
from sandboxd.runner.client import RunnerClient
from sandboxd.runner.inside.streams import MAX_STREAMS
from sandboxd.runner.stream import RunnerStream
from tests.integration.runner.box import HANG_S
from tests.integration.runner.test_runner_memory import resident_bytes

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

PIECE = bytes(range(256)) * 1024
SERVER = """
import os, socket, socketserver, sys
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        {handle}
class Server(socketserver.{kind}):
    daemon_threads = True
    request_queue_size = 256
    allow_reuse_address = True
Server.address_family = socket.{family}
server = Server({address!r}, Handler)
print("listening", flush=True)
server.serve_forever()
"""
ECHO = "while (data := self.request.recv(65536)): self.request.sendall(data)"


async def serve(
    runner: RunnerClient, address: object, handle: str = ECHO, family: str = "AF_INET", kind: str = "ThreadingTCPServer"
) -> str:
    """Start a server inside, and return its process once it listens."""
    code = SERVER.format(handle=handle, kind=kind, family=family, address=address)
    process = await runner.start_process(Exec(("python3", "-c", code)))
    output = await runner.read_process(process.id, wait_s=30)
    assert output.data == b"listening\n", output.data
    return process.id


async def receive_all(stream: RunnerStream) -> bytes:
    pieces = []
    while piece := await stream.receive():
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize(
    ("address", "family", "kind", "target"),
    [
        (("127.0.0.1", 8101), "AF_INET", "ThreadingTCPServer", {"port": 8101}),
        ("/tmp/echo.sock", "AF_UNIX", "ThreadingUnixStreamServer", {"unix": "/tmp/echo.sock"}),
    ],
    ids=["port", "unix"],
)
async def test_bytes_of_any_length_go_both_ways_and_do_not_grow_pid_1(
    runner: RunnerClient, address: object, family: str, kind: str, target: dict[str, object]
) -> None:
    process = await serve(runner, address, family=family, kind=kind)
    before = await resident_bytes(runner)
    received = hashlib.sha256()
    with anyio.fail_after(HANG_S):
        async with runner.dial(**target) as stream, anyio.create_task_group() as tasks:  # type: ignore[arg-type]

            async def send() -> None:
                for _ in range(80):
                    await stream.send(PIECE)
                await stream.send_eof()

            tasks.start_soon(send)
            while piece := await stream.receive():
                received.update(piece)
    assert received.hexdigest() == hashlib.sha256(PIECE * 80).hexdigest()
    assert await resident_bytes(runner) < before + 4 * 1_048_576
    await runner.kill_process(process)


async def test_a_half_closed_stream_still_carries_the_answer(runner: RunnerClient) -> None:
    handle = "data = b''.join(iter(lambda: self.request.recv(65536), b'')); self.request.sendall(b'%d' % len(data))"
    process = await serve(runner, ("127.0.0.1", 8103), handle)
    with anyio.fail_after(HANG_S):
        async with runner.dial(port=8103) as stream:
            await stream.send(b"x" * 100_000)
            await stream.send_eof()
            assert await receive_all(stream) == b"100000"
    await runner.kill_process(process)


@pytest.mark.parametrize("target", [{"port": 8199}, {"unix": "/tmp/missing.sock"}], ids=["port", "unix"])
async def test_without_a_server_the_error_says_so(runner: RunnerClient, target: dict[str, object]) -> None:
    with anyio.fail_after(HANG_S), pytest.raises(NothingListens, match="no process in the sandbox listens there"):
        async with runner.dial(**target):  # type: ignore[arg-type]
            pass


async def test_a_server_that_never_reads_stops_only_its_own_stream(runner: RunnerClient) -> None:
    process = await serve(runner, ("127.0.0.1", 8104), "import time; time.sleep(600)")
    before = await resident_bytes(runner)
    sent = 0
    async with runner.dial(port=8104) as stream:
        with anyio.move_on_after(1):
            while True:
                await stream.send(PIECE)
                sent += len(PIECE)
        assert sent < 32 * 1_048_576, "nothing was held back"
        with anyio.fail_after(HANG_S):
            assert (await runner.exec(Exec("echo alive"))).stdout == b"alive\n"
        assert await resident_bytes(runner) < before + 4 * 1_048_576
    await runner.kill_process(process)


async def test_a_client_that_never_receives_stops_the_server(runner: RunnerClient) -> None:
    flood = "while sent < 10**9: sent += self.request.send(b'x' * 65536); open('/tmp/sent', 'w').write(str(sent))"
    handle = f"sent = 0\n        {flood}"
    process = await serve(runner, ("127.0.0.1", 8105), handle)
    async with runner.dial(port=8105) as stream:
        await anyio.sleep(1)
        sent = int((await runner.exec(Exec("cat /tmp/sent"))).stdout)
        assert sent < 32 * 1_048_576
        with anyio.fail_after(HANG_S):
            assert (await stream.receive())[:1] == b"x"
    await runner.kill_process(process)


async def test_a_reset_is_told_from_an_end(runner: RunnerClient) -> None:
    handle = (
        "self.request.recv(1); import struct; "
        "self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); self.request.close()"
    )
    process = await serve(runner, ("127.0.0.1", 8106), handle)
    with anyio.fail_after(HANG_S):
        async with runner.dial(port=8106) as stream:
            await stream.send(b"go")
            with pytest.raises(StreamClosed, match="reset"):
                await receive_all(stream)
            with pytest.raises(StreamClosed):
                await stream.send(b"more")
    await runner.kill_process(process)


async def test_leaving_the_block_closes_the_connection_in_the_container(runner: RunnerClient) -> None:
    handle = "self.request.recv(1); print('closed', flush=True)"
    process = await serve(runner, ("127.0.0.1", 8107), handle)
    async with runner.dial(port=8107):
        pass
    with anyio.fail_after(HANG_S):
        output = await runner.read_process(process, len(b"listening\n"), wait_s=HANG_S / 2)
    assert output.data == b"closed\n"
    await runner.kill_process(process)


async def test_open_streams_leave_room_for_commands(runner: RunnerClient) -> None:
    process = await serve(runner, "/tmp/many.sock", "import time; time.sleep(600)", "AF_UNIX", "UnixStreamServer")
    async with anyio.create_task_group() as tasks:
        opened = []

        async def hold() -> None:
            try:
                async with runner.dial(unix="/tmp/many.sock"):
                    opened.append(True)
                    await anyio.sleep_forever()
            except (Busy, NothingListens) as error:  # the server's own limit on processes counts as well
                opened.append(isinstance(error, Busy))

        for _ in range(MAX_STREAMS + 10):
            tasks.start_soon(hold)
        with anyio.fail_after(HANG_S):
            while len(opened) < MAX_STREAMS + 10:
                await anyio.sleep(0.02)
            assert (await runner.exec(Exec("echo alive"))).stdout == b"alive\n"
        tasks.cancel_scope.cancel()
    await runner.kill_process(process)
