"""The tools of an agent: one file each, found by listing this package.

A tool is a module with `name`, `description`, `Arguments` (its fields become the JSON schema) and
`async def run(context, arguments)`. A tool that writes memory also defines `writes_memory(arguments)`, which returns
whether a call does. To add a tool, add a file: no other module lists the names.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memo.errors import MemoError
from sandboxd.errors import (
    ContextBusy,
    ContextFailed,
    ContextUnsupported,
    FileError,
    FileNotFound,
    InvalidRequest,
    LimitReached,
    NotFound,
    OutsideSandbox,
    StoreUnavailable,
)
from sandboxd.models.tool import ToolDescription, ToolResult
from sandboxd.tools.context import ToolArguments, ToolContext

_SUPPORT = frozenset({"context", "commands", "processes", "run_result", "memory", "checklist"})
"""Modules of this package that are not tools."""
_FOR_THE_MODEL = (
    *(NotFound, InvalidRequest, OutsideSandbox, LimitReached, FileError, MemoError, StoreUnavailable),
    *(ContextBusy, ContextFailed, ContextUnsupported),
)

__all__ = ["Tool", "Toolbox", "run_tool"]


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    arguments: type[ToolArguments]
    run: Callable[[ToolContext, Any], Awaitable[ToolResult]]
    writes_memory: Callable[[Any], bool]
    """Return whether a call with these arguments only writes memory: the store then recognises a retry."""

    def describe(self) -> ToolDescription:
        schema = self.arguments.model_json_schema()
        schema.pop("description", None)  # the docstring of the base class, which is not for models
        return ToolDescription(name=self.name, description=self.description, input_schema=schema)


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
                writes_memory = getattr(module, "writes_memory", _writes_none)
                tool = Tool(module.name, module.description, module.Arguments, module.run, writes_memory)
            except AttributeError as error:
                raise TypeError(f"cannot use {module.__name__} as a tool: {error}") from None
            if tool.name in tools:
                raise TypeError(f"cannot use {module.__name__} as a tool: the name {tool.name} is taken")
            tools[tool.name] = tool
        return cls(tools)


def _writes_none(_: Any) -> bool:
    return False


async def run_tool(tool: Tool, context: ToolContext, arguments: ToolArguments) -> ToolResult:
    """Run a tool; return errors that the model can act on as results, and raise those of the sandbox itself."""
    try:
        return await tool.run(context, arguments)
    except _FOR_THE_MODEL as error:
        advice = "; list the files with Glob or Bash" if isinstance(error, FileNotFound) else ""
        return ToolResult(ok=False, content=f"{error}{advice}", details={"code": error.code})
