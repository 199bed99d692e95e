"""Health: liveness, readiness, metrics and the daemon's capabilities."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from sandboxd.api import render
from sandboxd.api.models import HealthAnswer, ReadyAnswer
from sandboxd.api.problems import problem
from sandboxd.api.problems import render as render_problem
from sandboxd.api.routes import Access, Endpoint, Services
from sandboxd.metrics import CONTENT_TYPE


async def get_health(services: Services, request: Request) -> Response:
    return render.json_answer({"status": "ok", "version": services.version})


async def get_readiness(services: Services, request: Request) -> Response:
    readiness = await services.readiness()
    parts = {"engine": readiness.engine, "store": readiness.store, "disk": readiness.disk}
    checks = {subject: asdict(check) for subject, check in parts.items()}
    failing = [f"{subject} {check.name}: {check.detail}" for subject, check in parts.items() if not check.ok]
    if not failing:
        return render.json_answer({"ready": True, **checks})
    detail = f"cannot work: {'; '.join(failing)}"
    return render_problem(problem("daemon.not_ready", detail, retryable=True, ready=False, **checks))


async def get_metrics(services: Services, request: Request) -> Response:
    return Response(services.metrics.render(), headers={"content-type": CONTENT_TYPE})


async def get_openapi(services: Services, request: Request) -> Response:
    return render.json_answer(services.openapi())


ENDPOINTS = (
    Endpoint(
        "GET",
        "/healthz",
        get_health,
        "health",
        Access.READ,
        "Return whether the daemon is alive",
        answers={200: HealthAnswer},
    ),
    Endpoint(
        "GET",
        "/readyz",
        get_readiness,
        "health",
        Access.READ,
        "Return whether the daemon is ready: engine, store and disk",
        answers={200: ReadyAnswer},
    ),
    Endpoint("GET", "/metrics", get_metrics, "health", Access.READ, "Prometheus text", answers={200: "text/plain"}),
    Endpoint(
        "GET", "/openapi.json", get_openapi, "health", Access.READ, "This document", answers={200: "application/json"}
    ),
)
