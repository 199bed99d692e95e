"""Tools that an executor can call, by name. A turn begins with those of its runner; who fetches more adds them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from memo.errors import Absent, InvalidContent


@dataclass(frozen=True, slots=True)
class Tool:
    """`handler(ctx, args)` does the work; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    handler: Callable[[Any, Mapping[str, Any]], Awaitable[Any]]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_artifact_tool: bool = False


class ToolRegistry:
    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Add a tool; one of the same name is replaced."""
        if not isinstance(tool.name, str) or not tool.name:
            raise InvalidContent("cannot add this tool: it has no name")
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool:
        try:
            return self._tools[name]
        except KeyError:
            raise Absent(f"cannot find tool {name}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(list(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)
