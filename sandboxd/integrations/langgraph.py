"""LangGraph: the tools of a sandbox as LangChain tools, for `ToolNode` and every agent that takes such tools.

There is no `BaseStore` over documents: docs/how-to/integrations/langgraph.md says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sandboxd.client import Client, ToolDescription
from sandboxd.integrations.extra import needs_extra

with needs_extra("langgraph"):
    from langchain_core.tools import StructuredTool, ToolException


class _SandboxTool(StructuredTool):
    """A tool that gets its arguments as one value: as keywords, some names that models make up mean something here."""

    def _to_args_and_kwargs(self, tool_input: str | dict[str, Any], tool_call_id: str | None) -> tuple[Any, Any]:
        _, arguments = super()._to_args_and_kwargs(tool_input, tool_call_id)
        return (arguments,), {}


def sandbox_tools(
    client: Client, session: str, *, names: Collection[str] | None = None, tenant: str | None = None
) -> list[StructuredTool]:
    """Return the tools of a session's sandbox, all or those with these names.

    A model's mistake becomes a tool message with the status `error`, which says how to do it right.
    """
    found = client.tools(session, tenant=tenant)
    return [
        _SandboxTool(
            name=tool.name,
            description=tool.description,
            args_schema=_schema(tool),
            func=_caller(client, session, tool.name, tenant),
            handle_tool_error=True,
        )
        for tool in found
        if names is None or tool.name in names
    ]


def _schema(tool: ToolDescription) -> dict[str, Any]:
    return {"title": tool.name, "description": tool.description, **tool.input_schema}


def _caller(client: Client, session: str, name: str, tenant: str | None) -> Callable[..., str]:
    def call(arguments: Mapping[str, Any]) -> str:
        result = client.tool(session, name, arguments, tenant=tenant)
        if not result.ok:
            raise ToolException(result.content)
        return result.content

    return call
