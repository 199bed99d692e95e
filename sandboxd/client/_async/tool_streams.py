"""Tool calls that show their output while they run, and that can be cancelled by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from sandboxd.client._async.calls import AsyncCalls
from sandboxd.client._async.tools import tool_segment
from sandboxd.client.errors import AnswerLost, malformed_answers, rebuild
from sandboxd.client.request import SHORT_S, json_request
from sandboxd.client.sse import EVENT_STREAM
from sandboxd.client.streams import AsyncStream
from sandboxd.models.tool import ToolResult

_SILENT_S = 60.0
"""The daemon sends something at least every 15 s."""


class AsyncToolStreamCalls(AsyncCalls):
    async def tool_stream(
        self,
        session: str,
        name: str,
        arguments: Mapping[str, Any],
        *,
        call_id: str | None = None,
        tenant: str | None = None,
    ) -> AsyncStream[str | ToolResult]:
        """Call a tool and yield the newest output of its command while it runs, then its result.

        The output is for people who wait: some may be missing, and the result contains all that the model gets.
        `call_id` is a name of your choice for `cancel_call`.
        """
        target = f"{self._session_path(session, tenant)}/tools/{tool_segment(name)}"
        headers = {**EVENT_STREAM, **({} if call_id is None else {"x-call-id": call_id})}
        request = json_request("POST", target, arguments, headers=headers, timeout_s=_SILENT_S)
        item: str | ToolResult | None = None
        async with self._events(request) as events:
            async for kind, data in events:
                item = _parse_item(kind, data)
                if item is not None:
                    yield item
        if not isinstance(item, ToolResult):
            raise AnswerLost("cannot tell the outcome: the stream ended before the tool did")

    async def cancel_call(self, session: str, call_id: str, *, tenant: str | None = None) -> None:
        """Cancel a call by its id; return once it has ended and the processes that it started are killed."""
        target = f"{self._session_path(session, tenant)}/calls/{quote(call_id, safe='')}"
        await self._send(json_request("DELETE", target, timeout_s=SHORT_S, is_idempotent=True))


def _parse_item(kind: str, data: str) -> str | ToolResult | None:
    """Parse one event of a tool call; None for kinds that are ignored."""
    with malformed_answers():
        fields = json.loads(data)
        if kind == "output":
            return str(fields["data"])
        if kind == "result":
            return ToolResult.model_validate(fields)
    if kind == "error":
        raise rebuild(fields if isinstance(fields, dict) else {})
    return None
