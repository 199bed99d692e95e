"""Streams that processes in a real container open to the daemon: any bytes, any end, and never in the way of a call."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream

from sandboxd.errors import Conflict, NotReady, SandboxdError, StreamClosed
from sandboxd.models.network import ListeningPort
from sandboxd.runner.accepted_streams import AcceptedStream
from sandboxd.runner.calls import Exec
from sandboxd.runner.client import RunnerClient
from sandboxd.runner.inside.container_paths import PROXY_PORT
from tests.integration.runner.box import HANG_S, Box
from tests.integration.runner.test_runner_memory import MEBIBYTE, resident_bytes
from tests.integration.runner.test_runner_streams import ECHO, receive_all, serve

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

PLACES = 16
PIECE = bytes(range(256)) * 1024
CONNECT = f"import socket, struct, sys, time; s = socket.create_connection(('127.0.0.1', {PROXY_PORT}))\n"


@asynccontextmanager
async def streams_of(
    runner: RunnerClient, places: int = PLACES
) -> AsyncGenerator[MemoryObjectReceiveStream[AcceptedStream]]:
    """Open the entrance, and yield the streams that are opened through it."""
    send, receive = anyio.create_memory_object_stream[AcceptedStream](1_000)
    runner.accept_streams(send.send_nowait)
    await runner.configure({}, proxy=places)
    try:
        with send, receive, anyio.fail_after(HANG_S):
            yield receive
    finally:
        runner.accept_streams(None)
        await runner.configure({})


async def python(runner: RunnerClient, code: str) -> str:
    """Run code in a background process, with a connection to the entrance as `s`."""
    return (await runner.start_process(Exec(("python3", "-c", CONNECT + code)))).id


async def output_of(runner: RunnerClient, process: str) -> bytes:
    output, data = await runner.read_process(process, wait_s=30), b""
    while True:
        data += output.data
        if not output.process.running and not output.data:
            return data
        output = await runner.read_process(process, output.next_offset, wait_s=30)


async def echo(stream: AcceptedStream) -> None:
    try:
        async with stream:
            while piece := await stream.receive():
                await stream.send(piece)
            await stream.send_eof()
            await receive_all(stream)
    except SandboxdError:
        return


async def test_bytes_of_any_length_go_both_ways_and_do_not_grow_pid_1(runner: RunnerClient) -> None:
    code = (
        "import hashlib, threading; piece = bytes(range(256)) * 1024; found = hashlib.sha256()\n"
        "def send():\n    for _ in range(80): s.sendall(piece)\n    s.shutdown(socket.SHUT_WR)\n"
        "threading.Thread(target=send).start()\n"
        "while data := s.recv(100_000): found.update(data)\n"
        "print(found.hexdigest())"
    )
    before = await resident_bytes(runner)
    async with streams_of(runner) as streams:
        process = await python(runner, code)
        await echo(await streams.receive())
        assert (await output_of(runner, process)).decode().strip() == hashlib.sha256(PIECE * 80).hexdigest()
    assert await resident_bytes(runner) < before + 4 * MEBIBYTE


async def test_a_half_closed_stream_still_carries_the_answer(runner: RunnerClient) -> None:
    code = (
        "s.sendall(b'x' * 100_000); s.shutdown(socket.SHUT_WR)\nprint(b''.join(iter(lambda: s.recv(9), b'')).decode())"
    )
    async with streams_of(runner) as streams:
        process = await python(runner, code)
        async with await streams.receive() as stream:
            assert await receive_all(stream) == b"x" * 100_000
            await stream.send(b"received")
            await stream.send_eof()
            assert await output_of(runner, process) == b"received\n"


async def test_the_daemon_may_end_first(runner: RunnerClient) -> None:
    code = "data = b''.join(iter(lambda: s.recv(9), b''))\ns.sendall(data + b' and more'); s.close()"
    async with streams_of(runner) as streams:
        await python(runner, code)
        async with await streams.receive() as stream:
            await stream.send(b"some")
            await stream.send_eof()
            assert await receive_all(stream) == b"some and more"


async def test_what_a_process_has_not_read_yet_is_delivered_before_the_daemon_closes(runner: RunnerClient) -> None:
    code = "sys.stdin.readline(); print(len(b''.join(iter(lambda: s.recv(65536), b''))))"
    async with streams_of(runner) as streams:
        process = await python(runner, code)
        async with await streams.receive() as stream:
            await stream.send(bytes(100_000))
            await stream.send_eof()
            await stream.wait_delivered()
        await runner.write_process(process, b"go\n")
        assert await output_of(runner, process) == b"100000\n"


async def test_a_process_that_reads_nothing_delays_delivery(runner: RunnerClient) -> None:
    """The kernel and the window are full: to close now would lose what the runner holds."""
    code = "sys.stdin.readline(); print(len(b''.join(iter(lambda: s.recv(65536), b''))))"
    async with streams_of(runner) as streams:
        process = await python(runner, code)
        async with await streams.receive() as stream:
            sent = 0
            with anyio.CancelScope() as filling:
                while True:
                    filling.deadline = anyio.current_time() + 1
                    await stream.send(PIECE[:65536])
                    sent += 65536
            await stream.send_eof()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.wait_delivered)
                await runner.write_process(process, b"go\n")
        assert await output_of(runner, process) == f"{sent}\n".encode()


async def test_a_reset_is_told_from_an_end(runner: RunnerClient) -> None:
    code = "s.recv(1); s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()"
    async with streams_of(runner) as streams:
        await python(runner, code)
        async with await streams.receive() as stream:
            await stream.send(b"go")
            with pytest.raises(StreamClosed, match="reset"):
                await receive_all(stream)
            with pytest.raises(StreamClosed):
                await stream.send(b"more")


async def test_closing_a_stream_ends_the_connection_inside(runner: RunnerClient) -> None:
    async with streams_of(runner) as streams:
        process = await python(runner, "print('ended', s.recv(1))")
        stream = await streams.receive()
        stream.close()
        stream.close()
        assert await output_of(runner, process) == b"ended b''\n"
        with pytest.raises(StreamClosed):
            await stream.receive()


async def test_a_process_that_never_reads_stops_only_its_own_stream(runner: RunnerClient) -> None:
    before = await resident_bytes(runner)
    async with streams_of(runner) as streams, anyio.create_task_group() as tasks:
        process = await python(runner, "time.sleep(600)")
        async with await streams.receive() as stuck:
            sent = 0
            with anyio.move_on_after(1):
                while True:
                    await stuck.send(PIECE)
                    sent += len(PIECE)
            assert sent < 32 * MEBIBYTE, "nothing was held back"
            other = await python(runner, "s.sendall(b'hello'); print(s.recv(5).decode())")
            tasks.start_soon(echo, await streams.receive())
            assert await output_of(runner, other) == b"hello\n"
            assert await resident_bytes(runner) < before + 4 * MEBIBYTE
        await runner.kill_process(process)


async def test_a_daemon_that_never_receives_stops_the_process(runner: RunnerClient) -> None:
    code = "sent = 0\nwhile sent < 10**9: sent += s.send(b'x' * 65536); open('/tmp/sent', 'w').write(str(sent))"
    async with streams_of(runner) as streams:
        process = await python(runner, code)
        async with await streams.receive() as stream:
            await anyio.sleep(1)
            assert int((await runner.exec(Exec("cat /tmp/sent"))).stdout) < 32 * MEBIBYTE
            assert (await stream.receive())[:1] == b"x"
        await runner.kill_process(process)


async def test_more_connections_than_places_wait_and_are_served_later(runner: RunnerClient) -> None:
    code = (
        f"more = [socket.create_connection(('127.0.0.1', {PROXY_PORT})) for _ in range(39)]\n"
        "for number, c in enumerate([s, *more]): c.sendall(b'%d' % number); c.shutdown(socket.SHUT_WR)\n"
        "print(sum(int(b''.join(iter(lambda: c.recv(9), b''))) for c in [s, *more]))"
    )
    open_now = most = 0

    async def serve_slowly(stream: AcceptedStream) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await anyio.sleep(0.02)
        open_now -= 1
        await echo(stream)

    async with streams_of(runner, places=4) as streams, anyio.create_task_group() as tasks:
        process = await python(runner, code)
        for _ in range(40):
            tasks.start_soon(serve_slowly, await streams.receive())
        assert await output_of(runner, process) == b"%d\n" % sum(range(40))
        assert most <= 4


async def test_a_place_is_free_only_once_the_daemon_has_closed_the_stream(runner: RunnerClient) -> None:
    async with streams_of(runner, places=1) as streams:
        await output_of(runner, await python(runner, "s.sendall(b'one'); s.close()"))
        first = await streams.receive()
        await python(runner, "s.sendall(b'two'); s.close()")
        assert await receive_all(first) == b"one"
        await runner.exec(Exec(("true",)))
        with pytest.raises(anyio.WouldBlock):
            streams.receive_nowait()
        first.close()
        async with await streams.receive() as second:
            assert await receive_all(second) == b"two"


FLOOD = f"""
import errno, selectors, socket, struct, time
open_now, made, errors = [], 0, 0
deadline = time.monotonic() + 30
while made < 10_000 and time.monotonic() < deadline:
    c = socket.socket()
    c.setblocking(False)
    c.connect_ex(("127.0.0.1", {PROXY_PORT}))
    try:
        c.send(b"x" * 1000)
    except OSError:
        errors += 1
    made += 1
    open_now.append(c)
    if len(open_now) > 500:
        for old in open_now[:250]:
            if made % 500 < 250:
                old.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            old.close()
        del open_now[:250]
