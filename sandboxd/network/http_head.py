"""The head of a request through the proxy: its target and headers, and what of them travels on.

Only values and pure functions. Bytes are parsed and written by h11, never here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from sandboxd.models.network import Decision

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP: Final = frozenset(b"connection keep-alive te trailer transfer-encoding upgrade http2-settings".split())
"""And everything that begins with `proxy-`."""
_KEPT_ALWAYS: Final = frozenset({b"host", b"content-length"})
"""What `Connection` must not name: the first was checked, and the second is the body's end."""
_ABSOLUTE = re.compile(r"(?i:(https?)://)([^/?#@\\]+)([/?][^#]*)?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._~-]+)(?::([0-9]{1,5}))?")
_NOT_IMPLEMENTED: Final = 501
"""The client has asked for what the proxy does not do."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class HttpRefusal(Exception):
    """A request gets this answer instead of being carried on. The text is a sentence for the client's model."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text

    @property
    def decision(self) -> Decision:
        """What the audit calls it: an error of the host or of the daemon is not a denial."""
        return "denied" if self.status < 500 or self.status == _NOT_IMPLEMENTED else "failed"


@dataclass(frozen=True, slots=True)
class RequestHead:
    method: str
    target: str
    headers: Headers
    is_http_1_0: bool = False

    def has(self, name: bytes) -> bool:
        return any(each.lower() == name for each, _ in self.headers)


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """What is sent to the origin in place of the client's own target and headers. They may contain a secret."""

    target: str = field(repr=False)
    headers: Headers = field(repr=False)
    forms: tuple[bytes, ...] = field(default=(), repr=False)
    """What must not be in the answer. If there is any, the answer is redacted."""


@dataclass(frozen=True, slots=True)
class AbsoluteTarget:
    scheme: str
    host: str
    port: int
    path: str
    """The target in origin form: the path with its query."""


def parse_absolute(target: str) -> AbsoluteTarget:
    """Parse the target of a plain request to a proxy, `http://host[:port]/path`; raise HttpRefusal if it is not one."""
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise HttpRefusal(400, "cannot forward the request: a proxy needs a full URL, http://host/path")
    scheme, authority, path = match[1].lower(), match[2], match[3] or "/"
    host, port = _parse_authority(authority, _DEFAULT_PORTS[scheme])
    return AbsoluteTarget(scheme, host, port, path if path.startswith("/") else f"/{path}")


def host_header_matches(headers: Headers, host: str, port: int, default_port: int) -> bool:
    """Return whether there is exactly one Host header and it names this host and port."""
    values = [value for name, value in headers if name.lower() == b"host"]
    if len(values) != 1:
        return False
    try:
        named, named_port = _parse_authority(values[0].decode("ascii"), default_port)
    except (HttpRefusal, UnicodeDecodeError):
        return False
    return (named, named_port) == (_plain_host(host), port)


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers without those that are about one connection only."""
    items = list(headers)
    named = listed(items, b"connection")
    dropped = _HOP_BY_HOP | (named - _KEPT_ALWAYS)
    return [item for item in items if (key := item[0].lower()) not in dropped and not key.startswith(b"proxy-")]


def listed(headers: Headers, name: bytes) -> set[bytes]:
    """Return the words of a header whose value is a list."""
    values = [value for each, value in headers if each.lower() == name]
    return {word for value in values for part in value.split(b",") if (word := part.strip().lower())}


def readable_echo(headers: Headers) -> Headers:
    """Return the headers so that an answer comes whole and not compressed: only there can an echo be redacted."""
    dropped = {b"accept-encoding", b"range", b"if-range"}
    return [*(item for item in headers if item[0].lower() not in dropped), (b"Accept-Encoding", b"identity")]


def _parse_authority(authority: str, default_port: int) -> tuple[str, int]:
    match = _AUTHORITY.fullmatch(authority)
    port = int(match[2]) if match and match[2] else default_port
    if match is None or not 0 < port < 65_536:
        raise HttpRefusal(400, "cannot read the target of the request: it must be host:port")
    return _plain_host(match[1]), port


def _plain_host(host: str) -> str:
    return host.lower().rstrip(".").strip("[]")
