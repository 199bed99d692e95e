"""Calls on the daemon itself: health, metrics, garbage collection and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from sandboxd.client._async.calls import AsyncCalls
from sandboxd.client.errors import malformed_answers
from sandboxd.client.request import CREATE_S, json_request, with_query
from sandboxd.client.sse import EVENT_STREAM
from sandboxd.client.streams import AsyncStream
from sandboxd.models.event import Event, EventPage


class AsyncDaemonCalls(AsyncCalls):
    async def health(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self._ask_json(json_request("GET", "/healthz"))
        return found

    async def ready(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self._ask_json(json_request("GET", "/readyz"))
        return found

    async def metrics(self) -> str:
        """Return the daemon's metrics as Prometheus text."""
        return await self._ask_text(json_request("GET", "/metrics"))

    async def collect_garbage(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self._ask_json(json_request("POST", "/v1/gc", timeout_s=CREATE_S))
        return found

    async def events(
        self,
        after: int | None = None,
        *,
        follow: bool = True,
        tenant: str | None = None,
        session: str | None = None,
        user: str | None = None,
        kinds: Sequence[str] = (),
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        limit: int | None = None,
    ) -> AsyncStream[Event]:
        """Yield events from now on, or past ones too: after an id, since a time, or the newest `limit`.

        Without `follow`, only past events. Times are aware datetimes, text as in RFC 3339, or how long ago ("1h").
        """
        query = _query(after, tenant, session, user, kinds, since, until, limit)
        target = with_query("/v1/events", **query, follow=None if follow else "false")
        async with self._events(json_request("GET", target, headers=EVENT_STREAM, timeout_s=60.0)) as events:
            async for _, data in events:
                with malformed_answers():
                    event = Event.model_validate_json(data)
                yield event

    async def list_events(
        self,
        after: int | None = None,
        *,
        order: Literal["asc", "desc"] = "asc",
        tenant: str | None = None,
        session: str | None = None,
        user: str | None = None,
        kinds: Sequence[str] = (),
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        limit: int | None = None,
    ) -> EventPage:
        """Return a page of past events. Its `next`, if any, is the `after` of the following page."""
        query = _query(after, tenant, session, user, kinds, since, until, limit)
        target = with_query("/v1/events", **query, order=order)
        return await self._ask(EventPage, json_request("GET", target, headers={"accept": "application/json"}))


def _query(
    after: int | None,
    tenant: str | None,
    session: str | None,
    user: str | None,
    kinds: Sequence[str],
    since: datetime | str | None,
    until: datetime | str | None,
    limit: int | None,
) -> dict[str, Any]:
    return {
        "after": after,
        "tenant": tenant,
        "session": session,
        "user": user,
        "kind": list(kinds) or None,
        "since": since.isoformat() if isinstance(since, datetime) else since,
        "until": until.isoformat() if isinstance(until, datetime) else until,
        "limit": limit,
    }
