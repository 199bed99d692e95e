# Generated from sandboxd/client/_async/egress.py by scripts/unasync.py; change that file and run `make client`.
"""Egress calls: the record of what a sandbox has reached."""

from __future__ import annotations

from sandboxd.client._sync.calls import Calls
from sandboxd.client.errors import malformed_answers
from sandboxd.client.request import json_request, with_query
from sandboxd.client.sse import EVENT_STREAM
from sandboxd.client.streams import Stream
from sandboxd.models.network import EgressList, EgressRecord


class EgressCalls(Calls):
    def list_egress(self, session: str, since: int = 0, *, tenant: str | None = None) -> EgressList:
        """Return the connections that the sandbox opened, or tried to open, with a greater id than this."""
        target = with_query(f"{self._session_path(session, tenant)}/egress", since=since or None)
        return self._ask(EgressList, json_request("GET", target))

    def follow_egress(self, session: str, since: int = 0, *, tenant: str | None = None) -> Stream[EgressRecord]:
        """Yield those connections, and new ones as they end."""
        target = with_query(f"{self._session_path(session, tenant)}/egress", since=since or None)
        with self._events(json_request("GET", target, headers=EVENT_STREAM, timeout_s=60.0)) as events:
            for _, data in events:
                with malformed_answers():
                    record = EgressRecord.model_validate_json(data)
                yield record
