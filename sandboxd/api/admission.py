"""Admission: how many requests may be in flight, in total and per tenant. Requests never queue here.

A single active tenant may use almost all of the capacity. At the limit, a tenant with more than an equal share gets a
retryable error, so a tenant that floods the daemon never locks another out.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from sandboxd.errors import Busy

MAX_CALLS = 1024
"""The most requests in flight. Each may hold a body and an answer, so this bounds memory as well as delay."""
RESERVED = 0.25
"""The share that no single tenant can use: it is reserved for the first calls of others."""

_PREFIX = "/v1/tenants/"


class Admission:
    """Counts requests in flight. It runs on one event loop, so it needs no locks."""

    def __init__(self, most: int = MAX_CALLS) -> None:
        self._most = most
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
            raise Busy(f"cannot accept this call: this tenant has {mine} calls in flight; try again")
        if self._total >= self._most and mine >= self._share(mine):
            raise Busy(f"cannot accept this call: the daemon has {self._total} calls in flight; try again")
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


class AdmissionMiddleware:
    """Counts a tenant's request from before it is read until its answer has been sent."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant = tenant_of(scope["path"]) if scope["type"] == "http" else None
        if tenant is None:
            await self._app(scope, receive, send)
            return
        self._admission.enter(tenant)
        try:
            await self._app(scope, receive, send)
        finally:
            self._admission.leave(tenant)


def tenant_of(path: str) -> str | None:
    """Return the tenant in a path, or None for a path without one: health, metrics, events."""
    if not path.startswith(_PREFIX):
        return None
    return path[len(_PREFIX) :].partition("/")[0]
