"""The inspector: its page, and the read API behind it. Authentication is that of every other route."""

from __future__ import annotations

import anyio
from starlette.requests import Request
from starlette.responses import Response

from sandboxd.api.answers import json_answer
from sandboxd.api.budget import allotment
from sandboxd.api.orchestration import state_of
from sandboxd.api.pieces import bytes_answer, list_answer
from sandboxd.api.requests import header, read_query, session_ref
from sandboxd.api.routes import Access, Endpoint, Services
from sandboxd.api.streams import EVENTS_HEAD, KEEP_ALIVE, KEEP_ALIVE_S, Source, Streamed, sse
from sandboxd.errors import RouteNotFound
from sandboxd.inspector.inspector import Inspector
from sandboxd.inspector.page_files import INDEX, PageFile
from sandboxd.inspector.sampler import StatsSampler
from sandboxd.models.inspector import (
    EntryDetails,
    InspectedSessionList,
    InspectorSessionsQuery,
    MessagePage,
    Overview,
    SearchQuery,
    SearchResult,
    SessionDetails,
    Timeline,
    TimelineQuery,
)
from sandboxd.models.trace import EnvelopeList, OrchestrationState, PageQuery, StoredEventList

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
PAGE_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


async def get_page(services: Services, request: Request) -> Response:
    return _file_answer(services, request, INDEX)


async def redirect_to_page(services: Services, request: Request) -> Response:
    return Response(status_code=308, headers={**PAGE_HEADERS, "location": "/__inspector/"})


async def get_page_file(services: Services, request: Request) -> Response:
    return _file_answer(services, request, request.scope["path_params"]["name"])


async def get_overview(services: Services, request: Request) -> Response:
    return json_answer(await _inspector(services).overview())


async def follow_stats(services: Services, request: Request) -> Response:
    return Streamed(_samples(_inspector(services).sampler), services.watch)


async def list_inspected_sessions(services: Services, request: Request) -> Response:
    query = read_query(request, InspectorSessionsQuery)
    return json_answer(await _inspector(services).sessions(query))


async def get_inspected_session(services: Services, request: Request) -> Response:
    return json_answer(await _inspector(services).session(session_ref(request)))


async def load_history(services: Services, request: Request) -> Response:
    ref, query, inspector = session_ref(request), read_query(request, PageQuery), _inspector(services)
    found = await inspector.reader.messages(ref)
    if not found:
        await inspector.require(ref)
    last = None if query.limit is None else query.after + query.limit
    return await list_answer(found[query.after : last], allotment(request), total=len(found))


async def load_envelopes(services: Services, request: Request) -> Response:
    ref, query, inspector = session_ref(request), read_query(request, PageQuery), _inspector(services)
    found = await inspector.reader.envelopes(ref)
    if not found:
        await inspector.require(ref)
    last = None if query.limit is None else query.after + query.limit
    return await list_answer(found[query.after : last], allotment(request))


async def load_orchestration_events(services: Services, request: Request) -> Response:
    ref, inspector = session_ref(request), _inspector(services)
    found = await inspector.reader.orchestration_events(ref)
    if not found:
        await inspector.require(ref)
    return await list_answer(found, allotment(request))


async def load_orchestration_state(services: Services, request: Request) -> Response:
    ref, inspector = session_ref(request), _inspector(services)
    state = state_of(await inspector.reader.orchestration_state(ref))
    if state.snapshot is None and not state.events and state.source == "no checkpoint":
        await inspector.require(ref)
        return Response(b"null", media_type="application/json")
    return json_answer(state)


async def load_timeline(services: Services, request: Request) -> Response:
    query = read_query(request, TimelineQuery)
    entries, following, total = await _inspector(services).timeline(session_ref(request), query.after, query.limit)
    return await list_answer(entries, allotment(request), next=following, total=total)


async def load_timeline_entry(services: Services, request: Request) -> Response:
    entry = await _inspector(services).entry(session_ref(request), request.scope["path_params"]["entry"])
    return json_answer(entry)


