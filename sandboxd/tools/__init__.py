"""The tools of an agent: one file each, found by listing this package.

A tool is a module with `name`, `description`, `Arguments` (its fields become the JSON schema) and
`async def run(context, arguments)`; one that writes memory also says when, in `writes_memory(arguments)`. Adding a
tool is adding a file; nothing else knows their names.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memo.errors import MemoError
from sandboxd.errors import (
    FileError,
    FileNotFound,
    InvalidRequest,
    LimitReached,
    NotFound,
    OutsideSandbox,
    StoreUnavailable,
)
from sandboxd.tools.context import ToolArguments, ToolContext, ToolResult

_SUPPORT = frozenset({"context", "commands", "memory", "checklist"})
"""Modules here that are not tools."""
_FOR_THE_MODEL = (NotFound, InvalidRequest, OutsideSandbox, LimitReached, FileError, MemoError, StoreUnavailable)


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    arguments: type[ToolArguments]
    run: Callable[[ToolContext, Any], Awaitable[ToolResult]]
    writes_memory: Callable[[Any], bool]
    """Whether a call with these arguments writes memory and nothing else: then the store knows a retry."""

    def describe(self) -> dict[str, Any]:
        schema = self.arguments.model_json_schema()
        schema.pop("description", None)  # the base class's note to programmers
        return {"name": self.name, "description": self.description, "input_schema": schema}


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
        """Import every tool of this package. A module that is not quite a tool is an error at the start."""
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
    """Run a tool. What its model can act on is a result; only trouble with the sandbox itself is raised."""
    try:
        return await tool.run(context, arguments)
    except _FOR_THE_MODEL as error:
        advice = "; Glob or Bash shows what is there" if isinstance(error, FileNotFound) else ""
        return ToolResult(False, f"{error}{advice}", {"code": error.code})
