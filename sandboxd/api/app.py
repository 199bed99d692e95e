"""The app: every resource's routes behind one boundary. Built once, served on every socket by one server.

Its lifespan must run, because it watches for clients that go away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from memo.limits import StoreLimits
from sandboxd.api import (
    artifacts,
    consolidation,
    events,
    exec,
    files,
    health,
    memo,
    messages,
    mirror,
    processes,
    sandboxes,
    sessions,
    tools,
)
from sandboxd.api.admission import MAX_CALLS, Admission
from sandboxd.api.boundary import Boundary
from sandboxd.api.budget import MEMORY_BYTES, ByteBudget
from sandboxd.api.feed import EventFeed
from sandboxd.api.openapi import operation, schemas
from sandboxd.api.ports import Manager, Memory
from sandboxd.api.routes import LeanRoute, Readiness, Services
from sandboxd.api.watch import DisconnectWatch
from sandboxd.consolidation.service import ConsolidationService
from sandboxd.idempotency import IdempotencyStore
from sandboxd.limits import Limits
from sandboxd.metrics import Metrics
from sandboxd.tools import Toolbox

# Routes are tried in this order, so those of the hot path come first.
ENDPOINTS = (
    *exec.ENDPOINTS,
    *tools.ENDPOINTS,
    *files.ENDPOINTS,
    *processes.ENDPOINTS,
    *sandboxes.ENDPOINTS,
    *memo.ENDPOINTS,
    *artifacts.ENDPOINTS,
    *mirror.ENDPOINTS,
    *messages.ENDPOINTS,
    *consolidation.ENDPOINTS,
    *sessions.ENDPOINTS,
    *events.ENDPOINTS,
    *health.ENDPOINTS,
)


class Api(FastAPI):
    """FastAPI with one layer around its router instead of five: each costs a short call more than its own work."""

    admission: Admission
    budget: ByteBudget

    def build_middleware_stack(self) -> ASGIApp:
        return Boundary(self.router, self.admission, self.budget)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # FastAPI looks for telemetry in the environment at every request, a tenth of a short call; there is none here.
        if scope["type"] != "http" or self.middleware_stack is None:
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        await self.middleware_stack(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            document.setdefault("components", {})["schemas"] = schemas(ENDPOINTS)
            self.openapi_schema = document
        return self.openapi_schema


def create_app(
    manager: Manager,
    *,
    idempotency: IdempotencyStore,
    metrics: Metrics,
    readiness: Callable[[], Awaitable[Readiness]],
    version: str,
    default_limits: Limits | None = None,
    memory: Memory | None = None,
    store_limits: StoreLimits | None = None,
    toolbox: Toolbox | None = None,
    consolidator: ConsolidationService | None = None,
    max_calls: int = MAX_CALLS,
    call_memory_bytes: int = MEMORY_BYTES,
) -> Api:
    watch = DisconnectWatch()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
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
        version=version,
        default_limits=default_limits or Limits(),
        memory=memory,
        store_limits=store_limits or StoreLimits(),
        consolidation=consolidator,
    )
    api = Api(
        title="sandboxd",
        version=version,
        summary="A hardened container and its memory as plain files, for every AI agent.",
        routes=[LeanRoute(endpoint, services, operation(endpoint)) for endpoint in ENDPOINTS],
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    api.admission = Admission(max_calls)
    api.budget = ByteBudget(call_memory_bytes)
    return api
