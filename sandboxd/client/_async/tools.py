"""Tool calls; and the tools of a `Sandbox`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, overload

from sandboxd.client._async.calls import AsyncCalls, AsyncSandboxPart
from sandboxd.client.request import MAX_WORK_S, json_request, timeout_for, with_query
from sandboxd.models.command import DEFAULT_TIMEOUT_S
from sandboxd.models.tool import FormattedToolList, ToolDescription, ToolFormat, ToolList, ToolResult


class AsyncToolCalls(AsyncCalls):
    async def tool(
        self,
        session: str,
        name: str,
        arguments: Mapping[str, Any],
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> ToolResult:
        """Call a tool. A model's mistake is a result that is not `ok`, not an error."""
        target = f"{self._session_path(session, tenant)}/tools/{tool_segment(name)}"
        timeout_s = timeout_for(_work_s(arguments))
        request = json_request("POST", target, arguments, key=idempotency_key, timeout_s=timeout_s)
        return await self._ask(ToolResult, request)

    @overload
    async def tools(self, session: str, *, tenant: str | None = None, format: None = None) -> list[ToolDescription]: ...

    @overload
    async def tools(self, session: str, *, tenant: str | None = None, format: ToolFormat) -> list[dict[str, Any]]: ...

    async def tools(
        self, session: str, *, tenant: str | None = None, format: ToolFormat | None = None
    ) -> list[ToolDescription] | list[dict[str, Any]]:
        """Return every tool with the JSON schema of its arguments; with `format`, as the API of that name takes it."""
        request = json_request("GET", with_query(f"{self._session_path(session, tenant)}/tools", format=format))
        if format is None:
            return (await self._ask(ToolList, request)).items
        return (await self._ask(FormattedToolList, request)).items


class AsyncSandboxTools(AsyncSandboxPart[AsyncToolCalls]):
    """The tools that an agent calls in a sandbox."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool. A model's mistake is a result that is not `ok`, not an error."""
        return await self._calls.tool(self._session, name, arguments, tenant=self._tenant)

    @overload
    async def schemas(self, format: None = None) -> list[ToolDescription]: ...

    @overload
    async def schemas(self, format: ToolFormat) -> list[dict[str, Any]]: ...

    async def schemas(self, format: ToolFormat | None = None) -> list[ToolDescription] | list[dict[str, Any]]:
        """Return every tool with the JSON schema of its arguments; with `format`, as the API of that name takes it."""
        if format is None:
            return await self._calls.tools(self._session, tenant=self._tenant)
        return await self._calls.tools(self._session, tenant=self._tenant, format=format)


def tool_segment(name: str) -> str:
    """Return a name as a part of a path. No tool's name has a hyphen, so that a made-up name stays unknown."""
    segment = re.sub(r"[^A-Za-z0-9_.]", "-", name[:100])
    return segment if segment.strip(".") else "-"


def _work_s(arguments: Mapping[str, Any]) -> float:
    """Return how long the call may work. A model may have given any timeout, even one too large for a float."""
    asked = arguments.get("timeout", arguments.get("timeout_ms"))
    if isinstance(asked, str) and re.fullmatch(r"\s*\d{1,15}\s*", asked, re.ASCII):
        asked = int(asked)
    is_valid = isinstance(asked, int | float) and 0 <= asked <= MAX_WORK_S * 1000
    return asked / 1000 if is_valid else DEFAULT_TIMEOUT_S
