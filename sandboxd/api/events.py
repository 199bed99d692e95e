"""Events of the daemon: past ones from the log, new ones from the bus, as server-sent events or pages of JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import anyio
from starlette.requests import Request
from starlette.responses import Response

from sandboxd.api.budget import allotment
from sandboxd.api.feed import EventFeed
from sandboxd.api.pieces import list_answer
from sandboxd.api.requests import header, last_event_id, read_query, wants_events
from sandboxd.api.routes import Access, Endpoint, Services
from sandboxd.api.streams import EVENTS_HEAD, KEEP_ALIVE, KEEP_ALIVE_S, Source, Streamed
from sandboxd.events import CAPACITY, MAX_BATCH
from sandboxd.history import EventFilter, EventHistory
from sandboxd.models.event import DEFAULT_PAGE, Event, EventPage, EventsQuery

_PAGE_BYTES = 4 * 1024 * 1024
"""What a page of events may hold while it is read: events are small, but the texts of commands are not."""


async def follow_events(services: Services, request: Request) -> Response:
    query = read_query(request, EventsQuery)
    if (last := last_event_id(request)) is not None:
        query = query.model_copy(update={"after": last})
    history = services.manager.history
    if not wants_events(request) and "application/json" in (header(request, b"accept") or ""):
        return await _page(history, request, query)
    past = _Past(services.feed, history, query)
    return Streamed(past.follow() if query.follow else past.only(), services.watch)


async def _page(history: EventHistory, request: Request, query: EventsQuery) -> Response:
    memory = allotment(request)
    memory.take(_PAGE_BYTES)
    limit = query.limit or DEFAULT_PAGE
    newest_first = query.order == "desc"
    items = await history.find(_filter(query), after=query.after, limit=limit + 1, newest_first=newest_first)
    following = items[limit - 1].id if len(items) > limit else None
    return await list_answer(items[:limit], memory, next=following)


def _filter(query: EventsQuery) -> EventFilter:
    return EventFilter(query.tenant, query.session, query.user, frozenset(query.kind), query.since, query.until)


class _Past:
    """The events of one reader: those of the log first, and from the ring as soon as that has the next one."""

    def __init__(self, feed: EventFeed, history: EventHistory, query: EventsQuery) -> None:
        self._feed = feed
        self._bus = feed.bus
        self._history = history
        self._query = query
        self._wanted = _filter(query)
        self._after = query.after
        """The id after which the reader needs events; None before the start."""

    async def only(self) -> Source:
        """Yield the past events, and end."""
        yield EVENTS_HEAD
        async for piece in self._past(self._bus.next_id - 1):
            yield piece

    async def follow(self) -> Source:
        """Yield the past events that were asked for, and then new ones."""
        with self._feed.admit():
            start = self._bus.next_id - 1
            yield EVENTS_HEAD
            yield KEEP_ALIVE  # tells the client at once that it is subscribed
            if self._query.limit or self._query.since or self._query.until or self._after is not None:
                async for piece in self._past(start):
                    yield piece
            else:
                self._after = start
            while (wait_s := self._wait_s()) > 0:
                position = (self._after or 0) + 1
                with anyio.move_on_after(wait_s) as waiting:
                    if not await self._bus.wait(position):
                        return
                if waiting.cancelled_caught:
                    yield KEEP_ALIVE
                elif position < self._bus.oldest_id:  # this reader is too slow for the ring
                    async for piece in self._pages(self._bus.next_id - 1):
                        yield piece
                else:
                    batch = self._bus.read(position, MAX_BATCH)
                    self._after = batch[-1].id
                    if piece := self._render(batch):
                        yield piece

    def _wait_s(self) -> float:
        """Return how long to wait for the next event; 0 once no later one can be wanted."""
        if self._query.until is None:
            return KEEP_ALIVE_S
        return min(KEEP_ALIVE_S, (self._query.until - datetime.now(UTC)).total_seconds())

    async def _past(self, last: int) -> AsyncIterator[bytes]:
        """Yield past events up to this id: all after an id or since a time, else the newest."""
        if self._after is not None and self._after > last:  # an id of the future
            yield self._render(self._bus.recent(self._after))
            self._after = self._bus.next_id - 1
            return
        if self._after is not None and self._after < (removed := self._history.log.removed_id):
            yield self._feed.render([_gap(self._after, removed)])
        if self._after is None and self._query.since is None:
            found = await self._history.find(self._wanted, limit=self._query.limit or CAPACITY, newest_first=True)
            found = [event for event in reversed(found) if event.id <= last]
            for start in range(0, len(found), MAX_BATCH):
                yield self._feed.render(found[start : start + MAX_BATCH])
            self._after = last
            return
        async for piece in self._pages(last, self._query.limit):
            yield piece

    async def _pages(self, last: int, limit: int | None = None) -> AsyncIterator[bytes]:
        """Yield wanted events of the log up to this id, and leave the reader there."""
        while limit is None or limit > 0:
            most = MAX_BATCH if limit is None else min(limit, MAX_BATCH)
            found = await self._history.find(self._wanted, after=self._after, limit=most)
            page = [event for event in found if event.id <= last]
            if page:
                self._after = page[-1].id
                yield self._feed.render(page)
            if len(page) < most:
                break
            limit = None if limit is None else limit - len(page)
        self._after = last

    def _render(self, events: list[Event]) -> bytes:
        return self._feed.render([event for event in events if event.kind == "gap" or self._wanted.matches(event)])


def _gap(after: int, until: int) -> Event:
    return Event(id=until, kind="gap", at=datetime.now(UTC), after=after, lost=None)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/events",
        follow_events,
        "events",
        Access.READ,
        "Stream numbered events, past and new. Resumes after `Last-Event-ID`, also with an id from before a restart; a "
        "`gap` event means that some were lost. With `Accept: application/json` it returns a page of past events",
        query=EventsQuery,
        answers={200: "text/event-stream"},
        other_answers=(EventPage,),
    ),
)
