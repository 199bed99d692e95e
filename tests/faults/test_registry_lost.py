"""A lost registry ends containers, but never loses the files of a workspace. (I14)"""

from __future__ import annotations

import os

import pytest

from sandboxd.workspace import loop
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine


@pytest.mark.skipif(os.geteuid() != 0, reason="looks into a workspace that belongs to another user")
def test_workspaces_without_a_record_are_kept_and_reported() -> None:
    daemon = RunningDaemon(engine="bubblewrap", limits='{"disk_mb": 8}')
    try:
        with daemon.start().client() as client:
            client.ensure_sandbox("s1", user="ada")
            client.exec("s1", "echo kept > /workspace/file; sync")
        daemon.kill()
        for file in daemon.data.glob("registry.db*"):
            file.unlink()
        with daemon.start().client() as client:
            (workspace,) = [path.name for path in (daemon.data / "workspaces").iterdir() if path.name[0] != "."]
            assert (daemon.data / "workspaces" / workspace / "files" / "file").read_text() == "kept\n"
            (lost,) = [event.fields for event in client.events(follow=False) if event.kind == "workspace"]
            assert (lost["what"], lost["directory"]) == ("unclaimed", workspace)
            assert client.collect_garbage()["unclaimed_workspaces"] == [workspace]
            assert client.list_sandboxes() == []
        assert "a workspace has no record and is kept" in daemon.log.read_text()
    finally:
        for files in (daemon.data / "workspaces").glob("*/files"):
            if loop.is_mounted(files):
                loop.unmount(files)
        daemon.stop()
