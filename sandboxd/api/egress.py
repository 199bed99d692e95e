"""Egress: the record of what a sandbox has reached through the daemon, as a list or as server-sent events."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from starlette.requests import Request
from starlette.responses import Response

from sandboxd.api.answers import json_answer
from sandboxd.api.feed import EventFeed
from sandboxd.api.requests import last_event_id, read_query, session_ref, wants_events
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.streams import EVENTS_HEAD, KEEP_ALIVE, KEEP_ALIVE_S, Source, Streamed, sse
from sandboxd.models.network import EgressList, EgressQuery, EgressRecord
from sandboxd.network.audit import AuditLog


async def list_egress(services: Services, request: Request) -> Response:
    query = read_query(request, EgressQuery)
    audit = services.manager.audit(session_ref(request))
    if not wants_events(request):
        return json_answer(EgressList(items=audit.since(query.since), dropped=audit.dropped))
    since = last_event_id(request)
    return Streamed(_follow(services.feed, audit, query.since if since is None else since), services.watch)


async def _follow(feed: EventFeed, audit: AuditLog, since: int) -> Source:
    with feed.admit():
        yield EVENTS_HEAD
        yield KEEP_ALIVE  # tells the client at once that it is subscribed
        while True:
            piece = KEEP_ALIVE
            with anyio.move_on_after(KEEP_ALIVE_S):
                records = await audit.wait(since)
                if not records:
                    return
                since = records[-1].id
                piece = _render(records)
            yield piece


def _render(records: Sequence[EgressRecord]) -> bytes:
    return b"".join([sse("egress", record, record.id) for record in records])


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{SESSION}/egress",
        list_egress,
        "egress",
        Access.READ,
        "List the connections that the sandbox opened, or tried to open, through the daemon, oldest first. With "
        "`Accept: text/event-stream` they are events, and new ones follow; resumes after `Last-Event-ID`",
        query=EgressQuery,
        answers={200: EgressList},
    ),
)
