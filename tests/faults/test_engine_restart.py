"""The engine restarts: its containers are dead, and the reported cause is the engine."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Client
from tests.engines import CannotServe, SecondDocker
from tests.running import RunningDaemon

pytestmark = [pytest.mark.engine]

HANG_S = 90
SESSION = "s1"


@pytest.fixture(scope="module")
def second_docker(saved_image: Path) -> Iterator[SecondDocker]:
    try:
        engine = SecondDocker()
    except CannotServe as reason:
        pytest.skip(str(reason))
    try:
        engine.start()
        engine.load(saved_image)
        yield engine
    finally:
        engine.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_after_an_engine_restart_the_cause_is_engine_and_the_files_are_kept(
    second_docker: SecondDocker, agent_image: str, number: signal.Signals
) -> None:
    daemon = RunningDaemon(image=agent_image, docker_host=second_docker.url)
    try:
        with daemon.start().client() as client:
            client.ensure_sandbox(SESSION, user="ada")
            client.exec(SESSION, "echo kept > file")
            second_docker.end(number)
            second_docker.start()
            _wait_until_gone(client)
            assert client.get_sandbox(SESSION).cause == "engine"
            client.ensure_sandbox(SESSION, user="ada")
            assert client.exec(SESSION, "cat file").stdout == "kept\n"
            container = client.get_sandbox(SESSION).container
            second_docker.docker("kill", str(container))
            _wait_until_gone(client)
            assert client.get_sandbox(SESSION).cause == "killed", "what is killed after the restart is not its doing"
            client.destroy_sandbox(SESSION)
    finally:
        daemon.stop()


def _wait_until_gone(client: Client) -> None:
    deadline = time.monotonic() + HANG_S
    while client.get_sandbox(SESSION).state != "gone":
        assert time.monotonic() < deadline
        time.sleep(0.05)
