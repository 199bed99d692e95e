"""sandboxd again, with texts that another process wrote to the store, so that they are new to the daemon."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from benchmarks.peers import Absent, Options, Peer
from benchmarks.peers.ours import ARTIFACT, ARTIFACTS, Daemon
from memo import ArtifactKey, SessionRef, SQLiteStore
from sandboxd.client import AsyncClient

_TENANT = "bench"


class Unseen(Daemon):
    def __init__(self, api: AsyncClient, socket: Path, store: SQLiteStore) -> None:
        super().__init__(api, socket, pooled=True)
        self._store = store

    async def prepare(self, name: str) -> None:
        await self.write_documents(name)
        ref = SessionRef.of(_TENANT, name)
        async with anyio.create_task_group() as tasks:
            for number in range(ARTIFACTS):
                text = f"{name} {number} {ARTIFACT}"[:8192]
                tasks.start_soon(self._store.write_artifact, ArtifactKey.of(ref, f"call{number}"), text)
        await self.settle()


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    if options.socket is None:
        raise Absent("no daemon was started for it")
    async with (
        AsyncClient(options.socket, tenant=_TENANT) as api,
        SQLiteStore(options.socket.parent / "data" / "memo.db") as store,
    ):
        yield Unseen(api, options.socket, store)
