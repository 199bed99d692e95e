"""A container that is paused from outside: its state is reported (I10), and its sandbox loses nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from sandboxd.client import Client, ExecResult
from sandboxd.errors import Paused, ToolTimeout
from tests.running import RunningDaemon, docker, newest_event, wait_for_state

pytestmark = [pytest.mark.engine]

HANG_S = 60
SESSION = "s1"


@pytest.fixture(scope="module")
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    running = RunningDaemon(image=agent_image)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def container(daemon: RunningDaemon) -> Iterator[str]:
    with daemon.client() as client:
        made = client.ensure_sandbox(SESSION, user="ada").container
        assert made is not None
        yield made
        if any(sandbox.session == SESSION for sandbox in client.list_sandboxes()):
            client.destroy_sandbox(SESSION)


def pause(client: Client, container: str) -> None:
    before = newest_event(client)
    docker("pause", container)
    wait_for_state(client, SESSION, "paused", after=before)


def unpause(client: Client, container: str) -> None:
    before = newest_event(client)
    docker("unpause", container)
    wait_for_state(client, SESSION, "ready", after=before)


def wait_running(client: Client) -> None:
    """Wait until the command in flight has printed that it runs."""
    deadline = time.monotonic() + HANG_S
    while client.exec(SESSION, "test -e started").exit_code:
        assert time.monotonic() < deadline


def test_calls_on_a_paused_sandbox_fail_at_once_and_work_again_once_it_resumes(
    daemon: RunningDaemon, container: str
) -> None:
    with daemon.client() as client:
        client.exec(SESSION, "echo kept > file")
        pause(client, container)
        assert client.get_sandbox(SESSION).state == "paused"
        for call in (
            lambda: client.exec(SESSION, "true"),
            lambda: client.read_file(SESSION, "/workspace/file"),
            lambda: client.ensure_sandbox(SESSION, user="ada"),
        ):
            with pytest.raises(Paused, match=f"paused from outside; run `docker unpause {container[:12]}`") as refused:
                call()
            assert refused.value.retryable
        unpause(client, container)
        assert client.get_sandbox(SESSION).container == container
        assert client.exec(SESSION, "cat file").stdout == "kept\n"


def test_a_call_in_flight_ends_at_its_own_timeout_with_the_reason(daemon: RunningDaemon, container: str) -> None:
    with daemon.client() as client, ThreadPoolExecutor(1) as pool:
        running = _start(pool, daemon, "touch started; sleep 600", timeout_s=3)
        wait_running(client)
        pause(client, container)
        with pytest.raises(ToolTimeout, match="its time limit passed while the container was paused from outside"):
            running.result(HANG_S)
        assert client.get_sandbox(SESSION).state == "paused", "reported by the engine, not inferred from a late answer"
        unpause(client, container)
        assert client.exec(SESSION, "echo well").stdout == "well\n"


def test_a_short_pause_does_not_affect_a_call_in_flight(daemon: RunningDaemon, container: str) -> None:
    with daemon.client() as client, ThreadPoolExecutor(1) as pool:
        running = _start(pool, daemon, "touch started; sleep 1; echo done", timeout_s=HANG_S)
        wait_running(client)
        pause(client, container)
        unpause(client, container)
        assert running.result(HANG_S).stdout == "done\n"


def _start(pool: ThreadPoolExecutor, daemon: RunningDaemon, command: str, *, timeout_s: float) -> Future[ExecResult]:
    def run() -> ExecResult:
        with daemon.client() as client:
            return client.exec(SESSION, command, timeout_s=timeout_s)

    return pool.submit(run)


def test_a_paused_container_that_is_killed_is_gone(daemon: RunningDaemon, container: str) -> None:
    with daemon.client() as client:
        pause(client, container)
        before = newest_event(client)
        docker("rm", "-f", container)
        wait_for_state(client, SESSION, "gone", after=before)
        assert client.get_sandbox(SESSION).cause == "killed"


def test_a_paused_sandbox_can_be_destroyed(daemon: RunningDaemon, container: str) -> None:
    with daemon.client() as client:
        pause(client, container)
        client.destroy_sandbox(SESSION)
    assert container not in daemon.containers()


def test_processes_that_are_stopped_from_outside_pause_a_bubblewrap_sandbox() -> None:
    daemon = RunningDaemon(engine="bubblewrap")
    try:
        with daemon.start().client() as client:
            container = client.ensure_sandbox(SESSION, user="ada").container
            assert container is not None
            freeze, thaw = _freezer(daemon, "bubblewrap", container)
            for _ in range(2):
                freeze()
                _wait_state(client, "paused")
                with pytest.raises(Paused, match="continue its processes with SIGCONT"):
                    client.exec(SESSION, "true")
                thaw()
                _wait_state(client, "ready")
                assert client.exec(SESSION, "echo well").stdout == "well\n"
            client.destroy_sandbox(SESSION)
    finally:
        daemon.stop()


@pytest.mark.parametrize("engine", ["docker", "bubblewrap"])
def test_a_paused_sandbox_is_still_paused_and_complete_after_a_restart(
    engine_socket: str, agent_image: str, engine: str
) -> None:
    settings: dict[str, Any] = {"image": agent_image} if engine == "docker" else {}
    daemon = RunningDaemon(engine=engine, start_timeout_s=5, **settings)
    try:
        with daemon.start().client() as client:
            container = client.ensure_sandbox(SESSION, user="ada").container
            assert container is not None
            client.exec(SESSION, "echo kept > file")
            process = client.start_process(SESSION, "sleep 600")
        freeze, thaw = _freezer(daemon, engine, container)
        daemon.kill()
        freeze()
        with daemon.start().client() as client:
            _wait_state(client, "paused")
            with pytest.raises(Paused):
                client.exec(SESSION, "true")
            thaw()
            _wait_state(client, "ready")
            assert client.get_sandbox(SESSION).container == container
            assert client.exec(SESSION, "cat file").stdout == "kept\n"
            assert [(found.id, found.running) for found in client.list_processes(SESSION)] == [(process.id, True)]
            client.destroy_sandbox(SESSION)
    finally:
        daemon.stop()


def _freezer(daemon: RunningDaemon, engine: str, container: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return functions that freeze and thaw a container without the daemon."""
    if engine == "docker":
        return lambda: docker("pause", container), lambda: docker("unpause", container)
    (record,) = (daemon.data / "engine").glob("*/record")
    pid = json.loads(record.read_text())["init"]["pid"]
    return lambda: os.kill(pid, signal.SIGSTOP), lambda: os.kill(pid, signal.SIGCONT)


def _wait_state(client: Client, state: str) -> None:
    deadline = time.monotonic() + HANG_S
    while client.get_sandbox(SESSION).state != state:
        assert time.monotonic() < deadline
        time.sleep(0.05)
