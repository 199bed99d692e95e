"""Tunnels, and local ports that lead into a sandbox: both clients, the unix socket and TCP, the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
import pytest

from sandboxd.client import AsyncClient, AsyncSandbox, Client, Sandbox
from sandboxd.client.errors import AnswerLost
from sandboxd.client.forwarding import LocalPortTaken
from sandboxd.errors import NothingListens, PreviewUnsupported, SandboxError
from tests.world.inner_servers import talking
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

WAIT_S = 30
BIG = 8 * 1024 * 1024
TUNNELS = "/v1/tenants/default/sessions/s1/tunnels"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as world:
        async with AsyncClient(world.socket) as client:
            await client.ensure_sandbox("s1", "u1")
        yield world


async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read until the client ends, then say how much it was."""
    size = len(await reader.read())
    writer.write(f"{size} bytes".encode())


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


async def test_a_tunnel_carries_bytes_and_the_end_of_each_side(world: World) -> None:
    async with talking(answer_at_the_end) as port, await AsyncSandbox.connect("s1", socket=world.socket) as sandbox:
        tunnel = await sandbox.ports.connect(port)
        await tunnel.send(bytes(BIG))
        await tunnel.send_eof()
        assert await tunnel.receive() == f"{BIG} bytes".encode()
        assert await tunnel.receive() == b""
        await tunnel.close()


async def test_a_tunnel_to_a_closed_port_is_an_error_before_the_upgrade(world: World) -> None:
    async with talking(echo) as port:
        pass
    async with await AsyncSandbox.connect("s1", socket=world.socket) as sandbox:
        with pytest.raises(NothingListens):
            await sandbox.ports.connect(port)


async def test_a_tunnel_says_why_it_breaks(world: World) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        linger = socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        writer.get_extra_info("socket").setsockopt(*linger)

    async with talking(reset) as port, await AsyncSandbox.connect("s1", socket=world.socket) as sandbox:
        tunnel = await sandbox.ports.connect(port)
        await tunnel.send(b"x")
        with pytest.raises(SandboxError, match="reset"):
            await tunnel.receive()
        await tunnel.close()


async def test_a_message_that_is_not_an_end_closes_the_tunnel(world: World) -> None:
    connector = aiohttp.UnixConnector(str(world.socket))
    async with (
        talking(echo) as port,
        aiohttp.ClientSession("http://localhost", connector=connector) as session,
        session.ws_connect(f"{TUNNELS}/{port}") as opened,
    ):
        await opened.send_bytes(b"")
        await opened.send_bytes(b"hi")
        assert await opened.receive_bytes(timeout=WAIT_S) == b"hi"
        await opened.send_str("{}x")
        assert json.loads(await opened.receive_str(timeout=WAIT_S))["code"] == "request.invalid"
        await opened.receive(WAIT_S)
        assert opened.close_code == 1007


async def test_removing_the_sandbox_ends_a_tunnel(world: World) -> None:
    async with talking(echo) as port, await AsyncSandbox.connect("s1", socket=world.socket) as sandbox:
        tunnel = await sandbox.ports.connect(port)
        await sandbox.kill()
        with anyio.fail_after(WAIT_S), pytest.raises((SandboxError, AnswerLost)):
            assert await tunnel.receive() == b""
            raise AnswerLost("ended")


@asynccontextmanager
async def local_connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def check_forwarding(port: int) -> None:
    """Send a lot over two connections at once, end both, and read everything back."""

    async def use() -> None:
        async with local_connection(port) as (reader, writer):
            writer.write(bytes(BIG))
            writer.write_eof()
            assert len(await reader.read()) == BIG

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            tasks.start_soon(use)


@pytest.mark.parametrize("way", ["unix", "tcp"])
async def test_the_async_client_forwards_a_port(world: World, way: str) -> None:
    place = {"socket": world.socket} if way == "unix" else {"url": world.url, "token": world.token}
    async with talking(echo) as port, await AsyncSandbox.connect("s1", **place) as sandbox:
        async with sandbox.ports.forward(port) as forwarder:
            await check_forwarding(forwarder.port)
            assert forwarder.url == f"http://127.0.0.1:{forwarder.port}"
            async with local_connection(forwarder.port) as (reader, writer):
                writer.write(b"open")
                assert await reader.read(4) == b"open"
        with pytest.raises(OSError, match="refused"):
            await asyncio.open_connection("127.0.0.1", forwarder.port)


