"""Readiness is accurate and never hangs, even if a dependency does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import anyio
import pytest

from sandboxd.daemon.readiness import Probe, look_at_disk
from sandboxd.sandboxes.reserve import Reserve

pytestmark = pytest.mark.anyio


async def test_a_check_that_hangs_fails_by_its_deadline_and_is_not_started_twice() -> None:
    started = 0
    answer = anyio.Event()

    async def look() -> None:
        nonlocal started
        started += 1
        await answer.wait()

    async with anyio.create_task_group() as tasks:
        probe = Probe("engine", look, tasks, deadline_s=0.05)
        for _ in range(3):
            check = await probe.check()
            assert not check.ok
            assert "no answer within 0.05 s" in check.detail
        assert started == 1
        answer.set()
        await anyio.wait_all_tasks_blocked()
        assert (await probe.check()).ok


async def test_a_check_reports_a_recovery_once() -> None:
    recoveries = 0
    is_broken = False

    async def look() -> None:
        if is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def count() -> None:
        nonlocal recoveries
        recoveries += 1

    async with anyio.create_task_group() as tasks:
        probe = Probe("engine", look, tasks, deadline_s=30, recovered=count)
        for is_broken, expected in ((False, 0), (True, 0), (True, 0), (False, 1), (False, 1)):
            assert (await probe.check()).ok is not is_broken
            assert recoveries == expected


async def test_a_check_that_fails_says_why() -> None:
    async def look() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with anyio.create_task_group() as tasks:
        check = await Probe("disk", look, tasks, deadline_s=30).check()
    assert not check.ok
    assert "Input/output error" in check.detail


async def test_a_disk_with_room_is_ready_holds_the_reserve_and_leaves_no_probe(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve")
    look_at_disk(tmp_path, reserve)
    assert reserve.is_whole
    assert [path.name for path in tmp_path.iterdir()] == ["reserve"]
    assert reserve.spend()
    assert not reserve.is_whole
    look_at_disk(tmp_path, reserve)
    assert reserve.is_whole