print(made)
"""


async def test_a_flood_of_connections_leaves_calls_answering_and_pid_1_small(box: Box, runner: RunnerClient) -> None:
    life, before = box.life(), await resident_bytes(runner)
    async with streams_of(runner) as streams, anyio.create_task_group() as tasks:

        async def serve_all() -> None:
            async for stream in streams:
                tasks.start_soon(echo, stream)

        tasks.start_soon(serve_all)
        process = (await runner.start_process(Exec(("python3", "-c", FLOOD)))).id
        while (await runner.list_processes())[-1].running:
            assert (await runner.exec(Exec("echo alive"))).stdout == b"alive\n"
        assert await output_of(runner, process) == b"10000\n"
        assert await resident_bytes(runner) < before + 4 * MEBIBYTE
        tasks.cancel_scope.cancel()
    assert box.life() == life


async def test_streams_take_no_place_of_a_dialled_one_or_a_call(runner: RunnerClient) -> None:
    server = await serve(runner, ("127.0.0.1", 8201), ECHO)
    async with streams_of(runner, places=256) as streams:
        code = f"more = [socket.create_connection(('127.0.0.1', {PROXY_PORT})) for _ in range(255)]; time.sleep(600)"
        holder = await python(runner, code)
        held = [await streams.receive() for _ in range(256)]
        assert (await runner.exec(Exec("echo alive"))).stdout == b"alive\n"
        async with runner.dial(port=8201) as stream:
            await stream.send(b"hello")
            assert await stream.receive() == b"hello"
        for accepted in held:
            accepted.close()
        await runner.kill_process(holder)
    await runner.kill_process(server)


async def test_the_entrance_is_closed_unless_it_was_opened(runner: RunnerClient) -> None:
    assert b"ConnectionRefused" in (await runner.exec(Exec(("python3", "-c", CONNECT)))).stderr
    async with streams_of(runner) as streams:
        process = await python(runner, "print('ended', s.recv(1)); time.sleep(0)")
        stream = await streams.receive()
        await runner.configure({}, proxy=PLACES)  # again: nothing changes
        await stream.send(b"x")
        assert await output_of(runner, process) == b"ended b'x'\n"
        stream.close()
        await python(runner, "s.recv(1)")
        stream = await streams.receive()
        await runner.configure({"A": "1"})
        with pytest.raises(StreamClosed):
            await receive_all(stream)
        stream.close()
        assert b"ConnectionRefused" in (await runner.exec(Exec(("python3", "-c", CONNECT)))).stderr
        await runner.configure({}, proxy=PLACES)
        await python(runner, "s.sendall(b'again')")
        async with await streams.receive() as stream:
            assert await receive_all(stream) == b"again"


async def test_a_port_that_a_process_has_taken_is_a_conflict(runner: RunnerClient) -> None:
    server = await serve(runner, ("127.0.0.1", PROXY_PORT), ECHO)
    with pytest.raises(Conflict, match=rf"port {PROXY_PORT}: another process in the sandbox listens there; end it"):
        await runner.configure({"A": "set"}, proxy=PLACES)
    assert (await runner.exec(Exec("echo $A"))).stdout == b"set\n"
    await runner.kill_process(server)
    async with streams_of(runner) as streams:
        await python(runner, "s.sendall(b'mine')")
        async with await streams.receive() as stream:
            assert await receive_all(stream) == b"mine"


async def test_without_a_taker_or_with_a_broken_one_a_stream_is_closed_at_once(runner: RunnerClient) -> None:
    problems: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: problems.append(context["exception"]))

    def refuse(stream: AcceptedStream) -> None:
        raise ValueError("no")

    try:
        for accept in (None, refuse):
            runner.accept_streams(accept)
            await runner.configure({}, proxy=PLACES)
            assert await output_of(runner, await python(runner, "print('ended', s.recv(1))")) == b"ended b''\n"
            assert runner.connected
    finally:
        loop.set_exception_handler(None)
        await runner.configure({})
    assert [type(problem) for problem in problems] == [ValueError]


async def test_the_entrance_survives_a_reconnect_and_its_streams_do_not(box: Box) -> None:
    async with box.connected() as runner, streams_of(runner) as streams:
        process = await python(runner, "print('ended', s.recv(1))")
        stream = await streams.receive()
        runner._link.close("the test disconnects it")  # type: ignore[union-attr]
        with pytest.raises(NotReady):
            await stream.receive()
        stream.close()
        await runner.wait_connected()
        assert await output_of(runner, process) == b"ended b''\n"
        await python(runner, "s.sendall(b'again')")
        async with await streams.receive() as stream:
            assert await receive_all(stream) == b"again"


async def test_a_new_daemon_says_anew_what_it_allows(box: Box) -> None:
    async with box.connected() as runner, streams_of(runner):
        pass
    async with box.listening(proxy=PLACES) as listener:
        runner = listener.client
        send, receive = anyio.create_memory_object_stream[AcceptedStream](10)
        runner.accept_streams(send.send_nowait)
        with send, receive, anyio.fail_after(HANG_S):
            await runner.wait_connected()
            await python(runner, "s.sendall(b'new')")
            async with await receive.receive() as stream:
                assert await receive_all(stream) == b"new"
    async with box.connected() as runner:
        assert b"ConnectionRefused" in (await runner.exec(Exec(("python3", "-c", CONNECT)))).stderr


async def test_listening_ports_are_listed_with_their_processes(runner: RunnerClient) -> None:
    server = await serve(runner, ("0.0.0.0", 8300), ECHO)  # inside the container
    both = await serve(runner, ("::", 8301), ECHO, "AF_INET6")
    left = "import os, socket, time\ns = socket.socket(); s.bind(('127.0.0.1', 8302)); s.listen()\n"
    await runner.exec(Exec(("sh", "-c", f'setsid python3 -c "{left}os.fork() or time.sleep(600)" >/dev/null 2>&1 &')))
    other = await serve(runner, ("127.0.0.2", 8303), ECHO)
    async with streams_of(runner):
        with anyio.fail_after(HANG_S):
            while 8302 not in (ports := {port.port: port for port in await runner.list_ports()}):
                await anyio.sleep(0.02)
    assert list(ports) == [8300, 8301, 8302]
    assert ports[8300].process == server
    assert ports[8301].process == both
    assert ports[8302].process is None
    assert isinstance(ports[8300], ListeningPort)
    assert ports[8300].pid is not None
    assert (ports[8300].command or "").startswith("python3")
    for process in (server, both, other):
        await runner.kill_process(process)
    await runner.exec(Exec(("sh", "-c", "pkill -f 8302; true")))
