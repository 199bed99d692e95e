"""Sandboxes: create, change, pause, hibernate, inspect, list and remove them; and collect orphans."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from memo.ids import SessionRef, TenantId
from sandboxd.api.answers import json_answer
from sandboxd.api.once import BEGUN
from sandboxd.api.requests import MAX_JSON_BYTES, read_json, read_query, session_ref
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.sessions import introduce_session
from sandboxd.errors import NotFound
from sandboxd.models.sandbox import (
    DestroyQuery,
    GarbageReport,
    SandboxesQuery,
    SandboxList,
    SandboxPatch,
    SandboxRequest,
    SandboxView,
    Stats,
)


async def ensure_sandbox(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    wanted = await read_json(request, SandboxRequest)
    request.scope[BEGUN] = True
    if not _is_there(services, ref):  # a running sandbox does not need the store, which may be unavailable
        services.manager.check_room()  # before anything is written
        services.manager.check_snapshot(ref, wanted)
        await services.manager.check_network(ref, wanted)
        await introduce_session(services, ref, wanted.user, wanted.agent)
    view = await services.manager.ensure_sandbox(ref, wanted)
    return json_answer(view, 201 if view.created else 200)


def _is_there(services: Services, ref: SessionRef) -> bool:
    try:
        services.manager.get(ref)
    except NotFound:
        return False
    return True


async def get_sandbox(services: Services, request: Request) -> Response:
    return json_answer(services.manager.get(session_ref(request)))


async def update_sandbox(services: Services, request: Request) -> Response:
    patch = await read_json(request, SandboxPatch)
    request.scope[BEGUN] = True
    return json_answer(await services.manager.update(session_ref(request), patch))


async def pause_sandbox(services: Services, request: Request) -> Response:
    request.scope[BEGUN] = True
    return json_answer(await services.manager.pause(session_ref(request)))


async def resume_sandbox(services: Services, request: Request) -> Response:
    request.scope[BEGUN] = True
    return json_answer(await services.manager.resume(session_ref(request)))


async def hibernate_sandbox(services: Services, request: Request) -> Response:
    request.scope[BEGUN] = True
    return json_answer(await services.manager.hibernate(session_ref(request)))


async def destroy_sandbox(services: Services, request: Request) -> Response:
    query = read_query(request, DestroyQuery)
    request.scope[BEGUN] = True
    try:
        await services.manager.destroy(session_ref(request))
    except NotFound:
        if not query.missing_ok:
            raise
    return Response(status_code=204)


async def list_sandboxes(services: Services, request: Request) -> Response:
    tenant = TenantId(request.scope["path_params"]["tenant"])
    query = read_query(request, SandboxesQuery)
    return json_answer(SandboxList(items=[view for view in services.manager.of_tenant(tenant) if query.matches(view)]))


async def get_stats(services: Services, request: Request) -> Response:
    return json_answer(await services.manager.stats(session_ref(request)))


async def collect_garbage(services: Services, request: Request) -> Response:
    request.scope[BEGUN] = True
    return json_answer(await services.manager.collect_garbage())


_SANDBOX = f"{SESSION}/sandbox"

ENDPOINTS = (
    Endpoint(
        "PUT",
        _SANDBOX,
        ensure_sandbox,
        "sandbox",
        Access.WRITE,
        "Create the session's sandbox, or return the existing one. One that is hibernated or dead is started again "
        "with its files. An existing one with another image, environment or other limits is a conflict that names the "
        "differences, unless `recreate` is set",
        body_limit=MAX_JSON_BYTES,
        body=SandboxRequest,
        answers={201: SandboxView, 200: SandboxView},
    ),
    Endpoint(
        "GET",
        _SANDBOX,
        get_sandbox,
        "sandbox",
        Access.READ,
        "Return the session's sandbox",
        answers={200: SandboxView},
    ),
    Endpoint(
        "PATCH",
        _SANDBOX,
        update_sandbox,
        "sandbox",
        Access.WRITE,
        "Change how long the sandbox lives, how it is resumed, its labels, and what it may reach",
        body_limit=MAX_JSON_BYTES,
        body=SandboxPatch,
        answers={200: SandboxView},
    ),
    Endpoint(
        "POST",
        f"{_SANDBOX}/pause",
        pause_sandbox,
        "sandbox",
        Access.WRITE,
        "Freeze every process of the sandbox. Its memory is kept, and it takes no CPU time",
        answers={200: SandboxView},
    ),
    Endpoint(
        "POST",
        f"{_SANDBOX}/resume",
        resume_sandbox,
        "sandbox",
        Access.WRITE,
        "Let a paused sandbox continue, or start a hibernated one again with its files",
        answers={200: SandboxView},
    ),
    Endpoint(
        "POST",
        f"{_SANDBOX}/hibernate",
        hibernate_sandbox,
        "sandbox",
        Access.WRITE,
        "Remove the sandbox's container with all its processes, and keep its files",
        answers={200: SandboxView},
    ),
    Endpoint(
        "DELETE",
        _SANDBOX,
        destroy_sandbox,
        "sandbox",
        Access.WRITE,
        "Remove the session's sandbox with every file in its workspace",
        query=DestroyQuery,
        answers={204: None},
    ),
    Endpoint(
        "GET",
        "/v1/tenants/{tenant}/sandboxes",
        list_sandboxes,
        "sandbox",
        Access.READ,
        "List the sandboxes of a tenant, all of them or those with these labels or in this state",
        query=SandboxesQuery,
        answers={200: SandboxList},
    ),
    Endpoint(
        "GET",
        f"{SESSION}/stats",
        get_stats,
        "sandbox",
        Access.READ,
        "Return the current resource usage of the sandbox",
        answers={200: Stats},
    ),
    Endpoint(
        "POST",
        "/v1/gc",
        collect_garbage,
        "gc",
        Access.WRITE,
        "Reconcile registry, engine and disk now and remove orphans",
        answers={200: GarbageReport},
    ),
)
