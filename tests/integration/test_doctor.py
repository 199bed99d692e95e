"""`sandboxd doctor` examines the host, reports its findings and changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import RunningDaemon

pytestmark = [pytest.mark.engine]


def doctor(*options: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = subprocess.run(
        [sys.executable, "-m", "sandboxd", "doctor", "--json", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, {item["subject"]: item for item in json.loads(done.stdout)["items"]}


def test_a_host_with_an_engine_and_the_image_passes(engine_socket: str, agent_image: str, tmp_path: Path) -> None:
    code, findings = doctor("--engine", "docker", "--data", str(tmp_path / "data"))
    assert code == 0
    assert {"engine", "runc", "seccomp", "image", "workspaces", "store", "limit of memory"} <= findings.keys()
    assert findings["image"]["verdict"] == "ok"
    assert not (tmp_path / "data").exists()
    assert all(finding["advice"] for finding in findings.values() if finding["verdict"] != "ok")


def test_bubblewrap_is_reported_as_weaker(tmp_path: Path) -> None:
    code, findings = doctor("--engine", "bubblewrap", "--data", str(tmp_path / "data"))
    assert code == 0
    assert any(finding["verdict"] == "weak" for finding in findings.values())


def test_a_configured_engine_that_does_not_answer_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nope")
    code, findings = doctor("--data", str(tmp_path / "data"))
    assert code == 1
    assert "unix:///nope (from DOCKER_HOST)" in findings["engine"]["detail"]
    monkeypatch.setenv("SANDBOXD_ENGINE_FALLBACK", "true")
    code, findings = doctor("--data", str(tmp_path / "data"))
    assert code == 0
    assert findings["engine choice"]["verdict"] == "weak"
    assert findings["engine choice"]["detail"].startswith("bubblewrap, because engine_fallback is on")
    assert not (tmp_path / "data").exists()


def test_a_running_daemon_reports_its_state(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        client.ensure_sandbox("asked", user="ada")
        code, findings = doctor("--socket", str(daemon.socket))
        client.destroy_sandbox("asked")
    assert code == 0
    assert str(daemon.socket) in findings["daemon"]["detail"]
    assert findings["daemon's engine"]["detail"] == "docker answers"
    assert str(daemon.data) in findings["daemon's store"]["detail"]
    assert "ready" in findings["daemon's sandboxes"]["detail"]
    assert findings["daemon's pool"]["detail"] == "0 warm"
    assert {"kernel", "seccomp", "image"} <= findings.keys()


def test_the_store_given_as_an_option_is_tested(tmp_path: Path) -> None:
    options = ("--engine", "bubblewrap", "--data", str(tmp_path / "data"))
    code, findings = doctor(*options, "--store", f"file://{tmp_path}/memo")
    assert (code, findings["store"]["verdict"]) == (0, "ok")
    code, findings = doctor(*options, "--store", "mysql://db")
    assert (code, findings["store"]["verdict"]) == (1, "missing")
    assert "no store has the scheme mysql" in findings["store"]["detail"]


def test_a_runtime_that_the_engine_does_not_have_is_missing(
    engine_socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXD_RUNTIME", "no-such-runtime")
    for engine, why in (("docker", "the engine has "), ("bubblewrap", "bubblewrap has no runtimes")):
        code, findings = doctor("--engine", engine, "--data", str(tmp_path / "data"))
        assert code == 1
        assert findings["runtime"]["detail"].startswith(f"cannot use the runtime no-such-runtime: {why}")


def test_the_engines_own_runtime_is_named(engine_socket: str, tmp_path: Path) -> None:
    _, findings = doctor("--engine", "docker", "--data", str(tmp_path / "data"))
    assert findings["runtime"]["detail"] == "containers run under runc"
