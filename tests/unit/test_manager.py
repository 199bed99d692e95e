"""The manager's counts and limits while sandboxes are being removed or stopped."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from sandboxd.errors import LimitReached
from sandboxd.runner.client import RunnerClient
from sandboxd.sandboxes.lifecycle import State
from sandboxd.sandboxes.manager import SandboxManager
from sandboxd.sandboxes.sandbox import Sandbox
from sandboxd.settings import Settings
from tests.unit.test_lifecycle import ADA, record


def test_a_sandbox_that_is_being_removed_is_not_counted(tmp_path: Path) -> None:
    manager = SandboxManager(Settings(data=tmp_path / "data", socket=tmp_path / "socket"))
    manager._sandboxes[ADA.ref] = Sandbox(record(State.REMOVED))
    assert set(manager.states.values()) == {0}
    manager._sandboxes[ADA.ref] = Sandbox(record(State.READY, container="c1"))
    assert manager.states["ready"] == 1


@pytest.mark.anyio
async def test_a_call_that_enters_before_the_idle_sandbox_is_stopped_keeps_it(tmp_path: Path) -> None:
    manager = SandboxManager(Settings(data=tmp_path / "data", socket=tmp_path / "socket", idle_timeout_s=1))
    sandbox = Sandbox(record(State.READY, container="c1"))
    sandbox.runner = cast(RunnerClient, object())
    sandbox.last_used = float("-inf")
    with sandbox.call():
        await manager._stop_if_idle(sandbox)
    await manager._stop_if_idle(sandbox)  # it was just used
    assert sandbox.record.state is State.READY


def test_a_sandbox_without_a_container_does_not_count_against_the_limit(tmp_path: Path) -> None:
    manager = SandboxManager(Settings(data=tmp_path / "data", socket=tmp_path / "socket", max_sandboxes=1))
    manager.layout.data.mkdir()
    manager._sandboxes[ADA.ref] = Sandbox(record(State.GONE, cause="idle"))
    manager.check_room()
    manager._sandboxes[ADA.ref] = Sandbox(record(State.READY, container="c1"))
    with pytest.raises(LimitReached):
        manager.check_room()
