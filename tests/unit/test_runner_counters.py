"""When a filesystem counts as full: no room for bytes or for files, and never a guess."""

from __future__ import annotations

import os
import resource
from types import SimpleNamespace

import pytest

from sandboxd.runner import protocol
from sandboxd.runner.inside import wire
from sandboxd.runner.inside.counters import find_full

ROOMY = {"f_bavail": 1_000, "f_frsize": 4_096, "f_files": 100, "f_favail": 50}


@pytest.mark.parametrize(
    ("workspace", "found"),
    [
        ({}, []),
        ({"f_bavail": 0}, ["workspace"]),
        ({"f_bavail": 15}, ["workspace"]),
        ({"f_bavail": 16}, []),
        ({"f_favail": 0}, ["workspace"]),
        ({"f_favail": 0, "f_files": 0}, []),  # a filesystem that does not count files
    ],
)
def test_a_filesystem_without_room_is_full(
    monkeypatch: pytest.MonkeyPatch, workspace: dict[str, int], found: list[str]
) -> None:
    def statvfs(path: str) -> SimpleNamespace:
        return SimpleNamespace(**{**ROOMY, **(workspace if path == "/workspace" else {})})

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert find_full(1) == found
    assert find_full(None) == found


def test_a_file_that_grew_larger_than_the_limit_is_the_workspaces_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(**ROOMY))
    for limit, found in ((1_000_000, ["workspace"]), (resource.RLIM_INFINITY, [])):
        monkeypatch.setattr(resource, "getrlimit", lambda _kind, limit=limit: (limit, limit))
        assert find_full(153) == found
        assert find_full(1) == []


def test_a_filesystem_that_cannot_be_looked_at_is_not_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_path: str) -> None:
        raise OSError

    monkeypatch.setattr(os, "statvfs", fail)
    assert find_full(1) == []


def test_the_daemon_names_every_limit_that_the_runner_reports() -> None:
    flags = wire.MEMORY_HIT | wire.PIDS_HIT | wire.WORKSPACE_HIT | wire.TMP_HIT
    frame = wire.pack_exited(1, flags, 1, 2.0, b"", b"")
    result = protocol.read_command_result(frame[wire.HEADER_BYTES :], b"", b"")
    assert result.limits_hit == ("memory", "pids", "workspace", "tmp")
    with pytest.raises(wire.WireError):
        wire.read_exited(wire.EXITED_STRUCT.pack(128, 0, 1.0, 0))
