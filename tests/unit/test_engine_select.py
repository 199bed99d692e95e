"""Which engine is opened, and what is said when none answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.engine.docker import find_socket
from sandboxd.engine.select import open_engine
from sandboxd.errors import EngineUnavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")


async def test_docker_that_does_not_answer_is_unavailable(no_docker: None, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="cannot reach the engine"):
        await open_engine("docker", tmp_path)


async def test_auto_falls_back_to_bubblewrap(no_docker: None, tmp_path: Path) -> None:
    engine = await open_engine("auto", tmp_path / "state")
    assert engine.name == "bubblewrap"
    await engine.aclose()


async def test_no_engine_at_all_names_the_next_step(no_docker: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(EngineUnavailable, match="run `make engine`"):
        await open_engine("auto", tmp_path / "file")


def test_address_in_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert find_socket() == "tcp://127.0.0.1:1"


def test_plain_file_is_not_taken_for_a_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "docker.sock").write_text("")
    assert find_socket() != f"unix://{tmp_path}/docker.sock"
