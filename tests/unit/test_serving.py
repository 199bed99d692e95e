"""The sockets that the daemon listens on: which paths are refused, and what is replaced."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from sandboxd.daemon.server import unix_listener
from sandboxd.errors import Conflict, HostIO


def test_a_path_that_is_too_long_is_refused_with_the_limit(tmp_path: Path) -> None:
    longest = tmp_path / ("s" * (106 - len(str(tmp_path))))
    with unix_listener(longest):
        assert stat.S_IMODE(longest.stat().st_mode) == 0o600
    with pytest.raises(HostIO, match="a socket's path has at most 107 bytes; give another --socket"):
        unix_listener(longest.with_name(f"{longest.name}s")).__enter__()


def test_the_socket_of_a_dead_daemon_is_replaced_and_that_of_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with unix_listener(path), pytest.raises(Conflict, match="another daemon answers there"):
        unix_listener(path).__enter__()
    assert not path.exists()


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_is_not_a_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "thing"
    path.touch() if kind == "file" else path.mkdir()
    with pytest.raises(Conflict, match="not a socket"):
        unix_listener(path).__enter__()
    assert path.exists()
