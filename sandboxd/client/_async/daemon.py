"""Calls on the daemon itself: health, metrics, garbage collection and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandboxd.client._async.calls import AsyncCalls
from sandboxd.client.errors import malformed_answers
from sandboxd.client.request import CREATE_S, json_request, with_query
from sandboxd.client.sse import EVENT_STREAM
from sandboxd.client.streams import AsyncStream
from sandboxd.models.event import Event


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

    async def events(self, after: int | None = None, *, follow: bool = True) -> AsyncStream[Event]:
        """Yield events from now on or after an id. Without `follow`, only past events."""
        target = with_query("/v1/events", after=after, follow=None if follow else "false")
        async with self._events(json_request("GET", target, headers=EVENT_STREAM, timeout_s=60.0)) as events:
            async for _, data in events:
                with malformed_answers():
                    event = Event.model_validate_json(data)
                yield event
