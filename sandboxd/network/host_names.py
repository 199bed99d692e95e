"""EgressTarget: the host and port of a CONNECT request, a URL or a Host header, in one canonical spelling.

No host passes that a resolver could read as an address although it is not written as one. Nothing is resolved here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from sandboxd.errors import InvalidRequest

IPAddress = IPv4Address | IPv6Address

MAX_HOST_CHARS = 253
_MAX_SHOWN_CHARS = 100
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class EgressTarget:
    """Where a connection goes: a lower-case name without a final dot, or a canonical IP address, and a port."""

    host: str
    port: int

    @property
    def address(self) -> IPAddress | None:
        """The address, if the host is one and not a name."""
        return address_of(self.host)

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


def parse_target(text: str, default_port: int | None = None) -> EgressTarget:
    """Return the target of `host:port`; without a default, the port must be there."""
    host, port = split_host_port(text)
    if port is None:
        port = default_port
    if port is None:
        raise InvalidRequest(f"cannot use the target {shown(text)}: it has no port; write host:port")
    return EgressTarget(parse_host(host), port)


def split_host_port(text: str) -> tuple[str, int | None]:
    """Split `host[:port]`. An IPv6 address must be in brackets, and keeps them. The host is not checked."""
    if text.startswith("["):
        inner, bracket, rest = text.partition("]")
        host, (colon, port) = inner + bracket, (rest[:1], rest[1:])
        if colon not in ("", ":"):
            raise InvalidRequest(f"cannot use the host {shown(text)}: only a port may follow the brackets")
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise InvalidRequest(f"cannot use the host {shown(text)}: write an IPv6 address in brackets, as [::1]:443")
    if not colon:
        return host, None
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= 65_535:
        raise InvalidRequest(f"cannot use the host {shown(text)}: its port must be a number from 1 to 65535")
    return host, int(port)


def parse_host(text: str) -> str:
    """Return the canonical spelling of a name, an IPv4 address, or an IPv6 address in brackets."""
    if text.startswith("["):
        if not text.endswith("]"):
            raise InvalidRequest(f"cannot use the host {shown(text)}: an address in brackets must end with ]")
        return canonical_ipv6(text[1:-1])
    host = text.lower().removesuffix(".") if text.isascii() else text
    if len(host) > MAX_HOST_CHARS:
        raise InvalidRequest(f"cannot use the host {shown(text)}: it has more than {MAX_HOST_CHARS} characters")
    labels = host.split(".")
    if not all(map(_LABEL.fullmatch, labels)):
        raise InvalidRequest(
            f"cannot use the host {shown(text)}: each part between dots must have 1 to 63 ASCII letters, digits, - or _"
            " (write other letters as punycode, xn--…)"
        )
    # getaddrinfo and inet_aton read 127.1, 0x7f.1 and 2130706433 as addresses, which no rule has named
    if _NUMBER.fullmatch(labels[-1]):
        return _canonical_ipv4(host)
    return host


def canonical_ipv6(text: str) -> str:
    """Return the canonical spelling of an IPv6 address without brackets; one that maps an IPv4 address becomes it."""
    try:
        address = IPv6Address(text)
    except AddressValueError:
        raise InvalidRequest(f"cannot use the host {shown(text)}: it is not an IPv6 address") from None
    if address.scope_id is not None:
        raise InvalidRequest(f"cannot use the host {shown(text)}: zone ids are not supported")
    return str(address.ipv4_mapped or address)


def _canonical_ipv4(text: str) -> str:
    try:
        return str(IPv4Address(text))
    except AddressValueError:
        raise InvalidRequest(
            f"cannot use the host {shown(text)}: it ends in a number, and is not an IPv4 address such as 192.0.2.1"
        ) from None


def address_of(host: str) -> IPAddress | None:
    """Return the address that a canonical host is; None if it is a name."""
    if ":" in host:
        return IPv6Address(host)
    return IPv4Address(host) if _NUMBER.fullmatch(host.rpartition(".")[2]) else None


def join_host_port(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def shown(text: str) -> str:
    """Return text of a client as it may stand in an error: short and printable."""
    return ascii(text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "...")
