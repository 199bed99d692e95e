"""sandboxd through its HTTP API and its own client, as a user would call it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio import to_thread

from benchmarks.peers import Absent, CommandFailed, Options, Peer
from benchmarks.unix_http import metrics
from sandboxd.client import AsyncClient

ARTIFACTS = 100
ARTIFACT = "a result of some length that was kept, line after line\n" * 150
DOCUMENT = "# Notes\n\n" + "- something worth remembering\n" * 40
USER = "bench"
POOL = 4
_AT_ONCE = 8
_SETTLE_S = 30


class Sandbox:
    root = "/workspace"

    def __init__(self, api: AsyncClient, name: str, container: str | None) -> None:
        self._api = api
        self._name = name
        self.container = container

    async def run(self, command: Sequence[str]) -> str:
        done = await self._api.exec(self._name, command)
        if done.exit_code != 0:
            raise CommandFailed(f"{command[0]}: {done.stderr[-200:]}")
        return done.stdout

    async def write(self, path: str, content: bytes) -> None:
        await self._api.write_file(self._name, path, content)

    async def read(self, path: str) -> bytes:
        return await self._api.read_file(self._name, path)

    async def _tool(self, name: str, **arguments: str) -> None:
        done = await self._api.tool(self._name, name, arguments)
        if not done.ok:
            raise CommandFailed(f"{name}: {done.content[:200]}")

    async def edit(self, path: str, old: str, new: str) -> None:
        await self._tool("Edit", file_path=path, old_string=old, new_string=new)

    async def grep(self, pattern: str, path: str) -> None:
        await self._tool("Grep", pattern=pattern, path=path)

    async def glob(self, pattern: str, path: str) -> None:
        await self._tool("Glob", pattern=pattern, path=path)

    async def close(self) -> None:
        await self._api.destroy_sandbox(self._name)


class Daemon:
    def __init__(self, api: AsyncClient, socket: Path, *, pooled: bool) -> None:
        self._api = api
        self._socket = socket
        self._pooled = pooled

    async def prepare(self, name: str) -> None:
        """Three documents and a hundred artifacts of 8 KB, as in a session of some age."""
        await self.write_documents(name)
        numbers = iter(range(ARTIFACTS))

        async def keep() -> None:
            for number in numbers:
                await self._api.write_artifact(name, f"call{number}", f"{name} {number} {ARTIFACT}"[:8192])

        async with anyio.create_task_group() as tasks:
            for _ in range(_AT_ONCE):
                tasks.start_soon(keep)
        await self.settle()

    async def write_documents(self, name: str) -> None:
        await self._api.ensure_session(name, USER)
        for document in ("NOTES.md", "TODO.md"):
            await self._api.write_memo(name, document, DOCUMENT)
        await self._api.write_memo(USER, "USER.md", DOCUMENT, scope="user")

    async def settle(self) -> None:
        """Wait until the pool is full again, by polling: the library has no event for it."""
        if not self._pooled:
            return
        with anyio.move_on_after(_SETTLE_S):
            while (await to_thread.run_sync(metrics, self._socket)).get("sandboxd_pool_ready", POOL) < POOL:
                await anyio.sleep(0.05)

    async def open(self, name: str) -> Sandbox:
        made = await self._api.ensure_sandbox(name, USER)
        if self._pooled and not made.from_pool:
            await self._api.destroy_sandbox(name)
            raise Absent("no pool yet: the sandbox was created cold")
        return Sandbox(self._api, name, made.container)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    if options.socket is None:
        raise Absent("no daemon was started for it")
    async with AsyncClient(options.socket, tenant="bench") as api:
        yield Daemon(api, options.socket, pooled=options.pooled)
