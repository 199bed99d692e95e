"""Trace of a session: append envelopes and load them. The store keeps them as given."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from memo.ids import SessionRef
from sandboxd.api.answers import json_answer
from sandboxd.api.memory import foreign_list, memory_of, require_session, unusable
from sandboxd.api.once import BEGUN
from sandboxd.api.requests import MAX_STDIN_JSON_BYTES, read_json_objects, read_query, session_ref
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.errors import InvalidRequest
from sandboxd.history import SOURCE
from sandboxd.memory.store_calls import PartFactory
from sandboxd.models.trace import AppendedEntries, EnvelopeList, JsonObject, PageQuery, TraceBody

_PART: PartFactory = "session_trace_store"


async def append_trace(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    body = await read_json_objects(request, TraceBody, MAX_STDIN_JSON_BYTES)
    if any(envelope.get("source") == SOURCE for envelope in body.envelopes):
        raise InvalidRequest(
            f"cannot append this envelope: its source is {SOURCE}, which marks the daemon's own; use another source"
        )
    await require_session(services, ref)
    client = memory_of(services).client
    request.scope[BEGUN] = True
    if body.envelopes and client.part_can(_PART, ref, "append_envelopes"):
        await client.call_part(_PART, ref, "append_envelopes", body.envelopes, writes=True)
    else:
        for envelope in body.envelopes:
            await client.call_part(_PART, ref, "append_envelope", envelope, writes=True)
    return json_answer(AppendedEntries(appended=len(body.envelopes)))


async def load_trace(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    query = read_query(request, PageQuery)
    found = await load_part(services, _PART, ref, "load_envelopes")
    return await page_of(services, request, ref, query, found, "a list of trace envelopes")


async def load_part(
    services: Services, factory: PartFactory, ref: SessionRef, method: str, *args: str
) -> list[JsonObject]:
    """Return a list of JSON objects from the session's trace or orchestration."""
    found = await memory_of(services).client.call_part(factory, ref, method, *args)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise unusable("it is not a list of JSON objects")
    return found


async def page_of(
    services: Services, request: Request, ref: SessionRef, query: PageQuery, found: list[JsonObject], noun: str
) -> Response:
    """Answer with the items that the query asks for; 404 if there are none and the session does not exist."""
    if not found:
        await require_session(services, ref)
    last = None if query.limit is None else query.after + query.limit
    return await foreign_list(request, noun, lambda: found[query.after : last])


ENDPOINTS = (
    Endpoint(
        "POST",
        f"{SESSION}/trace",
        append_trace,
        "trace",
        Access.WRITE,
        "Append envelopes to the session's trace, in this order",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=TraceBody,
        answers={200: AppendedEntries},
        repeatable=False,
    ),
    Endpoint(
        "GET",
        f"{SESSION}/trace",
        load_trace,
        "trace",
        Access.READ,
        "Return the envelopes of the session's trace, oldest first. The daemon appends one for each of its events that "
        "concern the session: `source` is `sandboxd`",
        query=PageQuery,
        answers={200: EnvelopeList},
    ),
)
