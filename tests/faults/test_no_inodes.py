"""A filesystem without free inodes: clear errors, old content intact, and recovery without a restart."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandboxd.errors import SandboxdError
from tests.faults.test_memory_killed import NOTES, inside, wait_in_sync
from tests.faults.test_store_down import wait_for_text
from tests.running import RunningDaemon

pytestmark = [pytest.mark.engine, pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")]

SIZE_MB = 96


@pytest.fixture(params=["sqlite", "file"])
def scarce(daemon: RunningDaemon, request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    """A daemon whose whole data directory, including the store, is an ext4 filesystem with few inodes."""
    daemon.settings["cache"] = "disk"
    image = daemon.data.parent / "small.img"
    with image.open("wb") as file:
        file.truncate(SIZE_MB * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-N", "512", str(image)], check=True)
    daemon.data.mkdir(mode=0o711)
    subprocess.run(["mount", "-o", "loop", str(image), str(daemon.data)], check=True)
    daemon.data.chmod(0o711)
    place = daemon.data / "memory"
    daemon.settings["store"] = f"sqlite:///{place}.db" if request.param == "sqlite" else f"file://{place}"
    try:
        yield daemon
    finally:
        if daemon.process is not None and daemon.process.poll() is None:
            with daemon.client() as client, suppress(SandboxdError):
                client.destroy_sandbox("s1")
            daemon.terminate()
        subprocess.run(["umount", "--lazy", str(daemon.data)], check=True)


def use_up_inodes(directory: Path) -> list[Path]:
    taken: list[Path] = []
    with suppress(OSError):
        while True:
            path = directory / f"ballast-{len(taken)}"
            path.touch()
            taken.append(path)
    return taken


def test_without_inodes_errors_are_clear_old_content_is_intact_and_the_daemon_recovers(scarce: RunningDaemon) -> None:
    scarce.start(limits='{"disk_mb": 8}', outbox=True)
    with scarce.client() as client:
        client.ensure_sandbox("s1", user="ada")
        client.ensure_sandbox("s3", user="ada")
        client.write_memo("s1", "NOTES.md", "whole\n")
        client.write_artifact("s1", "call-1", "a result\n")
        ballast = use_up_inodes(scarce.data)
        assert len(ballast) > 10
        acknowledged = ["whole\n"]
        committed = "whole\n"
        for number in range(5):
            text = f"text {number}\n" * 1000
            try:
                written = client.write_memo("s1", "NOTES.md", text)
            except SandboxdError as error:
                assert error.code in ("host.full", "store.unavailable")
                assert str(error).startswith("cannot")
            else:
                acknowledged.append(text)
                committed = committed if written.queued else text
        assert client.read_memo("s1", "NOTES.md").text == committed
        assert inside(client, "s1", NOTES) in acknowledged  # never half a text
        assert inside(client, "s1", "/workspace/memo/session/tool-results/call-1.txt") == "a result\n"
        with pytest.raises(SandboxdError, match="cannot") as refused:
            client.ensure_sandbox("s2", user="ada")
        assert not refused.value.code.startswith("internal.")
        assert client.exec("s1", "echo fine").stdout == "fine\n"
        client.destroy_sandbox("s3")
        for path in ballast:
            path.unlink()
        wait_for_text(client, acknowledged[-1])  # a queued write is delivered once there is room
        wait_in_sync(client, "s1")
        assert inside(client, "s1", NOTES) == acknowledged[-1]
        client.write_memo("s1", "NOTES.md", "room again\n")
        wait_in_sync(client, "s1")
        assert inside(client, "s1", NOTES) == "room again\n"
        client.ensure_sandbox("s2", user="ada")
        client.destroy_sandbox("s2")
        assert [sandbox.session for sandbox in client.list_sandboxes()] == ["s1"]
