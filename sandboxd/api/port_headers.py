"""What changes in the head of a request on its way into a sandbox, and in the head of the answer on its way out. Pure.

The server inside sees requests for `localhost:PORT`. Its answer may name its own address; the client must stay below
the port's place: a path of the daemon, or a host name of its own. A hostile answer must not lead a client, which has
the daemon's token, to other paths of the daemon.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from sandboxd.network.http_head import Headers, end_to_end

_OURS = frozenset(
    {
        b"host",
        b"content-length",
        b"expect",  # the daemon itself answers 100
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
    }
)
"""Headers of a request that the daemon writes itself."""
INNER_AUTHORIZATION = b"x-sandboxd-authorization"
"""Becomes the Authorization header inside, because that of the request is the daemon's own."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104  # what a server may call itself
_BODILESS = (204, 304)
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_IGNORED_IN_URLS = str.maketrans("", "", "\t\r\n")


@dataclass(frozen=True, slots=True)
class PortPlace:
    """Where clients reach a port: below a prefix of the daemon's paths, or without one on a host of its own."""

    port: int
    prefix: str
    """Without a slash at its end."""
    host: str
    """The Host header of the request."""
    scheme: str

    @property
    def inner_host(self) -> str:
        return f"localhost:{self.port}"

    @property
    def is_own_host(self) -> bool:
        return not self.prefix


def inner_headers(headers: Iterable[tuple[bytes, bytes]], place: PortPlace, *, is_socket: bool) -> Headers:
    """Return the headers of a request as the server inside gets them."""
    given = list(headers)
    sent: Headers = [(b"host", place.inner_host.encode())]
    for name, value in end_to_end(given):
        if name in _OURS:
            continue
        if name == b"origin" and place.is_own_host:
            # It is the preview's own, or the request would have been refused. Servers compare it with Host.
            sent.append((name, f"http://{place.inner_host}".encode()))
        elif place.is_own_host or name not in (b"authorization", INNER_AUTHORIZATION):
            sent.append((name, value))
        elif name == INNER_AUTHORIZATION:
            sent.append((b"authorization", value))
    sent += _framing(given)
    sent += [(b"x-forwarded-host", place.host.encode("latin-1")), (b"x-forwarded-proto", place.scheme.encode())]
    if place.prefix:
        sent.append((b"x-forwarded-prefix", place.prefix.encode()))
    if is_socket:
        return [*sent, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    return [*sent, (b"connection", b"close")]


def has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)


def _framing(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    if any(name == b"transfer-encoding" for name, _ in headers):
        return [(b"transfer-encoding", b"chunked")]
    return [(name, value) for name, value in headers if name == b"content-length"][:1]


def outer_headers(
    headers: Iterable[tuple[bytes, bytes]], place: PortPlace, *, status: int, inner_path: bytes
) -> Headers:
    """Return the headers of an answer as the client gets them."""
    given = list(headers)
    dropped = {b"alt-svc"}  # it would speak for the daemon's own address
    if status in _BODILESS or any(name == b"transfer-encoding" for name, _ in given):
        dropped |= {b"content-length"}  # it says nothing about the body
    base = inner_path.decode("latin-1")
    sent: Headers = []
    for name, value in end_to_end(given):
        if name in dropped:
            continue
        text = value.decode("latin-1")
        if name in (b"location", b"content-location"):
            text = outer_reference(text, place, base)
        elif name == b"refresh":
            text = _outer_refresh(text, place, base)
        elif name == b"set-cookie":
            text = outer_cookie(text, place, base)
        sent.append((name, text.encode("latin-1")))
    if place.is_own_host and not any(name == b"referrer-policy" for name, _ in sent):
        sent.append((b"referrer-policy", b"same-origin"))  # the host name is the secret of a preview
    return sent


def has_control_characters(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the server cannot send these headers. h11 reads more than HTTP allows."""
    return any(_CONTROL.search(value) is not None for _, value in headers)


def outer_reference(value: str, place: PortPlace, base: str) -> str:
    """Return a URL of the server inside as the client must use it; leave one of another host as it is.

    It is read as browsers do, with backslashes as slashes and `%2e` as a dot, and written so that every client reads it
    in the same way.
    """
    text = value.strip().translate(_IGNORED_IN_URLS)
    head = re.split(r"[?#]", text, maxsplit=1)[0]
    text = head.replace("\\", "/") + text[len(head) :]
    try:
        parts = urlsplit(text)
        is_elsewhere = bool(parts.netloc) and not _is_own(parts, place)
    except ValueError:
        return f"{place.prefix}/"
    if is_elsewhere or parts.scheme not in ("", "http", "https"):
        return text
    path = _resolve(parts.path, "/" if parts.netloc else base)
    if not _is_below(path, place.prefix):
        path = f"{place.prefix}{path}"
    if not place.prefix:
        path = "/" + path.lstrip("/")  # two slashes would begin a host name
    return path + (f"?{parts.query}" if parts.query else "") + (f"#{parts.fragment}" if parts.fragment else "")


def _is_own(parts: SplitResult, place: PortPlace) -> bool:
    if parts.netloc.rpartition("@")[2].lower() == place.host.lower():
        return True
    ports = {place.port}
    if place.prefix:  # the daemon itself, under another of its loopback names
        ports.add(urlsplit(f"//{place.host}").port or _default_port(place.scheme))
    return parts.hostname in _LOOPBACK and (parts.port or _default_port(parts.scheme)) in ports


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _is_below(path: str, prefix: str) -> bool:
    return bool(prefix) and (path == prefix or path.startswith(f"{prefix}/"))


def _resolve(path: str, base: str) -> str:
    """Return an absolute path without dot segments."""
    if not path:
        return base
    path = re.sub("%2e", ".", path, flags=re.IGNORECASE)
    if not path.startswith("/"):
        path = f"{base.rpartition('/')[0]}/{path}"
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _outer_refresh(value: str, place: PortPlace, base: str) -> str:
    found = re.fullmatch(r"\s*([\d.]+)\s*[;,]\s*(?:url\s*=\s*)?(.+)", value, re.IGNORECASE)
    if found is None:
        return value
    return f"{found[1]}; url={outer_reference(found[2].strip().strip(chr(34) + chr(39)), place, base)}"


def outer_cookie(value: str, place: PortPlace, base: str) -> str:
    """Return a cookie that the client sends back to this host only, and with a prefix only to paths below it."""
    pair, *attributes = value.split(";")
    kept, path = [pair], base.rpartition("/")[0] or "/"
    for attribute in attributes:
        name, _, given = attribute.strip().partition("=")
        if name.strip().lower() == "path":
            path = given.strip() if given.strip().startswith("/") else path
            if not place.prefix:
                kept.append(attribute)
        elif name.strip().lower() != "domain":
            kept.append(attribute)
    if place.prefix:
        below = path if _is_below(path, place.prefix) else f"{place.prefix}{path}"
        kept.append(f" Path={below}")
    return ";".join(kept)
