"""Which engine is selected, and the error when none answers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from sandboxd.engine import selection
from sandboxd.engine.address import EngineAddress
from sandboxd.engine.docker import engine, find_socket
from sandboxd.engine.selection import EngineChoice, open_engine
from sandboxd.errors import EngineUnavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")


@pytest.fixture
def no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a host without an engine's socket. A test cannot change the usual places, so the search is replaced."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(selection, "find_address", lambda: None)


@pytest.mark.parametrize("choice", ["docker", "auto"])
async def test_a_configured_engine_that_does_not_answer_is_refused(
    choice: EngineChoice, no_docker: None, tmp_path: Path
) -> None:
    refusal = r"cannot reach the engine at unix://.*/absent.sock \(from DOCKER_HOST\): .*; start it, correct"
    with pytest.raises(EngineUnavailable, match=refusal):
        await open_engine(choice, tmp_path / "state")
    assert not (tmp_path / "state").exists()


async def test_a_socket_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # as a stopped engine leaves it: the file exists, and nothing listens
    found = EngineAddress(f"unix://{path}", is_configured=False)
    monkeypatch.setattr(selection, "find_address", lambda: found)
    monkeypatch.setattr(engine, "find_socket", lambda: found.url)
    with pytest.raises(EngineUnavailable, match=r"does not answer \(Connection refused\); start it, or accept weaker"):
        await open_engine("auto", tmp_path / "state")


@pytest.mark.engine
async def test_auto_falls_back_to_bubblewrap_when_the_settings_allow_it_and_says_so(
    no_docker: None, tmp_path: Path
) -> None:
    with structlog.testing.capture_logs() as logs:
        opened = await open_engine("auto", tmp_path / "state", fallback=True)
    assert opened.name == "bubblewrap"
    await opened.aclose()
    (entry,) = logs
    assert (entry["log_level"], entry["engine"]) == ("warning", "bubblewrap")
    assert entry["why"].startswith("engine_fallback is on, and could not reach the engine at unix://")


@pytest.mark.engine
async def test_auto_uses_bubblewrap_if_there_is_no_engine_and_logs_why(no_socket: None, tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        opened = await open_engine("auto", tmp_path / "state")
    assert opened.name == "bubblewrap"
    await opened.aclose()
    assert [(entry["log_level"], entry["why"]) for entry in logs] == [
        ("info", "this host has no Docker or Podman socket")
    ]


async def test_without_any_engine_the_error_names_the_next_step(no_socket: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(EngineUnavailable, match="install and start Docker or Podman"):
        await open_engine("auto", tmp_path / "file")


def test_serve_ends_with_one_sentence_when_the_configured_engine_does_not_answer(tmp_path: Path) -> None:
    environment = {**os.environ, "DOCKER_HOST": "unix:///nope", "SANDBOXD_DATA": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "-m", "sandboxd", "serve", "--socket", str(tmp_path / "d.sock")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot reach the engine at unix:///nope (from DOCKER_HOST)" in done.stderr
    assert "Traceback" not in done.stderr


def test_address_in_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert find_socket() == "tcp://127.0.0.1:1"


def test_a_plain_file_is_not_mistaken_for_a_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "docker.sock").write_text("")
    assert find_socket() != f"unix://{tmp_path}/docker.sock"
