"""Streamed stdin in a real container: any length, as fast as the command reads, and memory that stays flat."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxd.models.command import ExecOutput
from sandboxd.runner.calls import CommandResult, Exec
from sandboxd.runner.client import RunnerClient
from tests.integration.runner.box import HANG_S, Box
from tests.integration.runner.test_runner_memory import resident_bytes

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

MEBIBYTE = 1_048_576
PIECE = bytes(range(256)) * 4096


class Source:
    """Yields pieces of one mebibyte, and counts those that were taken."""

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self._pieces):
            self.taken += 1
            yield PIECE


async def test_stdin_of_any_length_arrives_complete_and_does_not_grow_pid_1(runner: RunnerClient) -> None:
    before = await resident_bytes(runner)
    with anyio.fail_after(HANG_S):
        result = await runner.exec(Exec("sha256sum; cat /proc/1/status | grep RssAnon", stdin=Source(96)))
    digest, _, status = result.stdout.decode().partition("  -\n")
    assert digest == hashlib.sha256(PIECE * 96).hexdigest()
    assert int(status.split()[1]) * 1024 < before + 4 * MEBIBYTE


async def test_a_command_that_never_reads_is_not_fed_and_dies_at_its_timeout(runner: RunnerClient) -> None:
    source = Source(1000)
    with anyio.fail_after(HANG_S):
        result = await runner.exec(Exec(("sleep", "1000"), stdin=source, timeout_s=1))
    assert result.timed_out
    assert source.taken < 3


async def test_a_command_that_ends_early_ends_its_stdin_without_an_error(runner: RunnerClient) -> None:
    source = Source(1000)
    with anyio.fail_after(HANG_S):
        result = await runner.exec(Exec(("head", "-c", "5"), stdin=source))
    assert (result.exit_code, result.stdout) == (0, PIECE[:5])
    assert source.taken < 10


async def test_a_command_may_close_its_stdin_and_continue(runner: RunnerClient) -> None:
    with anyio.fail_after(HANG_S):
        result = await runner.exec(Exec("exec <&-; sleep 0.3; echo done", stdin=Source(1000)))
    assert (result.exit_code, result.stdout) == (0, b"done\n")


async def test_a_stream_that_fails_kills_the_command_and_its_error_is_raised(runner: RunnerClient) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        await runner.exec(Exec("until pgrep -x sha1sum; do sleep 0.01; done"))
        raise ValueError("the source broke")

    with anyio.fail_after(HANG_S), pytest.raises(ValueError, match="the source broke"):
        await runner.exec(Exec(("sha1sum",), stdin=broken()))
    assert (await runner.exec(Exec("while pgrep -x sha1sum; do sleep 0.01; done", timeout_s=20))).exit_code == 0


async def test_input_and_output_stream_at_the_same_time(runner: RunnerClient) -> None:
    size, digest = 0, hashlib.sha256()
    call = Exec(("cat",), stdin=Source(64), max_output_bytes=16 * MEBIBYTE)
    with anyio.fail_after(HANG_S):
        async with runner.stream(call) as items:
            async for item in items:
                if isinstance(item, ExecOutput):
                    size += len(item.data)
                    digest.update(item.data)
    assert isinstance(item, CommandResult)
    assert (item.exit_code, size) == (0, 16 * MEBIBYTE)
    assert digest.digest() == hashlib.sha256(PIECE * 16).digest()


async def test_an_answer_is_read_while_stdin_waits_for_more(runner: RunnerClient) -> None:
    heard = anyio.Event()

    async def talk() -> AsyncIterator[bytes]:
        yield b"one\n"
        await heard.wait()
        yield b"two\n"

    seen = b""
    with anyio.fail_after(HANG_S):
        async with runner.stream(Exec("while read line; do echo got $line; done", stdin=talk())) as items:
            async for item in items:
                if isinstance(item, ExecOutput):
                    seen += item.data
                if seen == b"got one\n":
                    heard.set()
    assert seen == b"got one\ngot two\n"


async def test_other_calls_continue_while_a_stream_is_stuck(runner: RunnerClient, box: Box) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.exec, Exec(("sleep", "1000"), stdin=Source(1000)))
        with anyio.fail_after(HANG_S):
            for _ in range(20):
                assert (await runner.exec(Exec(("cat",), stdin=PIECE))).stdout == PIECE
        tasks.cancel_scope.cancel()
    assert "true" in box.life()
