"""The data directory: closed to other users from its creation, and refused if it belongs to another user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sandboxd.errors import Conflict, HostIO
from sandboxd.sandboxes.layout import Layout


def modes(top: Path) -> dict[str, int]:
    return {str(path.relative_to(top)): stat.S_IMODE(path.lstat().st_mode) for path in (top, *top.rglob("*"))}


def test_a_new_data_directory_is_private_whatever_the_umask(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    before = os.umask(0)
    try:
        layout.hold()
        layout.instance()
        layout.make("box")
    finally:
        os.umask(before)
        layout.release()
    found = modes(tmp_path / "data")
    assert {name for name, mode in found.items() if mode & 0o007} == set()
    assert found["."] == 0o700
    assert found["instance"] == 0o600
    assert found["mirrors/box"] == found["run/box"] == 0o2750


def test_an_open_data_directory_is_closed_when_a_daemon_uses_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    for name in ("idempotency.db", "idempotency.db-wal", "registry.db-shm"):
        (data / name).touch()
        (data / name).chmod(0o644)
    (data / "notes").touch()
    (data / "notes").chmod(0o644)
    layout = Layout(data)
    layout.hold()
    layout.release()
    found = modes(data)
    assert (found["."], found["idempotency.db"], found["idempotency.db-wal"], found["registry.db-shm"]) == (
        0o700,
        0o600,
        0o600,
        0o600,
    )
    assert found["notes"] == 0o644, "not ours to change"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the owner of a directory")
def test_a_data_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    os.chown(data, 10002, 10002)
    with pytest.raises(Conflict, match="belongs to uid 10002, which could read everything in it; run `chown 0 "):
        Layout(data).hold()
    assert (list(data.iterdir()), stat.S_IMODE(data.stat().st_mode)) == ([], 0o755)


def test_an_empty_instance_file_is_written_again(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    layout.hold()
    (tmp_path / "data" / "instance").touch()
    try:
        assert len(layout.instance()) == 16
        assert layout.instance() == (tmp_path / "data" / "instance").read_text()
    finally:
        layout.release()


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_data_directory_that_cannot_be_created_is_reported_with_the_next_step(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostIO, match=r"cannot use the data directory .*: Not a directory.*; .* give another --data"):
        Layout(tmp_path / place).hold()
