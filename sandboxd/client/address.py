"""The daemon's address: the caller's, else `SANDBOXD_URL`, else `SANDBOXD_SOCKET`, else the default socket."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from sandboxd.errors import InvalidRequest
from sandboxd.places import default_socket

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """A unix socket, or a host and port with the token that TCP requires."""

    socket: Path | None = None
    host: str = "localhost"
    port: int = 80
    token: str | None = field(default=None, repr=False)
    is_tls: bool = False

    def __str__(self) -> str:
        return str(self.socket) if self.socket is not None else self.authority

    @property
    def authority(self) -> str:
        """The Host header of every request. On a unix socket its value does not matter."""
        if self.socket is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}"


def find_address(socket: Path | str | None = None, url: str | None = None, token: str | None = None) -> Address:
    if socket is not None and url is not None:
        raise InvalidRequest("cannot use a socket and a URL together: give only one")
    if socket is None:
        url = url or os.environ.get("SANDBOXD_URL") or None
    if url is not None:
        return _parse_url(url, token or os.environ.get("SANDBOXD_TOKEN") or None)
    return Address(socket=Path(socket or os.environ.get("SANDBOXD_SOCKET") or default_socket()))


def _parse_url(url: str, token: str | None) -> Address:
    # The URL itself is not part of the message: a mistyped one may contain a secret.
    wrong = InvalidRequest(
        "cannot use this URL: it must look like http://127.0.0.1:8080 or https://sandboxes.example.com, "
        "and the token is given separately"
    )
    try:
        parts = urlsplit(url)
        default_port = _PORTS[parts.scheme]
        port = parts.port or default_port
        (parts.hostname or "").encode("idna")  # fails for a name that no resolver accepts
    except (ValueError, KeyError):
        raise wrong from None
    if not parts.hostname or " " in parts.hostname or not parts.hostname.isprintable():
        raise wrong
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise wrong
    if token is not None and not (token.isascii() and token.isprintable()):
        raise InvalidRequest("cannot use this token: it must be one line of printable ASCII characters")
    return Address(host=parts.hostname, port=port, token=token, is_tls=parts.scheme == "https")
