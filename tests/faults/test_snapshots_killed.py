"""kill -9 of the daemon at every step of a snapshot and a fork: nothing lost, nothing left over, nothing frozen."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from sandboxd.client import Client
from sandboxd.client.errors import DaemonUnreachable
from sandboxd.failpoints import POINTS
from tests.faults.test_daemon_killed import assert_nothing_left, settle
from tests.running import RunningDaemon

pytestmark = [pytest.mark.engine]

SNAPSHOT_POINTS = sorted(p for p in POINTS if p.startswith("snapshot.") and not p.startswith("snapshot.remov"))
FORK_POINTS = sorted(p for p in POINTS if p.startswith(("fork.", "snapshot.")) and p not in ("snapshot.intent",))
FORK_POINTS = [p for p in FORK_POINTS if not p.startswith(("snapshot.remov", "snapshot.ready"))]
WAIT_S = 60


def prepare(daemon: RunningDaemon, failpoint: str = "") -> str | None:
    """Start the daemon with a sandbox that has files and memory; return its container."""
    daemon.start(failpoint=failpoint)
    with daemon.client() as client:
        container = client.ensure_sandbox("s1", user="ada").container
        client.exec("s1", "echo precious > file; head -c 4000000 /dev/urandom > big; sha256sum big > sum")
        client.append_messages("s1", [{"role": "user", "content": "hello"}])
        client.write_memo("s1", "NOTES.md", "notes\n")
    return container


def wait_until_undone(daemon: RunningDaemon) -> None:
    """Wait for the removal of what the start found half made, which goes on while the daemon serves."""
    deadline = time.monotonic() + WAIT_S
    with daemon.client() as client:
        while {sandbox.state for sandbox in client.list_sandboxes()} - {"ready"}:
            assert time.monotonic() < deadline, client.list_sandboxes()
            time.sleep(0.05)
        client.collect_garbage()


def assert_not_frozen(daemon: RunningDaemon) -> None:
    """Write to every workspace, from the host. A write to a frozen one would wait for ever."""
    for mount in daemon.mounts():
        subprocess.run(["touch", f"{mount}/probe"], timeout=WAIT_S, check=True)
        subprocess.run(["rm", f"{mount}/probe"], timeout=WAIT_S, check=True)


def assert_source_untouched(client: Client, container: str | None) -> None:
    assert client.get_sandbox("s1").container == container
    assert client.exec("s1", "cat file; sha256sum -c sum").stdout == "precious\nbig: OK\n"
    assert client.exec("s1", "echo more >> log").exit_code == 0
    assert client.load_messages("s1") == [{"role": "user", "content": "hello"}]


def snapshot_files(daemon: RunningDaemon) -> list[str]:
    return sorted(path.name for path in (daemon.data / "snapshots").iterdir())


@pytest.mark.parametrize("point", SNAPSHOT_POINTS)
def test_a_killed_snapshot_is_ready_or_gone(daemon: RunningDaemon, point: str) -> None:
    container = prepare(daemon, failpoint=f"{point}=kill")
    with daemon.client() as client, pytest.raises(DaemonUnreachable):
        client.take_snapshot("s1", "mine", idempotency_key="k1")
    assert daemon.wait() == -signal.SIGKILL
    assert_not_frozen(daemon)  # before the next start: an agent must not wait for one
    daemon.start()
    settle(daemon)
    with daemon.client() as client:
        found = client.list_snapshots("s1")
        assert len(found) == (point == "snapshot.ready")
        assert snapshot_files(daemon) == [f"{one.id}.image" for one in found]
        assert_source_untouched(client, container)
        taken = client.take_snapshot("s1", "mine", idempotency_key="k1")
        assert client.list_snapshots("s1") == [taken]
        client.ensure_sandbox("s2", user="ada", from_snapshot=taken.id)
        assert client.exec("s2", "cat file; sha256sum -c sum").stdout == "precious\nbig: OK\n"
        for session in ("s1", "s2"):
            client.destroy_sandbox(session)
        assert client.list_snapshots("s1") == [taken]
        client.remove_snapshot("s1", taken.id)
    assert_nothing_left(daemon)
    assert snapshot_files(daemon) == []


@pytest.mark.parametrize("point", ["snapshot.removing", "snapshot.removed"])
def test_a_killed_removal_of_a_snapshot_is_finished(daemon: RunningDaemon, point: str) -> None:
    prepare(daemon, failpoint=f"{point}=kill")
    with daemon.client() as client:
        taken = client.take_snapshot("s1")
        with pytest.raises(DaemonUnreachable):
            client.remove_snapshot("s1", taken.id)
    assert daemon.wait() == -signal.SIGKILL
    daemon.start()
    with daemon.client() as client:
        assert client.list_snapshots("s1") == []
    assert snapshot_files(daemon) == []


@pytest.mark.parametrize("point", FORK_POINTS)
def test_a_killed_fork_is_finished_or_gone_and_can_be_repeated(daemon: RunningDaemon, point: str) -> None:
    container = prepare(daemon, failpoint=f"{point}=kill")
    with daemon.client() as client, pytest.raises(DaemonUnreachable):
        client.fork("s1", ["s2", "s3"], idempotency_key="k1")
    assert daemon.wait() == -signal.SIGKILL
    assert_not_frozen(daemon)
    daemon.start()
    wait_until_undone(daemon)
    with daemon.client() as client:
        left = sorted(sandbox.session for sandbox in client.list_sandboxes())
        assert left in (["s1"], ["s1", "s2", "s3"])
        if left == ["s1"]:
            assert len(daemon.containers()) == len(daemon.mounts()) == 1
        assert_source_untouched(client, container)
        made = client.fork("s1", ["s2", "s3"], idempotency_key="k1")
        assert [(view.session, view.parent, view.state) for view in made.items] == [
            ("s2", "s1", "ready"),
            ("s3", "s1", "ready"),
        ]
        for session in ("s2", "s3"):
            shown = client.exec(session, "cat file memo/session/NOTES.md; sha256sum -c sum")
            assert shown.stdout == "precious\nnotes\nbig: OK\n"
            assert client.load_messages(session) == [{"role": "user", "content": "hello"}]
        assert_source_untouched(client, container)
        assert len(daemon.containers()) == 3
        for session in ("s1", "s2", "s3"):
            client.destroy_sandbox(session)
    assert_nothing_left(daemon)
    assert snapshot_files(daemon) == []


def test_a_killed_create_from_a_snapshot_leaves_nothing_but_the_snapshot(daemon: RunningDaemon) -> None:
    prepare(daemon)
    with daemon.client() as client:
        taken = client.take_snapshot("s1")
        client.destroy_sandbox("s1")
    daemon.terminate()
    daemon.start(failpoint="create.workspace=kill")
    with daemon.client() as client, pytest.raises(DaemonUnreachable):
        client.ensure_sandbox("s2", user="ada", from_snapshot=taken.id)
    daemon.wait()
    daemon.start()
    settle(daemon)
    assert_nothing_left(daemon)
    with daemon.client() as client:
        client.ensure_sandbox("s2", user="ada", from_snapshot=taken.id)
        assert client.exec("s2", "cat file").stdout == "precious\n"
