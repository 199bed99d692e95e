"""What a tool of the MCP server itself is: memory and sandboxes, in addition to the tools of a sandbox.

It takes a model's arguments and forgives its mistakes like a tool of a sandbox; it works on a session instead of a
runner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from sandboxd.mcp.agent_session import AgentSession
from sandboxd.models.tool import ToolDescription, ToolResult
from sandboxd.tools.arguments import ArgumentNotes, ToolArguments
from sandboxd.tools.formats import ToolHints, input_schema, render_tool
from sandboxd.tools.mistakes import add_notes, bad_arguments


@dataclass(frozen=True, slots=True)
class OwnTool:
    name: str
    description: str
    arguments: type[ToolArguments]
    run: Callable[[AgentSession, Any], Awaitable[ToolResult]]
    hints: ToolHints

    def render(self) -> dict[str, Any]:
        """Return the tool as an entry of MCP's list of tools."""
        schema = input_schema(self.arguments)
        described = ToolDescription(name=self.name, description=self.description, input_schema=schema)
        return render_tool(described, self.hints, "mcp")

    async def call(self, session: AgentSession, arguments: Mapping[str, Any]) -> ToolResult:
        """Call the tool as a model does; wrong arguments are a result."""
        notes = ArgumentNotes(ignores_unknown=self.hints.read_only)
        try:
            parsed = self.arguments.model_validate(arguments, context=notes)
        except ValidationError as error:
            return bad_arguments(self.name, input_schema(self.arguments), error)
        return add_notes(await self.run(session, parsed), self.name, notes.ignored)
