"""`sandboxd doctor` looks at the host, says what it found, and leaves everything as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_host_with_an_engine_and_the_image_is_found_fit(engine_socket: str, agent_image: str, tmp_path: Path) -> None:
    code, findings = doctor("--engine", "docker", "--data", str(tmp_path / "data"))
    assert code == 0
    assert {"engine", "runc", "seccomp", "image", "workspaces", "store", "limit of memory"} <= findings.keys()
    assert findings["image"]["verdict"] == "ok"
    assert not (tmp_path / "data").exists()
    assert all(finding["advice"] for finding in findings.values() if finding["verdict"] != "ok")


def test_bubblewrap_says_plainly_that_it_is_the_weaker_one(tmp_path: Path) -> None:
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
