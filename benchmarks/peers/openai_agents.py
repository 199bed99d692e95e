"""openai-agents: its docker sandbox client."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import docker
from agents.sandbox.sandboxes.docker import DockerSandboxClient, DockerSandboxClientOptions
from agents.tracing import set_tracing_disabled
from anyio import to_thread

from benchmarks.peers import CommandFailed, NothingBeforehand, Options, Peer
from benchmarks.peers.plain_container import labels_of

_CONNECTIONS = 40


class Opened:
    root = "/workspace"

    def __init__(self, client: Any, inner: Any) -> None:
        self._client = client
        self._inner = inner
        self.container = str(inner.state.container_id)

    async def run(self, command: Sequence[str]) -> str:
        done = await self._inner.exec(*command, shell=False)
        if done.exit_code != 0:
            raise CommandFailed(f"{command[0]}: {done.stderr.decode()[-200:]}")
        return str(done.stdout.decode())

    async def write(self, path: str, content: bytes) -> None:
        await self._inner.write(Path(path), io.BytesIO(content))

    async def read(self, path: str) -> bytes:
        content: bytes = (await self._inner.read(Path(path))).read()
        return content

    async def close(self) -> None:
        # Its container ignores SIGTERM, so it waits ten seconds for each one it stops. That time is never measured.
        await to_thread.run_sync(self._client.docker_client.api.kill, self.container)
        await self._inner.aclose()
        await self._client.delete(self._inner)


class OpenaiAgents(NothingBeforehand):
    def __init__(self, client: Any, options: Options) -> None:
        self._client = client
        self._options = options

    async def open(self, name: str) -> Opened:
        session = await self._client.create(
            options=DockerSandboxClientOptions(
                image=self._options.image, network_mode="none", labels=labels_of(self._options)
            )
        )
        await session.start()
        return Opened(self._client, session)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    set_tracing_disabled(True)  # a trace would be sent over the network, which a benchmark must not need
    client = docker.from_env(timeout=120, max_pool_size=_CONNECTIONS)
    try:
        yield OpenaiAgents(DockerSandboxClient(client), options)
    finally:
        client.close()
