"""Admission: how many requests may be in flight, in total and per tenant. Requests never queue here.

A single active tenant may use almost all of the capacity. At the limit, a tenant with more than an equal share gets a
retryable error, so a tenant that floods the daemon never locks another out.

A request that becomes a WebSocket moves from the calls to the open sockets, which have a capacity of their own: idle
terminals never take the place of calls.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from sandboxd.errors import Busy, LimitReached

MAX_CALLS = 1024
"""The most requests in flight. Each may hold a body and an answer, so this bounds memory as well as delay."""
RESERVED = 0.25
"""The share that no single tenant can use: it is reserved for the first calls of others."""
SOCKET_SHARE = 0.25
"""How many WebSockets may be open, for each call that may be in flight."""
MAX_SESSION_SOCKETS = 64
"""The most WebSockets of one session. Each has up to two calls to the runner under way, which accepts 255."""

TENANT = "sandboxd.tenant"
"""Scope key of the tenant of a request that does not name it in its path."""
_PREFIX = "/v1/tenants/"
_SEAT = "sandboxd.seat"


class Admission:
    """Counts requests in flight. It runs on one event loop, so it needs no locks."""

    def __init__(self, most: int = MAX_CALLS, noun: str = "calls in flight") -> None:
        self._most = most
        self._noun = noun
        self._most_each = max(1, int(most * (1 - RESERVED)))
        self._under_way: dict[str, int] = {}
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    def enter(self, tenant: str) -> None:
        """Count a call of this tenant, or raise Busy. Every `enter` needs a `leave`."""
        mine = self._under_way.get(tenant, 0)
        if mine >= self._most_each:
            raise Busy(f"cannot accept this call: this tenant has {mine} {self._noun}; try again")
        if self._total >= self._most and mine >= self._share(mine):
            raise Busy(f"cannot accept this call: the daemon has {self._total} {self._noun}; try again")
        self._under_way[tenant] = mine + 1
        self._total += 1

    def leave(self, tenant: str) -> None:
        left = self._under_way[tenant] - 1
        if left:
            self._under_way[tenant] = left
        else:
            del self._under_way[tenant]
        self._total -= 1

    def _share(self, mine: int) -> int:
        """Return each tenant's share at the limit: at least one, so a first call may exceed the limit."""
        tenants = len(self._under_way) + (not mine)
        return max(1, self._most // tenants)


class Sockets:
    """Counts open WebSockets: in total and per tenant like calls, and per session."""

    def __init__(self, most: int) -> None:
        self._admission = Admission(most, "open WebSockets")
        self._of_session: dict[tuple[str, str], int] = {}

    @property
    def total(self) -> int:
        return self._admission.total

    def enter(self, tenant: str, session: str) -> None:
        """Count a socket, or raise Busy or LimitReached. Every `enter` needs a `leave`."""
        mine = self._of_session.get((tenant, session), 0)
        if mine >= MAX_SESSION_SOCKETS:
            raise LimitReached(f"cannot open a WebSocket: this session has {mine} open; close one first")
        self._admission.enter(tenant)
        self._of_session[tenant, session] = mine + 1

    def leave(self, tenant: str, session: str) -> None:
        self._admission.leave(tenant)
        left = self._of_session[tenant, session] - 1
        if left:
            self._of_session[tenant, session] = left
        else:
            del self._of_session[tenant, session]


class Seat:
    """The place that one request takes: among the calls, or among the sockets."""

    __slots__ = ("_calls", "_session", "_sockets", "_tenant")

    def __init__(self, calls: Admission, sockets: Sockets, tenant: str) -> None:
        self._calls = calls
        self._sockets = sockets
        self._tenant = tenant
        self._session: str | None = None
        calls.enter(tenant)

    def move_to_sockets(self, session: str) -> None:
        """Count this request as an open WebSocket from now on; raise if there is no room."""
        self._sockets.enter(self._tenant, session)
        self._session = session
        self._calls.leave(self._tenant)

    def leave(self) -> None:
        if self._session is None:
            self._calls.leave(self._tenant)
        else:
            self._sockets.leave(self._tenant, self._session)


class AdmissionMiddleware:
    """Counts a tenant's request from before it is read until its answer has been sent."""

    def __init__(self, app: ASGIApp, admission: Admission, sockets: Sockets) -> None:
        self._app = app
        self._admission = admission
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant = tenant_in(scope) if scope["type"] == "http" else None
        if tenant is None:
            await self._app(scope, receive, send)
            return
        seat = scope[_SEAT] = Seat(self._admission, self._sockets, tenant)
        try:
            await self._app(scope, receive, send)
        finally:
            seat.leave()


def seat_of(scope: Scope) -> Seat:
    """Return the seat of a request with a tenant in its path."""
    found: Seat = scope[_SEAT]
    return found


def tenant_in(scope: Scope) -> str | None:
    """Return the tenant of a request, or None for one without a tenant: health, metrics, events."""
    known: str | None = scope.get(TENANT)
    return known or tenant_of(scope["path"])


def tenant_of(path: str) -> str | None:
    """Return the tenant in a path, or None for a path without one."""
    if not path.startswith(_PREFIX):
        return None
    return path[len(_PREFIX) :].partition("/")[0]
