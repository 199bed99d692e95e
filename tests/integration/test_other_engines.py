"""A sandbox's whole life on the engines that are not Docker with runc: Podman, and Docker with gVisor."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd.client import Client
from sandboxd.errors import Paused, SandboxdError
from tests.engines import Podman, PrivateEngine, SecondDocker
from tests.integration.test_doctor import doctor
from tests.running import RunningDaemon

pytestmark = [pytest.mark.engine]

HANG_S = 60
SESSION = "s1"
GVISOR: dict[str, Any] = {"runtime": "runsc", "limits__pids": 1024}


@pytest.fixture(params=["podman", "gvisor"])
def daemon(request: pytest.FixtureRequest, agent_image: str) -> Iterator[RunningDaemon]:
    is_podman = request.param == "podman"
    engine: PrivateEngine = request.getfixturevalue("podman" if is_podman else "gvisor_docker")
    running = RunningDaemon(image=agent_image, docker_host=engine.url, **({} if is_podman else GVISOR))
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose sockets have short enough paths; a worker's `tmp_path` is longer."""
    with tempfile.TemporaryDirectory(prefix="sandboxd-test-") as name:
        yield Path(name)


def wait_until(client: Client, is_so: Callable[[Client], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_so(client):
        assert time.monotonic() < deadline, client.get_sandbox(SESSION)
        time.sleep(0.05)


def wait_for_state(client: Client, state: str) -> None:
    wait_until(client, lambda client: client.get_sandbox(SESSION).state == state)


def test_a_sandbox_runs_pauses_is_adopted_and_dies_as_on_docker(daemon: RunningDaemon) -> None:
    temporary = daemon.data.parent / "tmp"
    temporary.mkdir()
    with daemon.start(environment={"TMPDIR": str(temporary)}).client() as client:
        container = client.ensure_sandbox(SESSION, user="ada").container
        assert container is not None
        client.exec(SESSION, "echo kept > file")
        process = client.start_process(SESSION, "sleep 600")
        client.write_memo(SESSION, "NOTES.md", "first")
        assert client.exec(SESSION, "cat memo/session/NOTES.md").stdout == "first"
        client.write_memo(SESSION, "NOTES.md", "second")
        assert client.exec(SESSION, "cat memo/session/NOTES.md").stdout == "second"
        assert client.exec(SESSION, "sleep 600", timeout_s=1).timed_out
        daemon.docker("pause", container)
        wait_for_state(client, "paused")
        with pytest.raises(Paused, match="paused from outside"):
            client.exec(SESSION, "true")
    daemon.kill()
    with daemon.start(environment={"TMPDIR": str(temporary)}).client() as client:
        wait_for_state(client, "paused")
        daemon.docker("unpause", container)
        wait_for_state(client, "ready")
        assert client.get_sandbox(SESSION).container == container
        assert client.exec(SESSION, "cat file").stdout == "kept\n"
        assert [(found.id, found.running) for found in client.list_processes(SESSION)] == [(process.id, True)]
        daemon.docker("kill", container)
        wait_for_state(client, "gone")
        assert client.get_sandbox(SESSION).cause == "killed"
        client.ensure_sandbox(SESSION, user="ada")
        assert client.exec(SESSION, "cat file").stdout == "kept\n"
        client.destroy_sandbox(SESSION)
        assert daemon.containers() == []
    daemon.kill()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("runtime", "sentence"),
    [
        ("runsc-without-sockets", "cannot connect to the daemon's unix socket; for gVisor, add --host-uds=open"),
        ("runsc-stale", "so memory would never change; for gVisor, remove --file-access-mounts=exclusive"),
        ("no-such", "runsc, runsc-stale, runsc-without-sockets; correct SANDBOXD_RUNTIME, or register the runtime"),
    ],
)
def test_a_runtime_that_cannot_serve_is_refused_at_start_and_by_doctor_in_one_sentence(
    gvisor_docker: SecondDocker,
    agent_image: str,
    runtime: str,
    sentence: str,
    short_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", gvisor_docker.url)
    monkeypatch.setenv("SANDBOXD_RUNTIME", runtime)
    monkeypatch.setenv("SANDBOXD_START_TIMEOUT_S", "60")
    data = ["--data", str(short_path / "data")]
    command = [sys.executable, "-m", "sandboxd", "serve", *data, "--socket", str(short_path / "d.sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, env=dict(os.environ))
    assert done.returncode == 1
    (said,) = [line for line in done.stderr.splitlines() if "cannot use the runtime" in line]
    assert sentence in said
    code, findings = doctor("--engine", "docker", *data)
    assert code == 1
    assert sentence in findings["runtime"]["detail"]
    assert gvisor_docker.docker("ps", "-aq") == ""


def test_readiness_names_a_runtime_that_the_engine_has_lost(gvisor_docker: SecondDocker, agent_image: str) -> None:
    offered = gvisor_docker.runtimes
    daemon = RunningDaemon(image=agent_image, docker_host=gvisor_docker.url, **GVISOR)
    try:
        with daemon.start().client() as client:
            assert client.ready()["engine"]["ok"]
            gvisor_docker.offer({})
            deadline = time.monotonic() + HANG_S
            while True:
                try:
                    client.ready()
                except SandboxdError as error:
                    assert "cannot use the runtime runsc: the engine has " in str(error)
                    break
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        gvisor_docker.offer(offered)
        daemon.stop()


def test_a_process_limit_that_gvisor_itself_exceeds_is_reported(
    gvisor_docker: SecondDocker, agent_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", gvisor_docker.url)
    monkeypatch.setenv("SANDBOXD_RUNTIME", "runsc")
    _, findings = doctor("--engine", "docker", "--data", str(tmp_path / "data"))
    assert (findings["runtime"]["verdict"], "1024 or more" in findings["runtime"]["advice"]) == ("weak", True)
    monkeypatch.setenv("SANDBOXD_LIMITS__PIDS", "1024")
    _, findings = doctor("--engine", "docker", "--data", str(tmp_path / "data"))
    assert findings["runtime"]["verdict"] == "ok"


def test_a_runtime_that_podman_would_ignore_is_not_requested(
    podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", podman.url)
    monkeypatch.setenv("SANDBOXD_RUNTIME", "runsc")
    code, findings = doctor("--engine", "docker", "--data", str(tmp_path / "data"))
    assert code == 1
    assert "Podman runs all containers with" in findings["runtime"]["detail"]
