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
from sandboxd.memory.store_client import PartFactory
from sandboxd.models.message import Appended
from sandboxd.models.trace import EnvelopeList, JsonObject, PageQuery, TraceBody


async def append_trace(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    body = await read_json_objects(request, TraceBody, MAX_STDIN_JSON_BYTES)
    await require_session(services, ref)
    request.scope[BEGUN] = True
    for envelope in body.envelopes:
        await memory_of(services).client.call_part("session_trace_store", ref, "append_envelope", envelope, writes=True)
    return json_answer(Appended(appended=len(body.envelopes)))


async def load_trace(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    query = read_query(request, PageQuery)
    found = await load_part(services, "session_trace_store", ref, "load_envelopes")
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
        answers={200: Appended},
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
