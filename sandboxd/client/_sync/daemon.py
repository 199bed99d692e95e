# Generated from sandboxd/client/_async/daemon.py by scripts/unasync.py; change that file and run `make client`.
"""Calls on the daemon itself: health, metrics, garbage collection and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandboxd.client._sync.calls import Calls
from sandboxd.client.errors import malformed_answers
from sandboxd.client.request import CREATE_S, json_request, with_query
from sandboxd.client.sse import EVENT_STREAM
from sandboxd.client.streams import Stream
from sandboxd.models.event import Event


class DaemonCalls(Calls):
    def health(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._ask_json(json_request("GET", "/healthz"))
        return found

    def ready(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._ask_json(json_request("GET", "/readyz"))
        return found

    def metrics(self) -> str:
        """Return the daemon's metrics as Prometheus text."""
        return self._ask_text(json_request("GET", "/metrics"))

    def collect_garbage(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._ask_json(json_request("POST", "/v1/gc", timeout_s=CREATE_S))
        return found

    def events(self, after: int | None = None, *, follow: bool = True) -> Stream[Event]:
        """Yield events from now on or after an id. Without `follow`, only past events."""
        target = with_query("/v1/events", after=after, follow=None if follow else "false")
        with self._events(json_request("GET", target, headers=EVENT_STREAM, timeout_s=60.0)) as events:
            for _, data in events:
                with malformed_answers():
                    event = Event.model_validate_json(data)
                yield event
