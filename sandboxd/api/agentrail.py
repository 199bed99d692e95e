"""The read API of the Agentrail Inspector, with its paths and spellings, for tools that already speak it.

It shows what `inspector` shows. Sessions of every tenant are listed; the others take `tenantId`, by default `default`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from memo.errors import MemoError, Unsupported
from memo.ids import AgentId, SessionRef, TenantId
from sandboxd.api.answers import json_answer
from sandboxd.api.budget import allotment
from sandboxd.api.orchestration import state_of
from sandboxd.api.pieces import list_answer
from sandboxd.api.requests import read_query
from sandboxd.api.routes import Access, Endpoint, Services
from sandboxd.inspector.timeline import event_id
from sandboxd.models.inspector import MAX_SESSIONS, InspectedSession, InspectorSessionsQuery
from sandboxd.models.trace import JsonObject
from sandboxd.models.wire import QueryModel

_MOST_AGENTS = 200


class TenantQuery(QueryModel):
    tenant: str = Field(default="default", alias="tenantId", description="The session's tenant.")


async def get_inspector_health(services: Services, request: Request) -> Response:
    return json_answer({"status": "ok"})


async def list_agentrail_sessions(services: Services, request: Request) -> Response:
    page = await services.inspector.sessions(InspectorSessionsQuery(limit=MAX_SESSIONS))
    return json_answer({"sessions": [_session(item) for item in page.items]})


async def load_agentrail_trace(services: Services, request: Request) -> Response:
    ref, reader = _ref(request), services.inspector.reader
    runtime = await reader.envelopes(ref)
    events: list[JsonObject] = []
    with suppress(Unsupported):
        events = await reader.orchestration_events(ref)
    if not runtime and not events:
        await services.inspector.require(ref)
    envelopes = [_envelope(ref, number, envelope) for number, envelope in enumerate(runtime)]
    envelopes += [_orchestrated(ref, len(runtime) + number, event) for number, event in enumerate(events)]
    return await list_answer(envelopes, allotment(request), member="envelopes")


async def load_agentrail_messages(services: Services, request: Request) -> Response:
    ref = _ref(request)
    found = await services.inspector.reader.messages(ref)
    if not found:
        await services.inspector.require(ref)
    return await list_answer(found, allotment(request), member="messages")


async def load_agentrail_orchestration(services: Services, request: Request) -> Response:
    ref, reader = _ref(request), services.inspector.reader
    state = state_of(await reader.orchestration_state(ref))
    events = await reader.orchestration_events(ref)
    if state.snapshot is None and not events:
        await services.inspector.require(ref)
    snapshot = state.snapshot or {}
    runs = _objects(snapshot.get("runs"))
    run = next((one for one in runs if one.get("status") == "running"), runs[0] if runs else None)
    agents = _objects(snapshot.get("agents"))[:_MOST_AGENTS]
    return json_answer(
        {
            "run": None if run is None else _some(run, "id", "status", "createdAt", "updatedAt"),
            "agents": [{**agent, "mailbox": await _mailbox(services, ref, agent)} for agent in agents],
            "events": events,
        }
    )


async def _mailbox(services: Services, ref: SessionRef, agent: JsonObject) -> JsonObject:
    try:
        state = await services.inspector.reader.mailbox_state(ref, AgentId(agent.get("id")))
    except MemoError:
        return {}
    return _some(state, "processedEventCount", "closeRequested")


def _ref(request: Request) -> SessionRef:
    query = read_query(request, TenantQuery)
    return SessionRef.of(TenantId(query.tenant), request.scope["path_params"]["session"])


def _session(item: InspectedSession) -> JsonObject:
    last = item.updated_at or item.created_at
    return {
        "tenantId": item.tenant,
        "sessionId": item.session,
        "userId": item.user,
        "lastActive": None if last is None else last.isoformat().replace("+00:00", "Z"),
        "turns": item.turns,
        "tokens": item.tokens,
        "status": "idle" if item.error is None else "error",
    }


def _envelope(ref: SessionRef, number: int, envelope: JsonObject) -> JsonObject:
    whose = {"sequence": number, "sessionId": ref.session, "tenantId": ref.tenant}
    if not event_id(envelope):
        return {**whose, **envelope}
    data = envelope.get("data")
    event = {**(data if isinstance(data, dict) else {}), "type": envelope.get("type")}
    return {**_some(envelope, "id", "source"), **whose, "timestamp": envelope.get("at"), "event": event}


def _orchestrated(ref: SessionRef, number: int, event: JsonObject) -> JsonObject:
    own = event.get("eventId") or event.get("event_id") or event.get("id")
    return {
        "id": f"orchestration-{number if own is None else own}",
        "timestamp": event.get("occurredAt") or event.get("timestamp") or event.get("at"),
        "sequence": number,
        "source": "orchestration",
        "sessionId": ref.session,
        "tenantId": ref.tenant,
        "event": event,
    }


def _objects(found: Any) -> list[JsonObject]:
    """Return the objects of a list, or of an object whose names are their ids."""
    values = found.values() if isinstance(found, Mapping) else found if isinstance(found, list) else []
    return [value for value in values if isinstance(value, dict)]


def _some(found: JsonObject, *names: str) -> JsonObject:
    return {name: found[name] for name in names if name in found}


_SESSION = "/__inspector/sessions/{session}"
_JSON = "application/json"
_SAME = "In the form of the Agentrail Inspector's own API."

ENDPOINTS = (
    Endpoint(
        "GET",
        "/__inspector/health",
        get_inspector_health,
        "inspector",
        Access.READ,
        "Return whether the daemon is alive",
        answers={200: _JSON},
        description=_SAME,
    ),
    Endpoint(
        "GET",
        "/__inspector/sessions",
        list_agentrail_sessions,
        "inspector",
        Access.READ,
        f"List the newest sessions of every tenant, at most {MAX_SESSIONS}",
        answers={200: _JSON},
        description=_SAME,
    ),
    Endpoint(
        "GET",
        f"{_SESSION}/trace",
        load_agentrail_trace,
        "inspector",
        Access.READ,
        "Return the session's trace, followed by the events of its orchestration",
        query=TenantQuery,
        answers={200: _JSON},
        description=_SAME,
    ),
    Endpoint(
        "GET",
        f"{_SESSION}/orchestration",
        load_agentrail_orchestration,
        "inspector",
        Access.READ,
        "Return the state of the session's agents",
        query=TenantQuery,
        answers={200: _JSON},
        description=_SAME,
    ),
    Endpoint(
        "GET",
        f"{_SESSION}/messages",
        load_agentrail_messages,
        "inspector",
        Access.READ,
        "Return the messages of the session",
        query=TenantQuery,
        answers={200: _JSON},
        description=_SAME,
    ),
)
