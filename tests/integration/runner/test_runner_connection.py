"""Which peers are accepted as a runner, and what happens to one that lies: real sockets, a real container, hostile
peers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from sandboxd.errors import Gone, InvalidRequest, NotReady, SandboxdError, SandboxError
from sandboxd.runner import link
from sandboxd.runner.calls import Exec
from sandboxd.runner.client import RunnerClient
from sandboxd.runner.inside import wire
from sandboxd.runner.inside.greeting import Greeting
from sandboxd.runner.listener import MAX_UNAUTHENTICATED, RunnerListener
from sandboxd.runner.secret import mint_secret
from tests.integration.runner.box import HANG_S, Box

pytestmark = [pytest.mark.anyio]

Reply = Callable[[int, bytes], bytes]


class FakeRunner:
    """A peer that proves the secret and then sends whatever a test specifies."""

    def __init__(self, run_dir: Path, secret: str, problem: str = "") -> None:
        self._greeting = Greeting(bytes.fromhex(secret), problem)
        self._frames = wire.FrameReader()
        self._address = str(run_dir / "socket")
        self.stream: anyio.abc.SocketStream | None = None

    async def greet(self, *, late_s: float = 0.0) -> anyio.abc.SocketStream:
        self.stream = await anyio.connect_unix(self._address)
        await anyio.sleep(late_s)
        while not self._greeting.done:
            for kind, _call, _head, data in self._frames.feed(await self.stream.receive()):
                if not self._greeting.done:
                    await self.stream.send(self._greeting.take(kind, data))
                    if self._greeting.done:
                        self._frames.trust()
        return self.stream

    async def answer(self, reply: Reply) -> None:
        """Answer every call with what `reply` returns for its id, until the daemon disconnects."""
        assert self.stream is not None
        try:
            while True:
                for kind, call, _head, _data in self._frames.feed(await self.stream.receive()):
                    if kind == wire.CALL and call:
                        await self.stream.send(reply(call, b""))
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            await self.stream.aclose()


def listener(tmp_path: Path, secret: str) -> RunnerListener:
    return RunnerListener(tmp_path / "run", secret, uid=os.getuid(), gid=os.getgid(), env={})


LIES: dict[str, Reply] = {
    "not a frame": lambda call, _: b"\xff" * 64,
    "a huge head": lambda call, _: wire.HEADER.pack(wire.RESULT, call, 2**31, 0),
    "a huge body": lambda call, _: wire.HEADER.pack(wire.STDOUT, call, 0, 2**32 - 1),
    "a head that is not JSON": lambda call, _: wire.HEADER.pack(wire.ERROR, call, 3, 0) + b"{,}",
    "a head that is not an object": lambda call, _: wire.HEADER.pack(wire.ERROR, call, 2, 0) + b"[]",
    "deep JSON": lambda call, _: wire.HEADER.pack(wire.ERROR, call, 200_000, 0) + b"[" * 200_000,
    "an error without words": lambda call, _: wire.pack(wire.ERROR, call, {"code": 1}),
    "a result of another kind": lambda call, _: wire.pack(wire.RESULT, call, {"out": "x"}),
    "an exit that makes no sense": lambda call, _: wire.pack_exited(call, 255, 65_535, float("nan"), b"", b""),
    "too much output": lambda call, _: wire.pack(wire.STDOUT, call, None, b"x" * 200_000) * 20,
    "output above the bound of a stream": lambda call, _: wire.pack_exited(call, 0, 0, 1.0, b"x" * 2000, b""),
    "leave to send for ever": lambda call, _: wire.pack_credit(call, 2**32 - 1),
    "a call of its own": lambda call, _: wire.pack(wire.CALL, call, {"op": "exec"}),
    "a greeting again": lambda call, _: wire.pack(wire.PROOF, call, {}, b""),
}


async def test_a_runner_that_greets_late_is_accepted(tmp_path: Path) -> None:
    secret = mint_secret()
    async with listener(tmp_path, secret) as listening:
        runner = FakeRunner(tmp_path / "run", secret)
        with anyio.fail_after(HANG_S):
            link = await runner.greet(late_s=2.5)  # as long as a busy host may keep it from the CPU
            await listening.client.wait_connected()
        await link.aclose()


@pytest.mark.parametrize("lie", LIES)
async def test_a_lying_runner_loses_its_connection_and_nothing_else_happens(tmp_path: Path, lie: str) -> None:
    secret = mint_secret()
    async with anyio.create_task_group() as group, listener(tmp_path, secret) as open_listener:
        fake = FakeRunner(tmp_path / "run", secret)
        await fake.greet()
        group.start_soon(fake.answer, LIES[lie])
        client = open_listener.client
        with anyio.fail_after(HANG_S):
            with pytest.raises(SandboxError, match=r"^cannot"):
                await client.exec(Exec(("true",), max_output_bytes=1000))
            await client.wait_disconnected()
        honest = FakeRunner(tmp_path / "run", secret)
        await honest.greet()
        group.start_soon(honest.answer, lambda call, _: wire.pack_exited(call, 0, 7, 1.0, b"", b""))
        assert (await client.exec(Exec(("true",)))).exit_code == 7


LIES_ABOUT_FILES: dict[str, Reply] = {
    "no stat": lambda call, _: wire.pack(wire.RESULT, call, {}),
    "a stat with wrong types": lambda call, _: wire.pack(wire.DATA, call, {"path": 1, "size": "x"}),
    "more than the window": lambda call, _: (
        wire.pack(wire.DATA, call, {"path": "/x", "size": 1, "mode": 1, "mtime": 1})
        + wire.pack(wire.DATA, call, None, b"x" * 262_144) * 8
    ),
}


async def read_when_disconnected(client: RunnerClient) -> None:
    async with client.read_file("/workspace/x") as reader:
        await client.wait_disconnected()
        async for _piece in reader:
            pass


@pytest.mark.parametrize("lie", LIES_ABOUT_FILES)
async def test_a_false_report_of_a_runner_about_a_file_is_detected(tmp_path: Path, lie: str) -> None:
    secret = mint_secret()
    async with anyio.create_task_group() as group, listener(tmp_path, secret) as open_listener:
        fake = FakeRunner(tmp_path / "run", secret)
        await fake.greet()
        group.start_soon(fake.answer, LIES_ABOUT_FILES[lie])
        with anyio.fail_after(HANG_S):
            with pytest.raises(SandboxError):
                await read_when_disconnected(open_listener.client)
            await open_listener.client.wait_disconnected()


async def test_messages_from_a_runner_are_bounded_and_sanitised(tmp_path: Path) -> None:
    secret = mint_secret()
    words = {"code": "InternalError", "message": "\x1b[31mred\n" + "x" * 900}
    async with anyio.create_task_group() as group, listener(tmp_path, secret) as open_listener:
        fake = FakeRunner(tmp_path / "run", secret)
        await fake.greet()
        group.start_soon(fake.answer, lambda call, _: wire.pack(wire.ERROR, call, words))
        with pytest.raises(SandboxError) as caught:
            await open_listener.client.stat("/workspace")
        assert type(caught.value) is SandboxError
        assert str(caught.value).startswith("cannot do this: ?[31mred?")


async def test_a_peer_with_a_wrong_secret_is_refused(tmp_path: Path) -> None:
    impostor = FakeRunner(tmp_path / "run", mint_secret())
    async with listener(tmp_path, mint_secret()) as open_listener:
        with anyio.fail_after(HANG_S), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await impostor.greet()
        assert not open_listener.client.connected
    assert impostor.stream is not None
    await impostor.stream.aclose()


async def test_unauthenticated_connections_cannot_keep_the_runner_out(tmp_path: Path) -> None:
    secret = mint_secret()
    async with listener(tmp_path, secret) as open_listener:
        strangers = []
        for _ in range(MAX_UNAUTHENTICATED * 3):
            stranger = socket.socket(socket.AF_UNIX)
            await anyio.to_thread.run_sync(stranger.connect, str(tmp_path / "run" / "socket"))
            strangers.append(stranger)
        with anyio.fail_after(HANG_S):
            stream = await FakeRunner(tmp_path / "run", secret).greet()
            await open_listener.client.wait_connected()
        assert len(open_listener._unauthenticated) <= MAX_UNAUTHENTICATED
        for stranger in strangers:
            stranger.close()
        await stream.aclose()


async def test_a_silent_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "GREETING_TIMEOUT_S", 0.2)
    async with listener(tmp_path, mint_secret()):
        stream = await anyio.connect_unix(str(tmp_path / "run" / "socket"))
        assert await stream.receive()
        with anyio.fail_after(HANG_S), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()
        await stream.aclose()


async def test_an_image_that_cannot_run_the_runner_is_reported(tmp_path: Path) -> None:
    secret = mint_secret()
    async with listener(tmp_path, secret) as open_listener:
        stream = await FakeRunner(tmp_path / "run", secret, "cannot use this image: too old").greet()
        with anyio.fail_after(HANG_S), pytest.raises(InvalidRequest, match="too old"):
            await open_listener.client.wait_connected()
        await stream.aclose()


async def test_the_secret_is_gone_after_the_first_greeting(tmp_path: Path) -> None:
    secret = mint_secret()
    async with listener(tmp_path, secret) as open_listener:
        path = tmp_path / "run" / "secret"
        assert path.stat().st_mode & 0o777 == 0o400
        stream = await FakeRunner(tmp_path / "run", secret).greet()
        await open_listener.client.wait_connected()
        assert not path.exists()
        await stream.aclose()
    adopted = RunnerListener(tmp_path / "run", secret, uid=os.getuid(), gid=os.getgid(), is_adoption=True)
    async with adopted:
        assert not path.exists()


async def test_the_path_of_the_data_directory_may_be_long(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    async with listener(deep, mint_secret()):
        assert (deep / "run" / "socket").is_socket()


async def test_a_dead_container_fails_waiting_and_later_calls(tmp_path: Path) -> None:
    secret = mint_secret()
    async with listener(tmp_path, secret) as open_listener:
        stream = await FakeRunner(tmp_path / "run", secret).greet()
        client = open_listener.client
        causes: list[SandboxdError] = []

        async def call() -> None:
            try:
                await client.exec(Exec(("true",)))
            except SandboxdError as error:
                causes.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            client.fail(Gone("cannot go on: the container was killed", "oom"))
        await call()
        assert [type(cause) for cause in causes] == [Gone, Gone]
        await stream.aclose()


async def test_a_call_without_a_runner_waits_and_then_raises_not_ready(tmp_path: Path) -> None:
    async with listener(tmp_path, mint_secret()) as open_listener:
        with anyio.fail_after(HANG_S), pytest.raises(NotReady):
            await open_listener.client.exec(Exec(("true",)))


IMPOSTOR = """
import os, socket, sys
for attempt in range(50):
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.connect("/run/sandboxd/socket")
    except OSError as error:
        print(type(error).__name__)
        break
    peer.sendall(b"\\x02" + bytes(12))
