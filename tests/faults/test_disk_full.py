"""A data directory on a full filesystem: clear errors, old content intact, and recovery without a restart."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandboxd.client import Client
from sandboxd.errors import HostFull, SandboxdError
from tests.faults.test_memory_killed import NOTES, inside, wait_in_sync
from tests.running import RunningDaemon

pytestmark = [pytest.mark.engine, pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")]

BIG = "x" * 200_000


@pytest.fixture
def small(daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    """A daemon whose whole data directory, including mirrors, is a filesystem of 64 MB."""
    daemon.settings["cache"] = "disk"
    daemon.data.mkdir(mode=0o711)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=711", "small", str(daemon.data)], check=True)
    try:
        yield daemon
    finally:
        with daemon.client() as client, suppress(SandboxdError):
            client.destroy_sandbox("s1")
        daemon.terminate()
        subprocess.run(["umount", "--lazy", str(daemon.data)], check=True)


def fill(directory: Path) -> Path:
    """Fill every byte that is left."""
    ballast = directory / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (65_536, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    return ballast


def write_until_refused(client: Client) -> tuple[str, SandboxdError | None]:
    """Write larger and larger texts; return the last one acknowledged, and the refusal."""
    acknowledged = client.read_memo("s1", "NOTES.md").text
    for number in range(20):
        text = f"{number}\n{BIG}\n"
        try:
            client.write_memo("s1", "NOTES.md", text)
        except SandboxdError as error:
            return acknowledged, error
        acknowledged = text
    return acknowledged, None


def test_a_full_data_directory_gives_clear_errors_and_recovers_by_itself(small: RunningDaemon) -> None:
    small.start(limits='{"disk_mb": 8}')
    with small.client() as client:
        client.ensure_sandbox("s1", user="ada")
        client.write_memo("s1", "NOTES.md", "whole\n")
        ballast = fill(small.data)
        acknowledged, refusal = write_until_refused(client)
        assert refusal is not None
        assert refusal.code in ("host.full", "store.unavailable")
        assert str(refusal).startswith("cannot")
        assert client.read_memo("s1", "NOTES.md").text == acknowledged
        assert inside(client, "s1", NOTES) in (acknowledged, "whole\n")  # never half a text
        with pytest.raises(SandboxdError, match="cannot"):
            client.ensure_sandbox("s2", user="ada")
        ballast.unlink()
        client.write_memo("s1", "NOTES.md", "room again\n")
        wait_in_sync(client, "s1")
        assert inside(client, "s1", NOTES) == "room again\n"
        assert client.exec("s1", "echo fine").stdout == "fine\n"


def is_ready(client: Client) -> bool:
    try:
        return bool(client.ready()["ready"])
    except SandboxdError as error:
        assert error.code == "daemon.not_ready"
        assert "disk" in str(error)
        return False


def test_destroying_a_sandbox_on_a_full_disk_frees_its_space(small: RunningDaemon) -> None:
    small.start(limits='{"disk_mb": 8}')
    with small.client() as client:
        for session in ("s1", "s2"):
            client.ensure_sandbox(session, user="ada")
        client.exec("s2", "head -c 4M /dev/urandom > /workspace/file; sync /workspace/file")
        assert is_ready(client)
        ballast = fill(small.data)
        assert not is_ready(client)
        with pytest.raises(HostFull):
            client.ensure_sandbox("s3", user="ada")
        client.destroy_sandbox("s2")
        assert [sandbox.session for sandbox in client.list_sandboxes()] == ["s1"]
        free = os.statvfs(small.data)
        assert free.f_bavail * free.f_frsize > 4_000_000
        fill(small.data)
        client.destroy_sandbox("s1")
        ballast.unlink()
        assert is_ready(client)
        client.ensure_sandbox("s1", user="ada")


@pytest.mark.parametrize("is_reserve_lost", [False, True], ids=["with its reserve", "without a reserve"])
def test_a_daemon_killed_on_a_full_disk_starts_again_and_recovers(small: RunningDaemon, is_reserve_lost: bool) -> None:
    small.start(limits='{"disk_mb": 8}')
    with small.client() as client:
        for session in ("s1", "s2"):
            client.ensure_sandbox(session, user="ada")
        client.exec("s1", "echo kept > /workspace/file")
        client.write_memo("s1", "NOTES.md", "kept\n")
    if is_reserve_lost:
        shutil.rmtree(small.data / "reserve")
    ballast = fill(small.data)
    small.kill()
    fill(small.data)
    small.start(limits='{"disk_mb": 8}')
    with small.client() as client:
        assert not is_ready(client)
        assert "the disk of the data directory is full" in small.log.read_text()
        assert client.exec("s1", "cat /workspace/file").stdout == "kept\n"
        assert client.read_memo("s1", "NOTES.md").text == "kept\n"
        with pytest.raises(HostFull):
            client.ensure_sandbox("s3", user="ada")
        client.destroy_sandbox("s2")
        ballast.unlink()
        assert is_ready(client)
        client.ensure_sandbox("s3", user="ada")
        client.destroy_sandbox("s3")
        assert client.exec("s1", "cat /workspace/file").stdout == "kept\n"
