"""Archives through a real runner: streamed both ways, cancelled, and consistent while every process is held."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxd.errors import FileNotFound, InvalidRequest, OutsideSandbox, ReadOnly, WorkspaceFull
from sandboxd.models.process import Process
from sandboxd.runner.calls import Exec
from sandboxd.runner.client import RunnerClient
from tests.integration.runner.box import Box

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

PATIENCE_S = 60
TICKER = """
import time
while True:
    with open("ticks", "a") as file:
        file.write("x" * 1000)
    time.sleep(0.001)
"""


async def run(runner: RunnerClient, command: str) -> str:
    result = await runner.exec(Exec(command))
    assert result.exit_code == 0, result
    return result.stdout.decode()


async def download(runner: RunnerClient, path: str, *, hold_processes: bool = False) -> bytes:
    async with runner.read_archive(path, hold_processes=hold_processes) as pieces:
        return b"".join([piece async for piece in pieces])


async def pieces_of(data: bytes, size: int = 100_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def tar_of(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in entries:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


def names_in(data: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return set(tar.getnames())


async def state(runner: RunnerClient, pid: int) -> str:
    """Return the state of a process, as the kernel names it."""
    return (await run(runner, f"cut -d ' ' -f 3 /proc/{pid}/stat")).strip()


async def start_ticking(runner: RunnerClient) -> Process:
    """Start a process that writes all the time, and wait for its first write."""
    process = await runner.start_process(Exec(("python3", "-c", TICKER)))
    with anyio.fail_after(PATIENCE_S):
        while await run(runner, "cat ticks 2>/dev/null || true") == "":
            await anyio.sleep(0.02)
    return process


async def test_a_tree_is_copied_through_an_archive(runner: RunnerClient) -> None:
    await run(runner, "mkdir -p tree/a/b && seq 300000 > tree/a/b/numbers && ln -s a/b tree/link && chmod 751 tree/a")
    summary = await runner.write_archive("/tmp/copied/here", pieces_of(await download(runner, "/workspace/tree")))
    assert summary.entries == 4
    assert summary.bytes == 1_988_895
    assert await run(runner, "diff -r tree /tmp/copied/here && readlink /tmp/copied/here/link") == "a/b\n"
    assert await run(runner, "stat -c %a /tmp/copied/here/a") == "751\n"
    await run(runner, "rm -r tree /tmp/copied")


async def test_the_memo_mirror_is_left_out_unless_it_is_asked_for(runner: RunnerClient) -> None:
    assert not any(name.startswith("memo") for name in names_in(await download(runner, "/workspace")))
    assert names_in(await download(runner, "/workspace/memo")) == {"NOTES.md"}
    for path, name in (("/workspace", "memo/NOTES.md"), ("/workspace/memo", "NOTES.md"), ("/skills", "skill")):
        with pytest.raises((ReadOnly, FileNotFound)):
            await runner.write_archive(path, pieces_of(tar_of((name, b"forged"))))
    assert await run(runner, "cat memo/NOTES.md") == "remember\n"


async def test_an_archive_stays_inside_the_roots(runner: RunnerClient) -> None:
    with pytest.raises(OutsideSandbox):
        await download(runner, "/etc")
    with pytest.raises(OutsideSandbox):
        await runner.write_archive("/etc", pieces_of(tar_of(("a", b""))))
    with pytest.raises(FileNotFound):
        await download(runner, "/workspace/not-there")
    await run(runner, "ln -sfn /etc out")
    with pytest.raises(OutsideSandbox):
        await download(runner, "/workspace/out")
    with pytest.raises(OutsideSandbox):
        await runner.write_archive("/workspace/out/below", pieces_of(tar_of(("a", b""))))
    await run(runner, "rm out")


async def test_a_failing_extraction_says_which_entry_and_leaves_nothing_half_done(runner: RunnerClient) -> None:
    data = tar_of(("one", b"1"), ("two", b"2"), ("../three", b"3"))
    with pytest.raises(InvalidRequest, match=r"cannot extract \.\./three into .*; entries written before: 2"):
        await runner.write_archive("/workspace/partly", pieces_of(data))
    assert await run(runner, "ls -A partly") == "one\ntwo\n"
    with pytest.raises(WorkspaceFull, match=r"cannot extract large into /tmp/full: .*; entries written before: 1"):
        await runner.write_archive("/tmp/full", pieces_of(tar_of(("small", b"1"), ("large", b"x" * 40_000_000))))
    assert await run(runner, "ls -A /tmp/full") == "small\n"
    await run(runner, "rm -r partly /tmp/full")


async def test_a_client_that_leaves_in_the_middle_leaves_no_draft_and_no_descriptor(
    box: Box, runner: RunnerClient
) -> None:
    await run(runner, "mkdir -p big && head -c 20000000 /dev/urandom > big/file")
    async with runner.read_archive("/workspace/big") as pieces:
        await anext(aiter(pieces))

    async def endless() -> AsyncIterator[bytes]:
        data = tar_of(("whole", b"1"), ("cut", b"x" * 10_000_000))
        yield data[:2_000_000]
        left.set()
        await anyio.sleep_forever()

    left = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.write_archive, "/workspace/cut-off", endless())
        with anyio.fail_after(PATIENCE_S):
            await left.wait()
        tasks.cancel_scope.cancel()
    with anyio.fail_after(PATIENCE_S):
        while await run(runner, "ls -A cut-off") != "whole\n":
            await anyio.sleep(0.05)
    # The next archives find a free place each time.
    for _ in range(6):
        async with runner.read_archive("/workspace/big") as pieces:
            await anext(aiter(pieces))
    await run(runner, "rm -r big cut-off")


async def test_other_calls_are_answered_while_a_large_tree_is_archived(runner: RunnerClient) -> None:
    await run(runner, "mkdir many && cd many && seq 4000 | xargs touch")
    async with runner.read_archive("/workspace/many") as pieces:
        count = 0
        async for _ in pieces:
            count += 1
            assert await run(runner, "echo here") == "here\n"
    assert count > 4
    await run(runner, "rm -r many")


async def test_held_processes_stand_still_and_go_on_afterwards(runner: RunnerClient) -> None:
    ticker = await start_ticking(runner)
    sleeper = await runner.start_process(Exec("echo $$; kill -STOP $$; sleep 1000"))
    sleeping = int((await runner.read_process(sleeper.id, wait_s=PATIENCE_S)).data)
    with anyio.fail_after(PATIENCE_S):
        while await state(runner, sleeping) != "T":
            await anyio.sleep(0.02)
    async with runner.read_archive("/workspace", hold_processes=True) as pieces:
        data = b"".join([piece async for piece in pieces])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        size = tar.getmember("ticks").size
    assert size % 1_000 == 0  # never in the middle of a write
    with anyio.fail_after(PATIENCE_S):
        while len(await run(runner, "cat ticks")) <= size:
            await anyio.sleep(0.02)
    assert await state(runner, sleeping) == "T"
    await runner.kill_process(ticker.id)
    await runner.kill_process(sleeper.id)
    await run(runner, "rm ticks")


async def test_held_processes_go_on_when_the_archive_is_given_up(box: Box, runner: RunnerClient) -> None:
    await run(runner, "mkdir -p big && head -c 5000000 /dev/urandom > big/file")
    ticker = await start_ticking(runner)
    async with runner.read_archive("/workspace/big", hold_processes=True) as pieces:
        await anext(aiter(pieces))
        size = (await runner.stat("/workspace/ticks")).size_bytes
        await anyio.sleep(0.2)
        assert (await runner.stat("/workspace/ticks")).size_bytes == size
        # A command that is started now waits for the end of the hold.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, runner, "sleep 0.05; touch late")
            await anyio.sleep(0.3)
            with pytest.raises(FileNotFound):
                await runner.stat("/workspace/late")
            await pieces.aclose()  # type: ignore[attr-defined]
            tasks.cancel_scope.cancel()
    with anyio.fail_after(PATIENCE_S):
        while (await runner.stat("/workspace/ticks")).size_bytes <= size:
            await anyio.sleep(0.02)
    await runner.kill_process(ticker.id)
    await run(runner, "rm -rf big ticks late")


async def test_held_processes_go_on_when_the_daemon_is_lost(box: Box) -> None:
    async with box.connected() as runner:
        await run(runner, "mkdir -p big && head -c 5000000 /dev/urandom > big/file")
        ticker = await start_ticking(runner)
        with anyio.fail_after(PATIENCE_S):
            while await run(runner, "cat ticks 2>/dev/null || true") == "":
                await anyio.sleep(0.02)
        reading = runner.read_archive("/workspace/big", hold_processes=True)
        pieces = await reading.__aenter__()
        await anext(aiter(pieces))
        size = (await runner.stat("/workspace/ticks")).size_bytes
        assert runner._link is not None
        runner._link.close("a test")
        with pytest.raises(Exception, match="the runner is gone"):
            async for _ in pieces:
                pass
        await reading.__aexit__(None, None, None)
        with anyio.fail_after(PATIENCE_S):
            while (await runner.stat("/workspace/ticks")).size_bytes <= size:
                await anyio.sleep(0.02)
        await runner.kill_process(ticker.id)
        await run(runner, "rm -r big ticks")
