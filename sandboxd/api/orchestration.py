"""Orchestration of a session's agents: events, checkpoint, recovery, mailboxes and histories. The store keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from memo.ids import AgentId, SessionRef
from sandboxd.api.answers import json_answer
from sandboxd.api.memory import foreign_answer, foreign_list, memory_of, require_session, unusable
from sandboxd.api.once import BEGUN
from sandboxd.api.requests import MAX_STDIN_JSON_BYTES, read_json_objects, read_query, session_ref
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.trace import load_part, page_of
from sandboxd.memory.store_calls import PartFactory
from sandboxd.models.trace import (
    AgentHistory,
    AgentList,
    AppendedEntries,
    CheckpointBody,
    EventsBody,
    HistoryBody,
    JsonObject,
    MailboxBody,
    MailboxState,
    OrchestrationState,
    PageQuery,
    StoredCheckpoint,
    StoredEventList,
)

_PARTS: PartFactory = "orchestration_persistence"


async def append_events(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    body = await read_json_objects(request, EventsBody, MAX_STDIN_JSON_BYTES)
    await _begin(services, request, ref)
    for event in body.events:
        await _write(services, ref, "append_event", event)
    return json_answer(AppendedEntries(appended=len(body.events)))


async def load_events(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    query = read_query(request, PageQuery)
    found = await load_part(services, _PARTS, ref, "load_events")
    return await page_of(services, request, ref, query, found, "a list of events")


async def write_checkpoint(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    body = await read_json_objects(request, CheckpointBody, MAX_STDIN_JSON_BYTES)
    await _begin(services, request, ref)
    await _write(services, ref, "write_checkpoint", body.snapshot)
    return Response(status_code=204)


async def load_checkpoint(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    snapshot = await _read(services, ref, "load_snapshot")
    if snapshot is None:
        await require_session(services, ref)
    return foreign_answer("a checkpoint", lambda: StoredCheckpoint(snapshot=snapshot))


async def recover_state(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    state = state_of(await _read(services, ref, "recover_state"))
    if state.snapshot is None and not state.events:
        await require_session(services, ref)
    return foreign_answer("a recovered state", lambda: state)


async def append_mailbox_events(services: Services, request: Request) -> Response:
    ref, agent = session_ref(request), _agent(request)
    body = await read_json_objects(request, EventsBody, MAX_STDIN_JSON_BYTES)
    await _begin(services, request, ref)
    for event in body.events:
        await _write(services, ref, "append_mailbox_event", agent, event)
    return json_answer(AppendedEntries(appended=len(body.events)))


async def load_mailbox_events(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    query = read_query(request, PageQuery)
    found = await load_part(services, _PARTS, ref, "load_mailbox_events", _agent(request))
    return await page_of(services, request, ref, query, found, "a list of events")


async def write_mailbox_state(services: Services, request: Request) -> Response:
    ref, agent = session_ref(request), _agent(request)
    body = await read_json_objects(request, MailboxBody, MAX_STDIN_JSON_BYTES)
    await _begin(services, request, ref)
    await _write(services, ref, "write_mailbox_state", agent, body.state)
    return Response(status_code=204)


async def load_mailbox_state(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    state = await _read(services, ref, "load_mailbox_state", _agent(request))
    if not state:
        await require_session(services, ref)
    return foreign_answer("a mailbox state", lambda: MailboxState(state=state))


async def write_history(services: Services, request: Request) -> Response:
    ref, agent = session_ref(request), _agent(request)
    body = await read_json_objects(request, HistoryBody, MAX_STDIN_JSON_BYTES)
    await _begin(services, request, ref)
    await _write(services, ref, "write_agent_history", agent, body.history)
    return Response(status_code=204)


async def load_history(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    history = await _read(services, ref, "load_agent_history", _agent(request))
    if not history:
        await require_session(services, ref)
    return foreign_answer("an agent's history", lambda: AgentHistory(history=history))


async def list_agents(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    found = await _read(services, ref, "list_agents")
    if not found:
        await require_session(services, ref)
    return await foreign_list(request, "a list of agents", lambda: [AgentId(agent) for agent in found])


def state_of(found: Any) -> OrchestrationState:
    """Return what a store recovered, which may have attributes or be a JSON object."""
    read: Callable[[str], Any] = found.get if isinstance(found, Mapping) else lambda name: getattr(found, name, None)
    snapshot, events, source = read("snapshot"), read("events"), read("source")
    if not isinstance(snapshot, dict | None) or not isinstance(events, Sequence | None):
        raise unusable("it is not a recovered state")
    items = list(events or ())
    if not all(isinstance(event, dict) for event in items):
        raise unusable("it is not a recovered state")
    default = "no checkpoint" if snapshot is None else "checkpoint"
    return OrchestrationState(snapshot=snapshot, events=items, source=str(source or default))


async def _begin(services: Services, request: Request, ref: SessionRef) -> None:
    await require_session(services, ref)
    request.scope[BEGUN] = True


async def _read(services: Services, ref: SessionRef, method: str, *args: str) -> Any:
    return await memory_of(services).client.call_part(_PARTS, ref, method, *args)


async def _write(services: Services, ref: SessionRef, method: str, *args: str | JsonObject | list[Any]) -> None:
    await memory_of(services).client.call_part(_PARTS, ref, method, *args, writes=True)


def _agent(request: Request) -> AgentId:
    return AgentId(request.scope["path_params"]["agent"])


_PLACE = f"{SESSION}/orchestration"
_AGENT = f"{_PLACE}/agents/{{agent}}"

ENDPOINTS = (
    Endpoint(
        "POST",
        f"{_PLACE}/events",
        append_events,
        "orchestration",
        Access.WRITE,
        "Append events to the session's orchestration, in this order",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=EventsBody,
        answers={200: AppendedEntries},
        repeatable=False,
        operation_id="append_orchestration_events",
    ),
    Endpoint(
        "GET",
        f"{_PLACE}/events",
        load_events,
        "orchestration",
        Access.READ,
        "Return the events of the session's orchestration, oldest first",
        query=PageQuery,
        answers={200: StoredEventList},
        operation_id="load_orchestration_events",
    ),
    Endpoint(
        "PUT",
        f"{_PLACE}/checkpoint",
        write_checkpoint,
        "orchestration",
        Access.WRITE,
        "Replace the checkpoint",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=CheckpointBody,
        answers={204: None},
    ),
    Endpoint(
        "GET",
        f"{_PLACE}/checkpoint",
        load_checkpoint,
        "orchestration",
        Access.READ,
        "Return the latest checkpoint",
        answers={200: StoredCheckpoint},
    ),
    Endpoint(
        "GET",
        f"{_PLACE}/state",
        recover_state,
        "orchestration",
        Access.READ,
        "Return the latest checkpoint and the events after it; every event if the checkpoint cannot be used",
        answers={200: OrchestrationState},
        operation_id="recover_orchestration_state",
    ),
    Endpoint(
        "GET",
        f"{_PLACE}/agents",
        list_agents,
        "orchestration",
        Access.READ,
        "List the agents that have a mailbox or a history",
        answers={200: AgentList},
        operation_id="list_orchestration_agents",
    ),
    Endpoint(
        "POST",
        f"{_AGENT}/mailbox",
        append_mailbox_events,
        "orchestration",
        Access.WRITE,
        "Append events to the agent's mailbox, in this order",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=EventsBody,
        answers={200: AppendedEntries},
        repeatable=False,
    ),
    Endpoint(
        "GET",
        f"{_AGENT}/mailbox",
        load_mailbox_events,
        "orchestration",
        Access.READ,
        "Return the events of the agent's mailbox, oldest first",
        query=PageQuery,
        answers={200: StoredEventList},
    ),
    Endpoint(
        "PUT",
        f"{_AGENT}/mailbox-state",
        write_mailbox_state,
        "orchestration",
        Access.WRITE,
        "Replace the state of the agent's mailbox",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=MailboxBody,
        answers={204: None},
    ),
    Endpoint(
        "GET",
        f"{_AGENT}/mailbox-state",
        load_mailbox_state,
        "orchestration",
        Access.READ,
        "Return the state of the agent's mailbox",
        answers={200: MailboxState},
    ),
    Endpoint(
        "PUT",
        f"{_AGENT}/history",
        write_history,
        "orchestration",
        Access.WRITE,
        "Replace the agent's history",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=HistoryBody,
        answers={204: None},
        operation_id="write_agent_history",
    ),
    Endpoint(
        "GET",
        f"{_AGENT}/history",
        load_history,
        "orchestration",
        Access.READ,
        "Return the agent's history",
        answers={200: AgentHistory},
        operation_id="load_agent_history",
    ),
)
