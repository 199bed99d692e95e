"""The app: every resource's routes in one Starlette router, behind plain ASGI middleware. One server serves it on every
socket.

Its lifespan must run, because it watches for clients that disconnect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

from starlette.middleware import Middleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from memo.limits import StoreLimits
from sandboxd.api import (
    agentrail,
    artifacts,
    calls,
    consolidation,
    contexts,
    egress,
    events,
    exec,
    files,
    health,
    inspector,
    memo,
    messages,
    mirror,
    orchestration,
    ports,
    processes,
    pty,
    sandboxes,
    sessions,
    snapshots,
    tools,
    trace,
    tunnels,
)
from sandboxd.api.admission import MAX_CALLS, SOCKET_SHARE, Admission, AdmissionMiddleware, Sockets
from sandboxd.api.boundary import Boundary
from sandboxd.api.budget import BudgetMiddleware, ByteBudget
from sandboxd.api.calls import CallMiddleware, CallTable
from sandboxd.api.contracts import Manager, Memory
from sandboxd.api.feed import EventFeed
from sandboxd.api.openapi import describe
from sandboxd.api.previews import VisitMiddleware
from sandboxd.api.routes import EndpointRoute, Services
from sandboxd.api.watch import DisconnectWatch
from sandboxd.consolidation.auto_compactor import AutoCompactor
from sandboxd.consolidation.service import ConsolidationService
from sandboxd.errors import RouteNotFound
from sandboxd.idempotency import IdempotencyStore
from sandboxd.inspector.inspector import Inspector
from sandboxd.inspector.page_files import PageFiles
from sandboxd.metrics import Metrics
from sandboxd.models.health import Readiness
from sandboxd.network.previews import Previews
from sandboxd.tools import Toolbox

# Routes are tried in this order, so those of the hot path come first.
ENDPOINTS = (
    *exec.ENDPOINTS,
    *tools.ENDPOINTS,
    *files.ENDPOINTS,
    *processes.ENDPOINTS,
    *pty.ENDPOINTS,
    *contexts.ENDPOINTS,
    *ports.ENDPOINTS,
    *tunnels.ENDPOINTS,
    *egress.ENDPOINTS,
    *sandboxes.ENDPOINTS,
    *snapshots.ENDPOINTS,
    *memo.ENDPOINTS,
    *artifacts.ENDPOINTS,
    *mirror.ENDPOINTS,
    *messages.ENDPOINTS,
    *trace.ENDPOINTS,
    *orchestration.ENDPOINTS,
    *consolidation.ENDPOINTS,
    *sessions.ENDPOINTS,
    *calls.ENDPOINTS,
    *events.ENDPOINTS,
    *health.ENDPOINTS,
    *inspector.ENDPOINTS,
    *agentrail.ENDPOINTS,
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
    compactor: AutoCompactor | None = None,
    max_calls: int = MAX_CALLS,
    budget: ByteBudget | None = None,
    previews: Previews | None = None,
    mcp: ASGIApp | None = None,
) -> Router:
    watch = DisconnectWatch()
    inspecting = Inspector(
        manager,
        None if memory is None else memory.client,
        data=manager.settings.data,
        version=version,
        readiness=readiness,
    )

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with watch.open(), inspecting.sampler.open():
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
        inspector=inspecting,
        page=PageFiles.read(),
        memory=memory,
        store_limits=store_limits or StoreLimits(),
        consolidation=consolidator,
        compactor=compactor,
        previews=previews,
    )
    visits = []
    if previews is not None:
        desk = ports.PreviewDesk(manager, previews, metrics)
        visits.append(Middleware(VisitMiddleware, partial(ports.show_preview, manager, previews), desk))
    return Router(
        [*(EndpointRoute(endpoint, services) for endpoint in ENDPOINTS), *_mcp_routes(mcp)],
        redirect_slashes=False,
        default=_refuse_unknown_route,
        lifespan=lifespan,
        middleware=[
            Middleware(BudgetMiddleware, budget or ByteBudget()),
            Middleware(Boundary),
            Middleware(AdmissionMiddleware, Admission(max_calls), Sockets(max(1, int(max_calls * SOCKET_SHARE)))),
            *visits,
            Middleware(CallMiddleware, CallTable()),
        ],
    )


def _mcp_routes(mcp: ASGIApp | None) -> list[Route]:
    """Return the route of the MCP server, which answers every method itself and is not part of the OpenAPI document."""
    return [] if mcp is None else [Route("/mcp", mcp)]


async def _refuse_unknown_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise RouteNotFound("cannot find this route: GET /openapi.json lists all routes")
