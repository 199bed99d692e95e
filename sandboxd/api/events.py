"""Events of the daemon, as a stream of numbered server-sent events."""

from __future__ import annotations

import anyio
from starlette.requests import Request
from starlette.responses import Response

from sandboxd.api.feed import EventFeed
from sandboxd.api.requests import last_event_id, read_query
from sandboxd.api.routes import Access, Endpoint, Services
from sandboxd.api.streams import EVENTS_HEAD, KEEP_ALIVE, KEEP_ALIVE_S, Source, Streamed
from sandboxd.events import MAX_BATCH
from sandboxd.models.event import EventsQuery


async def follow_events(services: Services, request: Request) -> Response:
    query = read_query(request, EventsQuery)
    after = query.after
    if (last := last_event_id(request)) is not None:
        after = last
    feed = services.feed
    return Streamed(_follow(feed, after) if query.follow else _recent(feed, after), services.watch)


async def _recent(feed: EventFeed, after: int | None) -> Source:
    yield EVENTS_HEAD
    events = feed.bus.recent(after)
    for start in range(0, len(events), MAX_BATCH):
        yield feed.render(events[start : start + MAX_BATCH])


async def _follow(feed: EventFeed, after: int | None) -> Source:
    with feed.admit():
        async with feed.bus.subscribe(after) as events:
            yield EVENTS_HEAD
            yield KEEP_ALIVE  # tells the client at once that it is subscribed
            while True:
                piece = KEEP_ALIVE
                with anyio.move_on_after(KEEP_ALIVE_S):
                    batch = await events.batch()
                    if not batch:
                        return
                    piece = feed.render(batch)
                yield piece


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/events",
        follow_events,
        "events",
        Access.READ,
        "Stream numbered events. Resumes after `Last-Event-ID`; a `gap` event means that some were lost",
        query=EventsQuery,
        answers={200: "text/event-stream"},
    ),
)
