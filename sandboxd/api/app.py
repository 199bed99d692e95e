"""The app: every resource's routes in one Starlette router, behind plain ASGI middleware. One server serves it on every
socket.

Its lifespan must run, because it watches for clients that disconnect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from starlette.middleware import Middleware
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from memo.limits import StoreLimits
from sandboxd.api import (
    artifacts,
    consolidation,
    contexts,
    events,
    exec,
    files,
    health,
    memo,
    messages,
    mirror,
    processes,
    pty,
    sandboxes,
    sessions,
    snapshots,
    tools,
)
from sandboxd.api.admission import MAX_CALLS, SOCKET_SHARE, Admission, AdmissionMiddleware, Sockets
from sandboxd.api.boundary import Boundary
from sandboxd.api.budget import BudgetMiddleware, ByteBudget
from sandboxd.api.feed import EventFeed
from sandboxd.api.openapi import describe
from sandboxd.api.ports import Manager, Memory
from sandboxd.api.routes import EndpointRoute, Services
from sandboxd.api.watch import DisconnectWatch
from sandboxd.consolidation.service import ConsolidationService
from sandboxd.errors import RouteNotFound
from sandboxd.idempotency import IdempotencyStore
from sandboxd.metrics import Metrics
from sandboxd.models.health import Readiness
from sandboxd.tools import Toolbox

# Routes are tried in this order, so those of the hot path come first.
ENDPOINTS = (
    *exec.ENDPOINTS,
    *tools.ENDPOINTS,
    *files.ENDPOINTS,
    *processes.ENDPOINTS,
    *pty.ENDPOINTS,
    *contexts.ENDPOINTS,
    *sandboxes.ENDPOINTS,
    *snapshots.ENDPOINTS,
    *memo.ENDPOINTS,
    *artifacts.ENDPOINTS,
    *mirror.ENDPOINTS,
    *messages.ENDPOINTS,
    *consolidation.ENDPOINTS,
    *sessions.ENDPOINTS,
    *events.ENDPOINTS,
    *health.ENDPOINTS,
)


def create_app(
    manager: Manager,
    *,
    idempotency: IdempotencyStore,
    metrics: Metrics,
    readiness: Callable[[], Awaitable[Readiness]],
    version: str,
    memory: Memory | None = None,
    store_limits: StoreLimits | None = None,
    toolbox: Toolbox | None = None,
    consolidator: ConsolidationService | None = None,
    max_calls: int = MAX_CALLS,
    budget: ByteBudget | None = None,
) -> Router:
    watch = DisconnectWatch()

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with watch.open():
            yield

    services = Services(
        manager=manager,
        toolbox=toolbox or Toolbox.discover(),
        idempotency=idempotency,
        metrics=metrics,
        readiness=readiness,
        watch=watch,
        feed=EventFeed(manager.events),
        openapi=cache(lambda: describe(ENDPOINTS, version)),
        version=version,
        memory=memory,
        store_limits=store_limits or StoreLimits(),
        consolidation=consolidator,
    )
    return Router(
        [EndpointRoute(endpoint, services) for endpoint in ENDPOINTS],
        redirect_slashes=False,
        default=_refuse_unknown_route,
        lifespan=lifespan,
        middleware=[
            Middleware(BudgetMiddleware, budget or ByteBudget()),
            Middleware(Boundary),
            Middleware(AdmissionMiddleware, Admission(max_calls), Sockets(max(1, int(max_calls * SOCKET_SHARE)))),
        ],
    )


async def _refuse_unknown_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise RouteNotFound("cannot find this route: GET /openapi.json lists all routes")
