"""Health: liveness, readiness, metrics and the daemon's capabilities."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from sandboxd.api.answers import json_answer
from sandboxd.api.problems import problem, render
from sandboxd.api.routes import Access, Endpoint, Services
from sandboxd.metrics import CONTENT_TYPE
from sandboxd.models.health import Health, Readiness


async def get_health(services: Services, request: Request) -> Response:
    return json_answer(Health(version=services.version))


async def get_readiness(services: Services, request: Request) -> Response:
    readiness = await services.readiness()
    if readiness.ready:
        return json_answer(readiness)
    failing = [f"{subject} {check.name}: {check.detail}" for subject, check in readiness.checks() if not check.ok]
    detail = f"cannot work: {'; '.join(failing)}"
    return render(problem("daemon.not_ready", detail, retryable=True, **dict(readiness)))


async def get_metrics(services: Services, request: Request) -> Response:
    return Response(services.metrics.render(), headers={"content-type": CONTENT_TYPE})


async def get_openapi(services: Services, request: Request) -> Response:
    return json_answer(services.openapi())


ENDPOINTS = (
    Endpoint(
        "GET",
        "/healthz",
        get_health,
        "health",
        Access.READ,
        "Return whether the daemon is alive",
        answers={200: Health},
    ),
    Endpoint(
        "GET",
        "/readyz",
        get_readiness,
        "health",
        Access.READ,
        "Return whether the daemon is ready: engine, store and disk",
        answers={200: Readiness},
    ),
    Endpoint("GET", "/metrics", get_metrics, "health", Access.READ, "Prometheus text", answers={200: "text/plain"}),
    Endpoint(
        "GET", "/openapi.json", get_openapi, "health", Access.READ, "This document", answers={200: "application/json"}
    ),
)
