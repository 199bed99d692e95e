"""What the manager says of its sandboxes while one of them is on its way out."""

from __future__ import annotations

from pathlib import Path

from sandboxd.lifecycle import State
from sandboxd.live import Sandbox
from sandboxd.manager import SandboxManager
from sandboxd.settings import Settings
from tests.unit.test_lifecycle import ADA, record


def test_a_sandbox_that_is_just_being_forgotten_is_in_no_state_that_is_counted(tmp_path: Path) -> None:
    manager = SandboxManager(Settings(data=tmp_path / "data", socket=tmp_path / "socket"))
    manager._sandboxes[ADA.ref] = Sandbox(record(State.REMOVED))
    assert set(manager.states.values()) == {0}
    manager._sandboxes[ADA.ref] = Sandbox(record(State.READY, container="c1"))
    assert manager.states["ready"] == 1
