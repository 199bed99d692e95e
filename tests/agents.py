"""Agents that share a user's memory: real store, real mirrors, real tools, each in a sandbox of the fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from memo import SQLiteStore
from memo.documents import DocumentKey
from memo.ids import SessionRef, UserId
from sandboxd.memory import Memory
from sandboxd.models.tool import ToolResult
from sandboxd.tools import Toolbox
from sandboxd.tools.context import ToolContext
from tests.world.world import World, open_world

TOOLBOX = Toolbox.discover()
ANN = UserId("ann")
USER_MD = "/workspace/memo/user/USER.md"
USER_KEY = DocumentKey.of("acme", "ann", "user", "USER.md")


@dataclass
class Agent:
    ref: SessionRef
    world: World

    @property
    def memory(self) -> Memory:
        return self.world.memory

    async def call(self, tool: str, request: str | None = None, **arguments: Any) -> ToolResult:
        with await self.world.manager.call(self.ref) as runner:
            context = ToolContext(self.ref, runner, self.memory, self.world.manager, request)
            return await TOOLBOX.call(tool, arguments, context)

    async def read(self, path: str = USER_MD, **arguments: Any) -> ToolResult:
        return await self.call("Read", file_path=path, **arguments)

    async def write(self, text: str, path: str = USER_MD) -> ToolResult:
        return await self.call("Write", file_path=path, contents=text)

    async def edit(self, old: str, new: str, path: str = USER_MD) -> ToolResult:
        return await self.call("Edit", file_path=path, old_string=old, new_string=new)

    async def forget(self) -> None:
        """Forget what this session has seen, as the daemon does when a sandbox ends and is recreated."""
        sandbox_id = self.world.sandbox_id(self.ref.session)
        self.memory.drop(sandbox_id)
        await self.memory.create(sandbox_id, self.ref, ANN)


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
    """Open the sandboxes and the memory of `count` agents over SQLite, or over a given provider."""
    directory.mkdir(parents=True, exist_ok=True)
    async with (
        SQLiteStore(directory / "memo.db") as sqlite,
        open_world(directory, store=store or sqlite, outbox=outbox) as world,
    ):
        refs = [SessionRef.of("acme", f"s{number}") for number in range(count)]
        async with anyio.create_task_group() as tasks:
            for ref in refs:
                tasks.start_soon(world.create, ref.session)
        yield Team(sqlite, world.memory, [Agent(ref, world) for ref in refs])
