"""The open connections of a server: the caps on them, and which connection is closed at a cap.

TCP connections are capped, those without a valid token more tightly. The unix socket, which the operator uses, has a
cap of its own, so a flood of TCP connections cannot close it. At a cap the oldest connection without a token is closed,
then the one that has been idle longest; when every connection is busy, the new one is closed.

Guests, which have no token but the name of a preview, have a small cap of their own. They and connections without
either leave most of the capacity to clients with a token, whatever browsers do.

Request bodies that are still arriving are capped too, at half of the calls that may be in flight. A call is admitted
before its body arrives, so partial bodies can never take more than that half, and a tenant, which may use three
quarters, always keeps room for calls. At the cap, one more body ends the slowest of the others with 408. Only bodies of
authenticated requests count: a client without a token cannot end another client's upload.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Protocol

from sandboxd.descriptors import soft_open_files
from sandboxd.wire_limits import WireLimits


class Peer(Protocol):
    """What the table needs from a connection."""

    @property
    def is_idle(self) -> bool: ...
    @property
    def idle_since(self) -> float: ...
    def body_rate(self) -> float:
        """Return the rate of the arriving body in bytes per second; infinite while the daemon is not reading."""

    def abort(self) -> None:
        """Close the connection at once."""

    def end_late_request(self) -> None:
        """Answer 408 and close the connection."""


class ConnectionTable:
    def __init__(self, limits: WireLimits, max_calls: int) -> None:
        self.limits = limits
        open_files = soft_open_files()
        self._max_tcp = limits.tcp_connections(open_files)
        self._max_strangers = limits.unauthenticated(open_files)
        self._max_unix = limits.unix_connections(open_files)
        self._max_bodies = max(1, max_calls // 2)
        self._strangers: dict[Peer, None] = {}  # in order of arrival
        self._max_guests = limits.guests(open_files)
        self._guests: dict[Peer, None] = {}
        self._trusted: dict[Peer, None] = {}
        self._unix: dict[Peer, None] = {}
        self._bodies: dict[Peer, None] = {}

    def open_tcp(self, peer: Peer) -> None:
        self._strangers[peer] = None
        total = len(self._strangers) + len(self._guests) + len(self._trusted)
        if len(self._strangers) > self._max_strangers or total > self._max_tcp:
            oldest = next(iter(self._strangers))
            known = chain(self._guests, self._trusted)
            self._drop(oldest if oldest is not peer else _longest_idle(known, peer))

    def open_unix(self, peer: Peer) -> None:
        self._unix[peer] = None
        if len(self._unix) > self._max_unix:
            self._drop(_longest_idle(self._unix, peer))

    def trust(self, peer: Peer) -> None:
        """Record that the peer has sent a valid token."""
        if peer in self._strangers or peer in self._guests:
            self._strangers.pop(peer, None)
            self._guests.pop(peer, None)
            self._trusted[peer] = None

    def welcome(self, peer: Peer) -> None:
        """Record that the peer has named a preview that exists."""
        if peer in self._strangers:
            del self._strangers[peer]
            self._guests[peer] = None
            if len(self._guests) > self._max_guests:
                self._drop(_longest_idle(self._guests, peer))

    def close(self, peer: Peer) -> None:
        self._strangers.pop(peer, None)
        self._guests.pop(peer, None)
        self._trusted.pop(peer, None)
        self._unix.pop(peer, None)
        self._bodies.pop(peer, None)

    def begin_body(self, peer: Peer) -> None:
        """Record that a request's head has arrived and its body has not."""
        if peer not in self._bodies and len(self._bodies) >= self._max_bodies:
            slowest = min(self._bodies, key=lambda other: other.body_rate())
            del self._bodies[slowest]
            slowest.end_late_request()
        self._bodies[peer] = None

    def end_body(self, peer: Peer) -> None:
        self._bodies.pop(peer, None)

    def _drop(self, victim: Peer) -> None:
        self.close(victim)
        victim.abort()


def _longest_idle(peers: Iterable[Peer], newcomer: Peer) -> Peer:
    return min((peer for peer in peers if peer.is_idle), key=lambda peer: peer.idle_since, default=newcomer)
