"""Sessions of the store: create one without a sandbox, inspect it, list them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from memo.errors import SessionTaken
from memo.ids import AgentId, SessionRef, TenantId, UserId
from memo.sessions import Session as StoredSession
from sandboxd.api.memory import ask_store, can, find_session, foreign_answer, foreign_list, memory_of
from sandboxd.api.once import BEGUN
from sandboxd.api.requests import MAX_JSON_BYTES, read_json, read_query, session_ref
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.errors import Conflict, NotFound, SessionNotFound
from sandboxd.models.session import Session, SessionBody, SessionList, SessionsQuery

DEFAULT_AGENT = AgentId("default")


async def ensure_session(services: Services, request: Request) -> Response:
    memory_of(services)
    ref = session_ref(request)
    body = await read_json(request, SessionBody)
    user, agent = body.user, body.agent or DEFAULT_AGENT
    _refuse_another_user(services, ref, user)
    known = await find_session(services, ref)
    request.scope[BEGUN] = True
    session = await ask_store(services, "get_or_create", ref.tenant, user, agent, ref.session, writes=True)
    status = 200 if known is not None else 201
    return foreign_answer("a session", lambda: _shown(StoredSession.parse(session, ref.tenant, user, agent)), status)


async def get_session(services: Services, request: Request) -> Response:
    memory_of(services)
    session = await find_session(services, session_ref(request))
    if session is None:
        raise SessionNotFound("cannot find this session")
    return foreign_answer("a session", lambda: _shown(session))


async def list_sessions(services: Services, request: Request) -> Response:
    memory_of(services)
    tenant = TenantId(request.scope["path_params"]["tenant"])
    query = read_query(request, SessionsQuery)
    found = await ask_store(services, "list_sessions", tenant)
    return await foreign_list(
        request,
        "a list of sessions",
        lambda: (
            _shown(session)
            for session in (StoredSession.parse(one, tenant) for one in found)
            if query.user in (None, session.user)
        ),
    )


def _shown(session: StoredSession) -> Session:
    return Session.model_validate(session)


async def introduce_session(services: Services, ref: SessionRef, user: UserId, agent: AgentId | None) -> None:
    """Create the sandbox's session in the store, so that it keeps its user after the sandbox is gone."""
    if services.memory is None or not can(services, "get_or_create"):
        return
    try:
        await ask_store(services, "get_or_create", ref.tenant, user, agent or DEFAULT_AGENT, ref.session, writes=True)
    except SessionTaken:
        raise Conflict(
            "cannot create this sandbox: the session belongs to another user; use another session id"
        ) from None


def _refuse_another_user(services: Services, ref: SessionRef, user: UserId) -> None:
    try:
        view = services.manager.get(ref)
    except NotFound:
        return
    if view.user != user:
        raise Conflict("cannot use this session: its sandbox belongs to another user")


ENDPOINTS = (
    Endpoint(
        "PUT",
        SESSION,
        ensure_session,
        "session",
        Access.WRITE,
        "Create a session without a sandbox, or return the existing one; 409 if it belongs to another user",
        body_limit=MAX_JSON_BYTES,
        body=SessionBody,
        answers={201: Session, 200: Session},
    ),
    Endpoint("GET", SESSION, get_session, "session", Access.READ, "A session", answers={200: Session}),
    Endpoint(
        "GET",
        "/v1/tenants/{tenant}/sessions",
        list_sessions,
        "session",
        Access.READ,
        "List the sessions of a tenant, last changed first",
        query=SessionsQuery,
        answers={200: SessionList},
    ),
)
