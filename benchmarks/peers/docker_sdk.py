"""The docker SDK for Python: `exec_run` for every command, archives for every file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Any

import docker
from anyio import to_thread

from benchmarks.peers import CommandFailed, NothingBeforehand, Options, Peer
from benchmarks.peers.plain_container import content_of, labels_of, tar_of

_CONNECTIONS = 40


class Container:
    root = "/workspace"

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.container = str(inner.id)

    async def run(self, command: Sequence[str]) -> str:
        code, output = await to_thread.run_sync(self._inner.exec_run, list(command))
        if code != 0:
            raise CommandFailed(f"{command[0]}: {output.decode()[-200:]}")
        return str(output.decode())

    async def write(self, path: str, content: bytes) -> None:
        place = PurePosixPath(path)
        await to_thread.run_sync(self._inner.put_archive, str(place.parent), tar_of(place.name, content))

    async def read(self, path: str) -> bytes:
        return await to_thread.run_sync(lambda: content_of(b"".join(self._inner.get_archive(path)[0])))

    async def close(self) -> None:
        await to_thread.run_sync(lambda: self._inner.remove(force=True))


class Sdk(NothingBeforehand):
    def __init__(self, client: docker.DockerClient, options: Options) -> None:
        self._client = client
        self._options = options

    async def open(self, name: str) -> Container:
        return Container(
            await to_thread.run_sync(
                lambda: self._client.containers.run(
                    self._options.image,
                    ["sleep", "infinity"],
                    detach=True,
                    init=True,
                    network_mode="none",
                    labels=labels_of(self._options),
                )
            )
        )


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    client = docker.from_env(timeout=120, max_pool_size=_CONNECTIONS)
    try:
        yield Sdk(client, options)
    finally:
        client.close()
