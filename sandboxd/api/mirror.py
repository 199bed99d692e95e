"""Mirrors: report the state of a session's mirror, and refresh it, or one user document in all mirrors."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from memo.ids import TenantId, UserId
from sandboxd.api.answers import json_answer
from sandboxd.api.budget import allotment
from sandboxd.api.memory import memory_of
from sandboxd.api.once import BEGUN
from sandboxd.api.pieces import list_answer
from sandboxd.api.requests import MAX_STDIN_JSON_BYTES, read_json, read_optional_json, session_ref
from sandboxd.api.routes import SESSION, USER, Access, Endpoint, Services
from sandboxd.errors import InvalidRequest
from sandboxd.models.mirror import MirrorReport, RefreshBody, Refreshed, UserRefreshBody


async def refresh_mirror(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    ref = session_ref(request)
    body = await read_optional_json(request, RefreshBody, MAX_STDIN_JSON_BYTES)
    if body.content is not None and body.path is None:
        raise InvalidRequest("cannot refresh: content needs the path that it belongs to; add path")
    request.scope[BEGUN] = True
    return json_answer(Refreshed(refreshed=await memory.refresh(ref, body.path, body.content)))


async def refresh_user_mirrors(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    params = request.scope["path_params"]
    tenant, user = TenantId(params["tenant"]), UserId(params["user"])
    body = await read_json(request, UserRefreshBody, MAX_STDIN_JSON_BYTES)
    request.scope[BEGUN] = True
    return json_answer(Refreshed(refreshed=await memory.refresh_user(tenant, user, body.name, body.content)))


async def get_mirror(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    services.manager.get(ref)  # without a sandbox there is no mirror
    memory = memory_of(services)
    files = await memory.inspect(ref)
    return await list_answer(files, allotment(request), refused=memory.refused(ref))


ENDPOINTS = (
    Endpoint(
        "POST",
        f"{SESSION}/mirror/refresh",
        refresh_mirror,
        "mirror",
        Access.WRITE,
        "Refresh one file of the session's mirror from the store, or all files",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=RefreshBody,
        answers={200: Refreshed},
    ),
    Endpoint(
        "POST",
        f"{USER}/mirror/refresh",
        refresh_user_mirrors,
        "mirror",
        Access.WRITE,
        "Refresh one document of the user in every live mirror",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=UserRefreshBody,
        answers={200: Refreshed},
    ),
    Endpoint(
        "GET",
        f"{SESSION}/mirror",
        get_mirror,
        "mirror",
        Access.READ,
        "Compare every file of the session's mirror with the store; list queued writes that the store rejected",
        answers={200: MirrorReport},
    ),
)