async def search(services: Services, request: Request) -> Response:
    query = read_query(request, SearchQuery)
    with services.watch.guard(request.receive):
        return json_answer(await _inspector(services).search(query))


async def _samples(sampler: StatsSampler) -> Source:
    with sampler.listen() as reader:
        yield EVENTS_HEAD
        yield KEEP_ALIVE
        while True:
            piece = KEEP_ALIVE
            with anyio.move_on_after(KEEP_ALIVE_S):
                sample = await reader.next()
                if sample is None:
                    return
                piece = sse("stats", sample)
            yield piece


def _inspector(services: Services) -> Inspector:
    return services.inspector


def _file_answer(services: Services, request: Request, name: str) -> Response:
    file: PageFile | None = services.page.find(name)
    if file is None:
        raise RouteNotFound("cannot find this file of the inspector's page")
    headers = {**PAGE_HEADERS, "etag": file.etag}
    if header(request, b"if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return bytes_answer(file.content, allotment(request), {**headers, "content-type": file.media_type})


_API = "/__inspector/api"
_SESSION = f"{_API}/tenants/{{tenant}}/sessions/{{session}}"


def _get(path: str, run: object, summary: str, **more: object) -> Endpoint:
    return Endpoint("GET", path, run, "inspector", Access.READ, summary, **more)  # type: ignore[arg-type]


ENDPOINTS = (
    _get("/__inspector", redirect_to_page, "Lead to the inspector's page", answers={308: None}),
    _get("/__inspector/", get_page, "The inspector's page", answers={200: "text/html"}),
    _get(
        "/__inspector/static/{name}",
        get_page_file,
        "A file of the inspector's page",
        answers={200: "application/octet-stream"},
        deep_parameter="name",
    ),
    _get(f"{_API}/overview", get_overview, "The state of the daemon and of every sandbox", answers={200: Overview}),
    _get(
        f"{_API}/stats",
        follow_stats,
        "Stream what the host and the running sandboxes use: one `stats` event about every 2 s",
        answers={200: "text/event-stream"},
    ),
    _get(
        f"{_API}/sessions",
        list_inspected_sessions,
        "List the sessions of every tenant, newest first, in pages",
        query=InspectorSessionsQuery,
        answers={200: InspectedSessionList},
    ),
    _get(_SESSION, get_inspected_session, "A session, its sandbox and its forks", answers={200: SessionDetails}),
    _get(
        f"{_SESSION}/messages",
        load_history,
        "Return the messages of the session, archived ones included, oldest first",
        query=PageQuery,
        answers={200: MessagePage},
        operation_id="load_inspected_messages",
    ),
    _get(
        f"{_SESSION}/trace",
        load_envelopes,
        "Return the envelopes of the session's trace, oldest first",
        query=PageQuery,
        answers={200: EnvelopeList},
        operation_id="load_inspected_trace",
    ),
    _get(
        f"{_SESSION}/orchestration/state",
        load_orchestration_state,
        "Return the recovered state of the session's orchestration; null if it has none",
        answers={200: OrchestrationState},
        operation_id="load_inspected_orchestration_state",
    ),
    _get(
        f"{_SESSION}/orchestration/events",
        load_orchestration_events,
        "Return the events of the session's orchestration, oldest first",
        answers={200: StoredEventList},
        operation_id="load_inspected_orchestration_events",
    ),
    _get(
        f"{_SESSION}/timeline",
        load_timeline,
        "Return what happened in the session as entries: messages, its trace and the newest events, merged by time",
        query=TimelineQuery,
        answers={200: Timeline},
    ),
    _get(
        f"{_SESSION}/timeline/{{entry}}",
        load_timeline_entry,
        "Return an entry of the timeline with everything known about it",
        answers={200: EntryDetails},
    ),
    _get(
        f"{_API}/search",
        search,
        "Find a text in sessions, messages, documents and artifacts, without regard to case",
        query=SearchQuery,
        answers={200: SearchResult},
        operation_id="search_inspector",
    ),
)
