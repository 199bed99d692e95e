"""The tools of an agent: one file each, found by listing this package.

A tool is a module with `name`, `description`, `Arguments` (its fields become the JSON schema) and
`async def run(context, arguments)`. Optional are `hints` (a ToolHints), and for a tool that writes memory
`writes_memory(arguments)`, which returns whether a call does. To add a tool, add a file: no other module lists the
names.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from sandboxd.errors import OutsideSandbox, SandboxNotFound, SessionNotFound
from sandboxd.models.tool import ToolDescription, ToolFormat, ToolResult
from sandboxd.tools.arguments import ArgumentNotes, ToolArguments
from sandboxd.tools.context import ToolContext
from sandboxd.tools.formats import ToolHints, input_schema, render_tool
from sandboxd.tools.mistakes import FOR_THE_MODEL, add_notes, bad_arguments, from_error, not_an_object, unknown_tool

_SUPPORT = frozenset(
    {
        *("arguments", "checklist", "commands", "context", "formats", "memory", "missing_files", "mistakes"),
        *("nearest_lines", "processes", "run_result"),
    }
)
"""Modules of this package that are not tools."""
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
"""What every model API accepts; a client replaces any other character, so that a made-up name stays unknown."""

__all__ = ["PreparedCall", "Tool", "ToolHints", "Toolbox", "run_tool"]


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    arguments: type[ToolArguments]
    run: Callable[[ToolContext, Any], Awaitable[ToolResult]]
    writes_memory: Callable[[Any], bool]
    """Return whether a call with these arguments only writes memory: the store then recognises a retry."""
    schema: dict[str, Any]
    """The JSON schema of its arguments, self-contained."""
    hints: ToolHints

    def describe(self) -> ToolDescription:
        return ToolDescription(name=self.name, description=self.description, input_schema=self.schema)

    def render(self, format_: ToolFormat) -> dict[str, Any]:
        """Return the description as an entry of the list of tools that this API takes."""
        return render_tool(self.describe(), self.hints, format_)


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call of a known tool with valid arguments."""

    tool: Tool
    arguments: ToolArguments
    ignored: tuple[str, ...] = ()
    """Names that the model gave and the tool does not take."""

    @property
    def writes_memory(self) -> bool:
        return self.tool.writes_memory(self.arguments)

    async def run(self, context: ToolContext) -> ToolResult:
        return add_notes(await run_tool(self.tool, context, self.arguments), self.tool.name, self.ignored)


class Toolbox(Mapping[str, Tool]):
    """Tools by name."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = dict(tools)

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    @classmethod
    def discover(cls) -> Toolbox:
        """Import every tool of this package; raise TypeError for a module that is not a complete tool."""
        tools: dict[str, Tool] = {}
        for found in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
            if found.name in _SUPPORT:
                continue
            module = importlib.import_module(f"{__name__}.{found.name}")
            try:
                tool = Tool(
                    module.name,
                    module.description,
                    module.Arguments,
                    module.run,
                    getattr(module, "writes_memory", _writes_none),
                    input_schema(module.Arguments),
                    getattr(module, "hints", ToolHints()),
                )
            except AttributeError as error:
                raise TypeError(f"cannot use {module.__name__} as a tool: {error}") from None
            if not _NAME.fullmatch(tool.name):
                raise TypeError(f"cannot use {module.__name__} as a tool: its name must match {_NAME.pattern}")
            if tool.name in tools:
                raise TypeError(f"cannot use {module.__name__} as a tool: the name {tool.name} is taken")
            tools[tool.name] = tool
        return cls(tools)

    def prepare(self, name: str, arguments: Mapping[str, Any] | str) -> PreparedCall | ToolResult:
        """Check a model's call: return it ready to run, or the result that says what is wrong with it.

        The arguments are an object, or its JSON text as some APIs deliver it.
        """
        tool = self._tools.get(name)
        if tool is None:
            return unknown_tool(name, self._tools)
        if isinstance(arguments, str):
            try:
                arguments = from_json(arguments or "{}")
            except ValueError:
                return not_an_object(name, tool.schema)
        if not isinstance(arguments, Mapping):
            return not_an_object(name, tool.schema)
        notes = ArgumentNotes(ignores_unknown=tool.hints.read_only)
        try:
            parsed = tool.arguments.model_validate(arguments, context=notes)
        except ValidationError as error:
            return bad_arguments(name, tool.schema, error)
        except OutsideSandbox as error:
            return from_error(error)
        return PreparedCall(tool, parsed, tuple(notes.ignored))

    async def call(self, name: str, arguments: Mapping[str, Any] | str, context: ToolContext) -> ToolResult:
        """Call a tool as a model does. A model's mistake is a result; only errors of the sandbox itself are raised."""
        prepared = self.prepare(name, arguments)
        return await prepared.run(context) if isinstance(prepared, PreparedCall) else prepared


def _writes_none(_: Any) -> bool:
    return False


async def run_tool(tool: Tool, context: ToolContext, arguments: ToolArguments) -> ToolResult:
    """Run a tool; return errors that the model can act on as results, and raise those of the sandbox itself."""
    try:
        return await tool.run(context, arguments)
    except (SandboxNotFound, SessionNotFound):
        raise
    except FOR_THE_MODEL as error:
        return from_error(error)