try:
    open("/run/sandboxd/secret").read()
except OSError as error:
    print(type(error).__name__)
for name in ("environ", "mem", "fd/0", "maps"):
    try:
        open("/proc/1/" + name).read(1)
        print("open", name)
    except OSError as error:
        print(type(error).__name__)
try:
    os.kill(1, 9)
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.engine
async def test_a_process_of_the_agent_cannot_impersonate_or_inspect_the_runner(runner: RunnerClient) -> None:
    result = await runner.exec(Exec(("python3", "-c", IMPOSTOR)))
    lines = result.stdout.decode().split()
    assert lines[:2] == ["ConnectionRefusedError", "FileNotFoundError"]
    assert lines[2:] == ["PermissionError"] * 4
    assert (await runner.exec(Exec(("true",)))).exit_code == 0


@pytest.mark.engine
async def test_signals_from_inside_do_not_reach_the_runner(runner: RunnerClient) -> None:
    await runner.exec(Exec("for n in $(seq 1 64); do kill -$n 1 2>/dev/null; done; true"))
    assert (await runner.exec(Exec(("true",)))).exit_code == 0


@pytest.mark.engine
async def test_a_runner_reconnects_to_a_new_daemon_with_the_same_secret(box: Box) -> None:
    async with box.connected() as runner:
        first = await runner.wait_connected()
    async with box.connected() as runner:
        assert (await runner.wait_connected()).started_at == first.started_at
