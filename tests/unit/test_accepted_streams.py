"""Streams that a runner opens, on the daemon's side: their limit, their end, and what a hostile runner may try."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from sandboxd.errors import Gone, NotReady, StreamClosed, WorkspaceFull
from sandboxd.network.byte_stream import ByteStream
from sandboxd.runner.accepted_streams import AcceptedStream
from sandboxd.runner.client import RunnerClient
from sandboxd.runner.inside import wire
from sandboxd.runner.link import DEAF_BYTES
from sandboxd.runner.listener import RunnerListener
from sandboxd.runner.secret import mint_secret
from tests.integration.runner.test_runner_connection import FakeRunner

pytestmark = pytest.mark.anyio

PLACES = 4
ID = wire.OPENED | 1
HANG_S = 30
Frame = tuple[int, int, bytes, bytes]


class Runner(FakeRunner):
    """A runner that the test speaks for, and the streams that its daemon was given."""

    def __init__(self, client: RunnerClient, run_dir: Path, secret: str) -> None:
        super().__init__(run_dir, secret)
        self.client = client
        self._received: list[Frame] = []
        self._give, self.streams = anyio.create_memory_object_stream[AcceptedStream](2 * PLACES)
        client.accept_streams(self._give.send_nowait)

    async def send(self, *frames: bytes) -> None:
        assert self.stream is not None
        await self.stream.send(b"".join(frames))

    async def receive(self, kind: int) -> Frame:
        """Return the next frame of this kind; drop the others."""
        assert self.stream is not None
        with anyio.fail_after(HANG_S):
            while True:
                while self._received:
                    frame = self._received.pop(0)
                    if frame[0] == kind:
                        return frame
                self._received += self._frames.feed(await self.stream.receive())

    async def open(self, number: int = 1) -> AcceptedStream:
        await self.send(wire.pack(wire.OPEN, wire.OPENED | number))
        with anyio.fail_after(HANG_S):
            return await self.streams.receive()

    @property
    def taken(self) -> int:
        """How many streams the daemon was given and the test has not looked at."""
        return self.streams.statistics().current_buffer_used

    async def close(self) -> None:
        self._give.close()
        self.streams.close()
        if self.stream is not None:
            await self.stream.aclose()


@asynccontextmanager
async def connected(tmp_path: Path, places: int = PLACES) -> AsyncGenerator[Runner]:
    secret, run_dir = mint_secret(), tmp_path / "run"
    async with RunnerListener(run_dir, secret, uid=os.getuid(), gid=os.getgid(), proxy=places) as listener:
        runner = Runner(listener.client, run_dir, secret)
        try:
            await runner.greet()
            await listener.client.wait_connected()
            yield runner
        finally:
            await runner.close()


def test_a_stream_of_a_runner_is_a_byte_stream() -> None:
    def use(stream: AcceptedStream) -> ByteStream:
        return stream

    assert callable(use)


async def test_bytes_and_ends_pass_both_ways(tmp_path: Path) -> None:
    async with connected(tmp_path) as runner, await runner.open() as stream:
        await runner.send(wire.pack(wire.DATA, ID, None, b"question"), wire.pack(wire.END, ID))
        assert await stream.receive() == b"question"
        assert await stream.receive() == b""
        await stream.send(b"answer")
        assert (await runner.receive(wire.DATA))[3] == b"answer"
        await stream.send_eof()
        assert (await runner.receive(wire.END))[1] == ID
        await runner.send(wire.pack(wire.RESULT, ID, {"reset": False}))
        with pytest.raises(StreamClosed):
            await stream.send(bytes(2 * wire.WINDOW_BYTES))


async def test_a_stream_is_cancelled_exactly_once_even_if_it_is_over(tmp_path: Path) -> None:
    async with connected(tmp_path) as runner:
        over, live = await runner.open(1), await runner.open(2)
        await runner.send(wire.pack(wire.RESULT, ID, {"reset": True}))
        with pytest.raises(StreamClosed, match="reset"):
            await over.receive()
        for stream in (over, over, live, live):
            stream.close()
        await runner.open(3)
        runner.client.interrupt(WorkspaceFull("cannot go on: full"))
        assert [(await runner.receive(wire.CANCEL))[1] for _ in range(3)] == [wire.OPENED | n for n in (1, 2, 3)]


HOSTILE: dict[str, Callable[[], bytes]] = {
    "more streams than allowed": lambda: b"".join(wire.pack(wire.OPEN, wire.OPENED | n) for n in range(2, 3 + PLACES)),
    "an id that is open": lambda: wire.pack(wire.OPEN, ID),
    "an id of the daemon": lambda: wire.pack(wire.OPEN, 5),
    "more data than its credit": lambda: wire.pack(wire.DATA, ID, None, b"x" * wire.CHUNK_BYTES) * 5,
    "endless empty data": lambda: wire.pack(wire.DATA, ID) * (wire.WINDOW_BYTES + 1),
    "more credit than was used": lambda: wire.pack_credit(ID, 1),
    "a second end": lambda: wire.pack(wire.END, ID) * 2,
    "data after the result": lambda: wire.pack(wire.RESULT, ID, {}) + wire.pack(wire.DATA, ID, None, b"x"),
    "a kind for the runner": lambda: wire.pack(wire.CANCEL, ID),
    "the place of one that is over and not closed": lambda: b"".join(
        wire.pack(wire.OPEN, wire.OPENED | n) + wire.pack(wire.RESULT, wire.OPENED | n, {})
        for n in range(2, 3 + PLACES)
    ),
    "garbage": lambda: b"\xff" * 64,
}


@pytest.mark.parametrize("lie", HOSTILE)
async def test_a_hostile_runner_loses_its_connection_and_nothing_else(tmp_path: Path, lie: str) -> None:
    async with connected(tmp_path) as runner:
        stream = await runner.open()
        with suppress(anyio.BrokenResourceError):  # the daemon may close it in the middle
            await runner.send(HOSTILE[lie]())
        with anyio.fail_after(HANG_S):
            await runner.client.wait_disconnected()
        if lie != "data after the result":
            with pytest.raises(NotReady, match="the runner is gone"):
                while await stream.receive():
                    pass
        stream.close()
        assert runner.taken < PLACES


async def test_a_result_that_is_not_json_costs_the_connection(tmp_path: Path) -> None:
    async with connected(tmp_path) as runner:
        stream = await runner.open()
        await runner.send(wire.HEADER.pack(wire.RESULT, ID, 3, 0) + b"{,}")
        with pytest.raises(Exception, match="not JSON"):
            await stream.receive()
        with anyio.fail_after(HANG_S):
            await runner.client.wait_disconnected()


async def test_without_permission_no_stream_is_opened(tmp_path: Path) -> None:
    async with connected(tmp_path, places=0) as runner:
        await runner.send(wire.pack(wire.OPEN, ID))
        with anyio.fail_after(HANG_S):
            await runner.client.wait_disconnected()
        assert runner.taken == 0


async def test_a_stream_that_crosses_the_end_of_the_permission_is_cancelled(tmp_path: Path) -> None:
    async with connected(tmp_path) as runner, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: runner.client.configure({}))
        await anyio.wait_all_tasks_blocked()
        await runner.send(wire.pack(wire.OPEN, ID))
        assert (await runner.receive(wire.CANCEL))[1] == ID
        assert runner.taken == 0
        assert runner.client.connected
        tasks.cancel_scope.cancel()


async def test_streams_end_with_the_container_and_the_connection(tmp_path: Path) -> None:
    async with connected(tmp_path) as runner:
        dead = await runner.open(1)
        runner.client.fail(Gone("cannot go on: the container was killed", "oom"))
        with pytest.raises(Gone):
            await dead.receive()
        with pytest.raises(Gone):
            await dead.send(b"x")
    async with connected(tmp_path) as runner:
        lost = await runner.open(1)
    with pytest.raises(NotReady):
        await lost.receive()
    lost.close()


async def test_a_pause_does_not_end_a_stream(tmp_path: Path) -> None:
    async with connected(tmp_path) as runner, await runner.open() as stream:
        runner.client.freeze(NotReady("cannot finish this call: the sandbox is paused"))
        runner.client.thaw()
        await runner.send(wire.pack(wire.DATA, ID, None, b"still here"))
        assert await stream.receive() == b"still here"


async def test_a_sender_is_woken_when_its_stream_ends_although_the_runner_does_not_read(tmp_path: Path) -> None:
    async with connected(tmp_path) as runner, await runner.open() as stream:
        with anyio.fail_after(HANG_S):
            async with anyio.create_task_group() as tasks:

                async def send() -> None:
                    with pytest.raises(WorkspaceFull):
                        await stream.send(bytes(4 * wire.WINDOW_BYTES))

                tasks.start_soon(send)
                await anyio.wait_all_tasks_blocked()
                runner.client.interrupt(WorkspaceFull("cannot go on: full"))


async def test_a_runner_that_opens_streams_and_reads_nothing_is_not_heard_any_more(tmp_path: Path) -> None:
    """Each stream that is refused costs an answer, which must not pile up."""
    async with connected(tmp_path) as runner:
        runner.client.accept_streams(None)
        link, opening = runner.client._link, wire.pack(wire.OPEN, ID) * 5_000
        assert link is not None
        with anyio.move_on_after(HANG_S) as waiting, anyio.fail_after(2 * HANG_S):
            for _ in range(4 * DEAF_BYTES // len(opening)):
                await runner.send(opening)
                if link._is_deaf:
                    break
        assert not waiting.cancelled_caught
        assert DEAF_BYTES < len(link._unsent) < DEAF_BYTES + 1_048_576
