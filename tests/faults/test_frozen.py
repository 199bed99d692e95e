"""An engine or a store that hangs: callers get an error, and the daemon can still start and stop."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.proxy import FreezableProxy
from tests.faults.test_wire_abuse import HEALTH, Answer, ask, connect
from tests.running import READY_S, RunningDaemon
from tests.stopping_store import BEHIND, STOPPED

pytestmark = [pytest.mark.engine]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def engine(engine_socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FreezableProxy]:
    with FreezableProxy(tmp_path / "engine.sock", engine_socket) as proxy:
        monkeypatch.setenv("DOCKER_HOST", proxy.url)
        yield proxy


def get(daemon: RunningDaemon, path: str) -> Answer:
    with connect(socket.AF_UNIX, str(daemon.socket)) as connection:
        return ask(connection, HEALTH.replace(b"/healthz", path.encode()))


def doctor(*options: str) -> dict[str, dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-m", "sandboxd", "doctor", "--json", *options],
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
    )
    return {item["subject"]: item for item in json.loads(done.stdout)["items"]}


def test_a_frozen_engine_is_reported_at_once_and_calls_continue(engine: FreezableProxy, daemon: RunningDaemon) -> None:
    with daemon.start().client() as client:
        client.ensure_sandbox("s1", user="ada")
        engine.freeze()
        for _ in range(3):
            answer = get(daemon, "/readyz")
            assert answer.status == 503
            checks = json.loads(answer.body)
            assert (checks["engine"]["ok"], checks["store"]["ok"], checks["disk"]["ok"]) == (False, True, True)
            assert get(daemon, "/healthz").status == 200
            assert client.exec("s1", "echo well").stdout == "well\n"
        engine.thaw()
        for _ in range(100):  # the check under way takes a moment to end
            if get(daemon, "/readyz").status == 200:
                break
            time.sleep(0.1)
        else:
            raise AssertionError("the daemon did not get ready again")


def test_a_daemon_that_waits_for_a_frozen_engine_stops_cleanly(engine: FreezableProxy, daemon: RunningDaemon) -> None:
    daemon.start()
    engine.freeze()
    assert get(daemon, "/readyz").status == 503
    try:
        assert daemon.terminate() == 0
    finally:
        engine.thaw()


def test_a_start_and_doctor_do_not_wait_for_a_frozen_engine(engine: FreezableProxy, daemon: RunningDaemon) -> None:
    engine.freeze()
    assert "the engine does not answer" in doctor("--engine", "docker", "--data", str(daemon.data))["engine"]["detail"]
    daemon.launch()
    assert daemon.wait() == 1
    assert "cannot reach the engine" in daemon.log.read_text()
    engine.thaw()


def test_a_store_that_hangs_is_reported_by_the_daemon_and_by_doctor(
    daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = tmp_path / "stopped"
    monkeypatch.setenv(STOPPED, str(stopped))
    monkeypatch.setenv(BEHIND, f"sqlite:///{tmp_path / 'behind.db'}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    daemon.start(store="python:tests.stopping_store:make")
    stopped.write_text("hang")
    for _ in range(2):
        answer = get(daemon, "/readyz")
        assert answer.status == 503
        assert json.loads(answer.body)["store"]["detail"].startswith("no answer within")
        assert get(daemon, "/healthz").status == 200
    monkeypatch.setenv("SANDBOXD_STORE", "python:tests.stopping_store:make")
    found = doctor("--engine", "docker", "--data", str(daemon.data))["store"]
    assert (found["verdict"], "no answer within" in found["detail"]) == ("missing", True)
    assert daemon.terminate() == 0
