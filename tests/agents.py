"""Agents that share a user's memory: real store, real mirrors, real tools; only the container is missing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memo import SQLiteStore
from memo.documents import DocumentKey
from memo.ids import SessionRef, UserId
from sandboxd.events import EventBus
from sandboxd.memory import Memory
from sandboxd.models.sandbox import SandboxRequest
from sandboxd.models.tool import ToolResult
from sandboxd.runner.calls import TextSlice
from sandboxd.tools import Toolbox, run_tool
from sandboxd.tools.context import ToolContext
from tests.unit.standin import StandInManager, StandInRunner

TOOLBOX = Toolbox.discover()
ANN = UserId("ann")
USER_MD = "/workspace/memo/user/USER.md"
USER_KEY = DocumentKey.of("acme", "ann", "user", "USER.md")


@dataclass
class Inside(StandInRunner):
    """Reads a memo path where a container would: in the session's mirror."""

    root: Path = field(default_factory=Path)

    async def read_text(self, path: str, offset: int = 1, limit: int = 2000) -> TextSlice:
        file = self.root / path.removeprefix("/workspace/memo/")
        if file.is_file():
            self.files[path] = file.read_bytes()
        return await super().read_text(path, offset, limit)


@dataclass
class Agent:
    ref: SessionRef
    memory: Any
    manager: StandInManager
    runner: Inside

    async def call(self, tool: str, request: str | None = None, **arguments: Any) -> ToolResult:
        found = TOOLBOX[tool]
        context = ToolContext(self.ref, self.runner, self.memory, self.manager, request)
        return await run_tool(found, context, found.arguments.model_validate(arguments))

    async def read(self, path: str = USER_MD, **arguments: Any) -> ToolResult:
        return await self.call("Read", file_path=path, **arguments)

    async def write(self, text: str, path: str = USER_MD) -> ToolResult:
        return await self.call("Write", file_path=path, contents=text)

    async def edit(self, old: str, new: str, path: str = USER_MD) -> ToolResult:
        return await self.call("Edit", file_path=path, old_string=old, new_string=new)


@dataclass
class Team:
    """Some agents of one user, each with a sandbox of its own."""

    store: SQLiteStore
    memory: Memory
    agents: list[Agent]

    async def text(self, key: DocumentKey = USER_KEY) -> str | None:
        document = await self.store.read_document(key)
        return None if document is None else document.content


@asynccontextmanager
async def team(directory: Path, count: int = 2, *, store: Any = None, outbox: bool = False) -> AsyncIterator[Team]:
    """Open the memory of `count` agents over SQLite, or over a given provider."""
    manager = StandInManager()
    async with (
        SQLiteStore(directory / "memo.db") as sqlite,
        Memory(directory / "data", store or sqlite, events=EventBus(), outbox=outbox, verify_s=3600) as memory,
    ):
        agents = []
        for number in range(count):
            ref = SessionRef.of("acme", f"s{number}")
            await manager.ensure_sandbox(ref, SandboxRequest(user=ANN))
            agents.append(Agent(ref, memory, manager, Inside(root=await memory.create(ref.session, ref, ANN))))
        yield Team(sqlite, memory, agents)
