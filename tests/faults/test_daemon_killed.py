"""kill -9 of the daemon at every failpoint: the next start recovers. (I1, I5, I6)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from sandboxd.client.errors import DaemonUnreachable
from sandboxd.errors import Gone, NotFound
from sandboxd.failpoints import POINTS
from tests.running import RunningDaemon, docker

pytestmark = [pytest.mark.engine]

CREATE_POINTS = sorted(point for point in POINTS if point.startswith("create."))
DESTROY_POINTS = sorted(point for point in POINTS if point.startswith("destroy."))
HIBERNATE_POINTS = sorted(point for point in POINTS if point.startswith("hibernate."))
PAUSE_POINTS = sorted(point for point in POINTS if point.startswith(("pause.", "resume.")))


def assert_nothing_left(daemon: RunningDaemon) -> None:
    assert daemon.containers() == []
    assert daemon.sandbox_files() == []
    assert daemon.mounts() == []


def settle(daemon: RunningDaemon) -> None:
    """Wait for the moves that the start resumed, which end before a later garbage collection answers."""
    with daemon.client() as client:
        for sandbox in client.list_sandboxes():
            if sandbox.state == "destroying":
                with suppress(NotFound):
                    client.destroy_sandbox(sandbox.session)
        client.collect_garbage()


@pytest.mark.parametrize("point", CREATE_POINTS)
def test_a_killed_create_leaves_a_complete_sandbox_or_nothing(daemon: RunningDaemon, point: str) -> None:
    daemon.start(failpoint=f"{point}=kill")
    with daemon.client() as client, pytest.raises(DaemonUnreachable):
        client.ensure_sandbox("s1", user="ada")
    assert daemon.wait() == -signal.SIGKILL
    daemon.start()
    settle(daemon)
    with daemon.client() as client:
        left = client.list_sandboxes()
        if left:  # recorded as ready before the kill, so it was adopted
            assert point in ("create.ready", "create.answer")
            assert left[0].state == "ready"
        else:
            assert_nothing_left(daemon)
        assert client.ensure_sandbox("s1", user="ada").state == "ready"
        assert client.exec("s1", "echo alive").stdout == "alive\n"
        assert len(daemon.containers()) == 1
        client.destroy_sandbox("s1")
    assert_nothing_left(daemon)


@pytest.mark.parametrize("point", DESTROY_POINTS)
def test_a_killed_destroy_is_finished_at_the_next_start(daemon: RunningDaemon, point: str) -> None:
    daemon.start(failpoint=f"{point}=kill")
    with daemon.client() as client:
        client.ensure_sandbox("s1", user="ada")
        client.exec("s1", "echo x > /workspace/file")
        with pytest.raises(DaemonUnreachable):
            client.destroy_sandbox("s1")
    daemon.wait()
    daemon.start()
    settle(daemon)
    with daemon.client() as client, pytest.raises(NotFound):
        client.get_sandbox("s1")
    assert_nothing_left(daemon)


@pytest.mark.parametrize("point", HIBERNATE_POINTS)
def test_a_killed_hibernation_keeps_the_files_and_leaves_nothing_else(daemon: RunningDaemon, point: str) -> None:
    daemon.start(failpoint=f"{point}=kill")
    with daemon.client() as client:
        client.ensure_sandbox("s1", user="ada")
        client.exec("s1", "echo precious > /workspace/file")
        with pytest.raises(DaemonUnreachable):
            client.hibernate_sandbox("s1")
    daemon.wait()
    daemon.start()
    settle(daemon)
    with daemon.client() as client:
        assert client.get_sandbox("s1").state == "hibernated"
        assert daemon.containers() == []
        assert daemon.mounts() == []
        assert client.exec("s1", "cat /workspace/file").stdout == "precious\n"
        assert len(daemon.containers()) == 1
        client.destroy_sandbox("s1")
    assert_nothing_left(daemon)


@pytest.mark.parametrize("point", CREATE_POINTS)
def test_a_killed_resume_keeps_the_files_and_the_next_call_resumes_again(daemon: RunningDaemon, point: str) -> None:
    daemon.start()
    with daemon.client() as client:
        client.ensure_sandbox("s1", user="ada")
        client.exec("s1", "echo precious > /workspace/file")
        client.hibernate_sandbox("s1")
    daemon.terminate()
    daemon.start(failpoint=f"{point}=kill")
    with daemon.client() as client, pytest.raises(DaemonUnreachable):
        client.ensure_sandbox("s1", user="ada")
    assert daemon.wait() == -signal.SIGKILL
    daemon.start()
    settle(daemon)
    with daemon.client() as client:
        assert client.get_sandbox("s1").state in ("hibernated", "ready")
        assert client.exec("s1", "cat /workspace/file").stdout == "precious\n"
        assert len(daemon.containers()) == 1
        client.destroy_sandbox("s1")
    assert_nothing_left(daemon)


@pytest.mark.parametrize("point", PAUSE_POINTS)
def test_a_killed_pause_or_resume_leaves_the_sandbox_with_its_processes(daemon: RunningDaemon, point: str) -> None:
    daemon.start(failpoint=f"{point}=kill")
    with daemon.client() as client:
        container = client.ensure_sandbox("s1", user="ada").container
        process = client.start_process("s1", "sleep 1000")
        with pytest.raises(DaemonUnreachable):
            client.pause_sandbox("s1")
            client.resume_sandbox("s1")
    daemon.wait()
    daemon.start()
    settle(daemon)
    with daemon.client() as client:
        assert client.get_sandbox("s1").state in ("ready", "paused", "starting")
        assert client.exec("s1", "echo awake").stdout == "awake\n"
        assert client.get_sandbox("s1").container == container
        assert [(found.id, found.running) for found in client.list_processes("s1")] == [(process.id, True)]
        client.destroy_sandbox("s1")
    assert_nothing_left(daemon)


@pytest.mark.parametrize("point", ["reconcile.planned", "reconcile.acted"])
def test_a_killed_reconciliation_starts_over(daemon: RunningDaemon, point: str) -> None:
    daemon.start(failpoint="create.launched=kill")
    with daemon.client() as client, pytest.raises(DaemonUnreachable):
        client.ensure_sandbox("s1", user="ada")
    daemon.wait()
    daemon.launch(failpoint=f"{point}=kill")
    assert daemon.wait() == -signal.SIGKILL
    daemon.start()
    settle(daemon)
    assert_nothing_left(daemon)


def test_ten_live_sandboxes_are_adopted_with_their_background_processes(daemon: RunningDaemon) -> None:
    daemon.start()
    names = [f"s{number}" for number in range(10)]
    with daemon.client() as client:
        made = {name: client.ensure_sandbox(name, user="ada").container for name in names}
        processes = {name: client.start_process(name, f"echo started-{name}; exec sleep 1000").id for name in names}
        for name in names:
            client.exec(name, f"echo {name} > /workspace/kept")
            client.read_process(name, processes[name], wait_s=5)
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        assert {item.session: item.container for item in client.list_sandboxes()} == made
        for name in names:
            assert client.exec(name, "cat /workspace/kept").stdout == f"{name}\n"
            output = client.read_process(name, processes[name])
            assert output.data == f"started-{name}\n".encode()
            assert output.process.running
        assert sorted(daemon.containers()) == sorted(filter(None, made.values()))
        assert client.collect_garbage() == {
            "containers": 0,
            "directories": 0,
            "sandboxes": 0,
            "unclaimed_workspaces": [],
            "unclaimed_snapshots": [],
        }
        for name in names:
            client.destroy_sandbox(name)
    assert_nothing_left(daemon)


def test_a_container_that_died_while_no_daemon_ran_is_gone_and_its_workspace_is_kept(daemon: RunningDaemon) -> None:
    daemon.start()
    with daemon.client() as client:
        client.ensure_sandbox("s1", user="ada")
        client.exec("s1", "echo precious > /workspace/file")
    daemon.kill()
    for container in daemon.containers():
        docker("kill", container)
    daemon.start()
    settle(daemon)
    with daemon.client() as client:
        sandbox = client.get_sandbox("s1")
        assert (sandbox.state, sandbox.cause) == ("gone", "killed")
        with pytest.raises(Gone, match="killed"):
            client.exec("s1", "true")
        assert client.ensure_sandbox("s1", user="ada").state == "ready"
        assert client.exec("s1", "cat /workspace/file").stdout == "precious\n"


def test_a_second_daemon_on_the_same_directory_refuses_and_names_the_first(daemon: RunningDaemon) -> None:
    daemon.start()
    first = daemon.process
    assert first is not None
    other = RunningDaemon(image=str(daemon.settings["image"]))
    try:
        other.data = daemon.data
        other.launch()
        assert other.wait() == 1
        assert f"pid {first.pid}" in other.log.read_text()
        assert first.poll() is None
    finally:
        other.data = other.socket.parent / "data"
        other.stop()


@pytest.mark.parametrize("keep_bytes", [0, 5000])
def test_an_unreadable_registry_stops_the_start_and_is_unchanged(daemon: RunningDaemon, keep_bytes: int) -> None:
    daemon.start()
    with daemon.client() as client:
        client.ensure_sandbox("s1", user="ada")
    daemon.terminate()
    registry = daemon.data / "registry.db"
    os.truncate(registry, keep_bytes)
    before = registry.read_bytes()
    daemon.launch()
    assert daemon.wait() == 1
    assert "cannot open the registry" in daemon.log.read_text()
    assert registry.read_bytes() == before
    assert len(daemon.containers()) == 1  # without a registry it removes nothing


def test_sigterm_lets_a_running_call_finish_and_exits_0(daemon: RunningDaemon) -> None:
    daemon.start(drain_s=30)
    with daemon.client() as client:
        client.ensure_sandbox("s1", user="ada")
        client.exec("s1", "mkfifo /workspace/started")
        answers: list[str] = []

        def call() -> None:
            with daemon.client() as other:
                answers.append(other.exec("s1", "echo > /workspace/started; sleep 1; echo done").stdout)

        thread = threading.Thread(target=call)
        thread.start()
        client.exec("s1", "cat /workspace/started")
    assert daemon.terminate() == 0
    thread.join(30)
    assert answers == ["done\n"]
    assert len(daemon.containers()) == 1  # sandboxes outlive the daemon


def test_a_missing_engine_is_reported_in_one_sentence(daemon: RunningDaemon) -> None:
    environment = {**os.environ, "DOCKER_HOST": "unix:///nonexistent/docker.sock", "SANDBOXD_ENGINE": "docker"}
    environment |= {"SANDBOXD_DATA": str(daemon.data), "SANDBOXD_SOCKET": str(daemon.socket)}
    done = subprocess.run(
        [sys.executable, "-m", "sandboxd", "serve"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "cannot" in done.stderr
    assert "Traceback" not in done.stderr
