"""Two processes on one store: every user is consolidated exactly once, even if one process is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from memo.consolidation import Standing
from memo.ids import UserRef
from tests.memo.consolidation.consolidator import open_at
from tests.memo.consolidation.scenes import page, revisions, say

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).with_name("consolidator.py")
ROOT = Path(__file__).parents[3]
USERS = [UserRef.of(f"tenant{n % 3}", f"user{n}") for n in range(50)]
HANG_GUARD_S = 60


@pytest.fixture(params=["memo.db", "directory"])
async def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path: Path = tmp_path / request.param
    async with open_at(path) as store:
        for user in USERS:
            for number in (1, 2):
                said = f"I prefer colour{number}."
                await say(store, f"{user.user}-{number}", said, user=user.user, tenant=user.tenant)
    return path


async def start(path: Path, *words: str) -> Process:
    command = [sys.executable, str(SCRIPT), str(path), *words]
    return await anyio.open_process(command, stderr=subprocess.DEVNULL, env={"PYTHONPATH": str(ROOT)})


async def lines(process: Process) -> AsyncIterator[dict[str, Any]]:
    assert process.stdout is not None
    rest = ""
    async for chunk in TextReceiveStream(process.stdout):
        *complete, rest = (rest + chunk).split("\n")
        for line in complete:
            yield json.loads(line)


async def go(*processes: Process) -> list[AsyncIterator[dict[str, Any]]]:
    """Let all processes start at the same time."""
    told = [lines(process) for process in processes]
    for each in told:
        assert await anext(each) == {"ready": True}
    for process in processes:
        assert process.stdin is not None
        await process.stdin.send(b"go\n")
    return told


async def assert_each_once(path: Path) -> None:
    async with open_at(path) as store:
        assert await store.list_pending() == []
        standings = {user: Standing.parse(standing) for user, standing in await store.list_standings()}
        assert {user: standings[user].runs for user in USERS} == dict.fromkeys(USERS, 1)
        for user in USERS:
            assert await revisions(store, user) == 1
            assert "colour1" in await page(store, user)
            assert "colour2" in await page(store, user)


async def test_two_processes_consolidate_each_of_fifty_users_exactly_once(path: Path) -> None:
    written: list[list[str]] = [[], []]

    async def read(number: int, told: AsyncIterator[dict[str, Any]]) -> None:
        async for line in told:
            if line.get("outcome") == "written":
                written[number].append(line["user"])

    with anyio.fail_after(HANG_GUARD_S):
        async with await start(path, "once") as one, await start(path, "once") as two:
            told = await go(one, two)
            async with anyio.create_task_group() as tasks:
                for number, each in enumerate(told):
                    tasks.start_soon(read, number, each)
    assert sorted(written[0] + written[1]) == sorted(map(str, USERS))
    await assert_each_once(path)


async def test_the_users_of_a_killed_process_are_taken_over_once_its_leases_expire(path: Path) -> None:
    with anyio.fail_after(HANG_GUARD_S):
        async with await start(path, "hang", "user7") as doomed, await start(path, "watch") as other:
            (told_by_doomed,) = await go(doomed)
            async for line in told_by_doomed:
                if "hangs" in line:
                    break
            (told_by_other,) = await go(other)
            async for line in told_by_other:
                if line == {"user": "tenant1:user7", "outcome": "held by another run"}:
                    break
            doomed.kill()
            done: set[str] = set()
            async with open_at(path) as store:
                async for line in told_by_other:
                    if line["outcome"] == "written":
                        done.add(line["user"])
                    if "tenant1:user7" in done and not await store.list_pending():
                        break
            other.terminate()
            assert await other.wait() == 0
    await assert_each_once(path)
