"""The daemon's address: the caller's, else `SANDBOXD_SOCKET`, else the default socket."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sandboxd.errors import InvalidRequest
from sandboxd.places import default_socket


@dataclass(frozen=True, slots=True)
class Address:
    """A unix socket, or a host and port with the token that TCP requires."""

    socket: Path | None = None
    host: str = "localhost"
    port: int = 0
    token: str | None = None

    def __str__(self) -> str:
        return str(self.socket) if self.socket is not None else f"{self._host_in_url}:{self.port}"

    @property
    def authority(self) -> str:
        """The Host header of every request. On a unix socket its value does not matter."""
        return "localhost" if self.socket is not None else f"{self._host_in_url}:{self.port}"

    @property
    def _host_in_url(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def find_address(socket: Path | str | None = None, url: str | None = None, token: str | None = None) -> Address:
    if url is not None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise InvalidRequest("cannot use this address: a TCP address looks like http://127.0.0.1:8080")
        return Address(host=parts.hostname, port=parts.port, token=token)
    if socket is None:
        socket = os.environ.get("SANDBOXD_SOCKET") or default_socket()
    return Address(socket=Path(socket))
