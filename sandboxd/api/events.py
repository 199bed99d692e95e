"""Events: what happens in the daemon, as a stream of numbered server-sent events."""

from __future__ import annotations

import anyio
from starlette.requests import Request
from starlette.responses import Response

from sandboxd.api.models import EventsQuery
from sandboxd.api.requests import header, read_query
from sandboxd.api.routes import Access, Endpoint, Services
from sandboxd.api.streams import EVENTS_HEAD, KEEP_ALIVE, Source, Streamed, sse
from sandboxd.errors import InvalidRequest
from sandboxd.events import Event, EventBus

KEEP_ALIVE_S = 15.0


async def follow_events(services: Services, request: Request) -> Response:
    query = read_query(request, EventsQuery)
    after = query.after
    if (last := header(request, b"last-event-id")) is not None:
        if not (last.isascii() and last.isdecimal() and len(last) <= 19):
            raise InvalidRequest("cannot resume: Last-Event-ID must be the number of an event")
        after = int(last)
    bus = services.manager.events
    return Streamed(_follow(bus, after) if query.follow else _recent(bus, after), services.watch)


async def _recent(bus: EventBus, after: int | None) -> Source:
    yield EVENTS_HEAD
    for event in bus.recent(after):
        yield _render(event)


async def _follow(bus: EventBus, after: int | None) -> Source:
    async with bus.subscribe(after) as events:
        yield EVENTS_HEAD
        yield KEEP_ALIVE  # the client sees at once that it is subscribed
        while True:
            piece = KEEP_ALIVE
            with anyio.move_on_after(KEEP_ALIVE_S):
                event = await anext(events, None)
                if event is None:
                    return
                piece = _render(event)
            yield piece


def _render(event: Event) -> bytes:
    content = {"id": event.id, "kind": event.kind, "at": event.at, **event.fields}
    return sse(event.kind, content, event.id)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/events",
        follow_events,
        "events",
        Access.READ,
        "What happens, numbered. Resumes after `Last-Event-ID`; a `gap` event says that some were lost",
        query=EventsQuery,
        answers={200: "text/event-stream"},
    ),
)
