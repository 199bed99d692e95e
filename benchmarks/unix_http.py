"""HTTP over a unix socket with only the standard library, one connection per call; for metrics and the engine."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path


class UnixConnection(HTTPConnection):
    def __init__(self, path: Path, timeout_s: float = 120) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def call(path: Path, verb: str, target: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
    """Return the body of the response, or raise OSError if it is not a success."""
    connection = UnixConnection(path)
    try:
        connection.request(verb, target, body, {"Content-Type": kind})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status >= 400:
            raise OSError(f"cannot {verb} {target.partition('?')[0]}: {answer.status} {content[-200:].decode()}")
        return content
    finally:
        connection.close()


def metrics(path: Path) -> Mapping[str, float]:
    """Return the daemon's Prometheus metrics as values by name and labels."""
    lines = call(path, "GET", "/metrics").decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] not in "#")}