@pytest.mark.parametrize("way", ["unix", "tcp"])
async def test_the_synchronous_client_forwards_a_port(world: World, way: str) -> None:
    place = {"socket": world.socket} if way == "unix" else {"url": world.url, "token": world.token}
    sandbox = await anyio.to_thread.run_sync(lambda: Sandbox.connect("s1", **place))
    async with talking(echo) as port:
        with sandbox.ports.forward(port) as forwarder:
            await check_forwarding(forwarder.port)
            async with local_connection(forwarder.port) as (reader, writer):
                writer.write(b"open")
                assert await reader.read(4) == b"open"
        with pytest.raises(OSError, match="refused"):
            await asyncio.open_connection("127.0.0.1", forwarder.port)
    await anyio.to_thread.run_sync(sandbox.close)


async def test_a_connection_to_a_closed_port_is_closed_and_reported(world: World) -> None:
    async with talking(echo) as port:
        pass
    failures: list[Exception] = []
    async with await AsyncSandbox.connect("s1", socket=world.socket) as sandbox:
        async with (
            sandbox.ports.forward(port, on_failure=failures.append) as forwarder,
            local_connection(forwarder.port) as (reader, _writer),
        ):
            assert await reader.read() == b""
        with pytest.raises(LocalPortTaken), socket.create_server(("127.0.0.1", 0)) as taken:
            async with sandbox.ports.forward(port, taken.getsockname()[1]):
                pass
    assert [type(failure) for failure in failures] == [NothingListens]


@asynccontextmanager
async def forwarding(world: World, *words: str, **environment: str) -> AsyncIterator[anyio.abc.Process]:
    env = {**os.environ, "SANDBOXD_SOCKET": str(world.socket), **environment}
    command = [sys.executable, "-m", "sandboxd", "forward", *words]
    async with await anyio.open_process(command, env=env) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


async def read_line(process: anyio.abc.Process, *, error: bool = False) -> str:
    stream = process.stderr if error else process.stdout
    assert stream is not None
    line = b""
    with anyio.fail_after(WAIT_S):
        while not line.endswith(b"\n"):
            line += await stream.receive(1)
    return line.decode().strip()


@pytest.mark.parametrize("way", ["unix", "tcp"])
async def test_the_command_forwards_until_it_is_interrupted(world: World, way: str) -> None:
    options, environment = ((), {}) if way == "unix" else (("--url", world.url), {"SANDBOXD_TOKEN": world.token})
    async with (
        talking(echo) as port,
        talking(answer_at_the_end) as other,
        forwarding(world, "s1", f"{port}:0", f"{other}:0", "--json", *options, **environment) as process,
    ):
        first, second = json.loads(await read_line(process)), json.loads(await read_line(process))
        assert (first["port"], second["port"]) == (port, other)
        await check_forwarding(first["local_port"])
        async with local_connection(second["local_port"]) as (reader, writer):
            writer.write_eof()
            assert await reader.read() == b"0 bytes"
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(WAIT_S):
            assert await process.wait() == 0


async def test_the_command_explains_a_closed_port_in_a_sentence(world: World) -> None:
    async with talking(echo) as port:
        pass
    async with forwarding(world, "s1", f"{port}:0") as process:
        line = await read_line(process)
        assert line.endswith(f"leads to port {port} in the sandbox")
        async with local_connection(int(line.split()[0].rpartition(":")[2])) as (reader, _writer):
            assert await reader.read() == b""
        assert (await read_line(process, error=True)).startswith("cannot ")
        process.terminate()
        assert await process.wait() == 0


async def test_the_commands_explain_what_they_cannot_do(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        local = taken.getsockname()[1]
        async with forwarding(world, "s1", f"8000:{local}") as process:
            assert "already in use; choose another local port" in await read_line(process, error=True)
            assert await process.wait() == 1
    for words, code in ((("s1", "8000:x"), 2), (("s1", "0"), 2), (("nobody", "8000"), 1)):
        async with forwarding(world, *words) as process:
            assert (await read_line(process, error=True)).startswith("cannot ")
            assert await process.wait() == code


async def test_ports_are_listed(world: World) -> None:
    server = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); time.sleep(600)"
    )
    async with AsyncClient(world.socket) as client:
        process = await client.start_process("s1", ["python3", "-c", server])
        printed = (await client.read_process("s1", process.id, wait_s=20)).data
        found = {one.port: one for one in await client.list_ports("s1")}
        assert found[int(printed)].process == process.id


async def test_a_daemon_without_previews_says_what_to_set(tmp_path: Path) -> None:
    async with serving(tmp_path, has_previews=False) as world:
        with Client(world.socket) as client:

            def ask() -> None:
                client.ensure_sandbox("s1", "u1")
                client.create_preview("s1", 8000)

            with pytest.raises(PreviewUnsupported, match=r"--tcp.*network\.preview_host"):
                await anyio.to_thread.run_sync(ask)
