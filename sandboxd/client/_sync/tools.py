# Generated from sandboxd/client/_async/tools.py by scripts/unasync.py; change that file and run `make client`.
"""Tool calls; and the tools of a `Sandbox`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from sandboxd.client._sync.calls import Calls, SandboxPart
from sandboxd.client.request import MAX_WORK_S, json_request, timeout_for
from sandboxd.models.command import DEFAULT_TIMEOUT_S
from sandboxd.models.tool import ToolDescription, ToolList, ToolResult


class ToolCalls(Calls):
    def tool(
        self,
        session: str,
        name: str,
        arguments: Mapping[str, Any],
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> ToolResult:
        asked = arguments.get("timeout")
        # A model may have given any number, even one that is too large for a float.
        is_valid = isinstance(asked, int | float) and 0 <= asked <= MAX_WORK_S * 1000
        work_s = arguments["timeout"] / 1000 if is_valid else DEFAULT_TIMEOUT_S
        target = f"{self._session_path(session, tenant)}/tools/{quote(name, safe='')}"
        request = json_request("POST", target, arguments, key=idempotency_key, timeout_s=timeout_for(work_s))
        return self._ask(ToolResult, request)

    def tools(self, session: str, *, tenant: str | None = None) -> list[ToolDescription]:
        return (self._ask(ToolList, json_request("GET", f"{self._session_path(session, tenant)}/tools"))).items


class SandboxTools(SandboxPart[ToolCalls]):
    """The tools that an agent calls in a sandbox."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool. A model's mistake is a result that is not `ok`, not an error."""
        return self._calls.tool(self._session, name, arguments, tenant=self._tenant)

    def schemas(self) -> list[ToolDescription]:
        """Return every tool with its description and the JSON schema of its arguments."""
        return self._calls.tools(self._session, tenant=self._tenant)
