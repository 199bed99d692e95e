"""llm-sandbox on docker: a new session, or one from its pool of reused containers."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import docker
from anyio import to_thread
from llm_sandbox import SandboxSession
from llm_sandbox.pool import PoolConfig, PooledSandboxSession, create_pool_manager

from benchmarks.peers import CommandFailed, NothingBeforehand, Options, Peer
from benchmarks.peers.plain_container import labels_of

_CONNECTIONS = 40
_POOL = 10
_ROOT = "/workspace"


class Opened:
    root = _ROOT

    def __init__(self, inner: Any, scratch: Path) -> None:
        self._inner = inner
        self._scratch = scratch
        session = getattr(inner, "backend_session", inner)
        self.container = str(session.container.id)

    async def run(self, command: Sequence[str]) -> str:
        done = await to_thread.run_sync(self._inner.execute_command, shlex.join(command))
        if done.exit_code != 0:
            raise CommandFailed(f"{command[0]}: {done.stderr[-200:]}")
        return str(done.stdout)

    async def write(self, path: str, content: bytes) -> None:
        self._scratch.write_bytes(content)
        await to_thread.run_sync(self._inner.copy_to_runtime, str(self._scratch), path)

    async def read(self, path: str) -> bytes:
        await to_thread.run_sync(self._inner.copy_from_runtime, path, str(self._scratch))
        return self._scratch.read_bytes()

    async def close(self) -> None:
        await to_thread.run_sync(self._inner.close)


class LlmSandbox(NothingBeforehand):
    def __init__(self, client: Any, options: Options, pool: Any) -> None:
        self._client = client
        self._options = options
        self._pool = pool

    def _open(self) -> Any:
        session: Any
        if self._pool is not None:
            session = PooledSandboxSession(pool_manager=self._pool, workdir=_ROOT)
        else:
            session = SandboxSession(
                client=self._client,
                image=self._options.image,
                lang="python",
                workdir=_ROOT,
                keep_template=True,  # otherwise it may remove the image, which is needed again
                skip_environment_setup=True,  # its own setup installs packages, which no other contender does
                runtime_configs=_containers(self._options),
            )
        session.open()
        return session

    async def open(self, name: str) -> Opened:
        return Opened(await to_thread.run_sync(self._open), self._options.directory / name)


def _containers(options: Options) -> dict[str, Any]:
    # Its containers ignore SIGTERM, so it waits ten seconds for each one it stops. That time is never measured.
    return {"network_mode": "none", "stop_signal": "SIGKILL", "labels": labels_of(options)}


def _start_pool(client: Any, options: Options) -> Any:
    return create_pool_manager(
        client=client,
        config=PoolConfig(max_pool_size=_POOL, min_pool_size=_POOL),
        lang="python",
        image=options.image,
        workdir=_ROOT,
        keep_template=True,
        skip_environment_setup=True,
        runtime_configs=_containers(options),
    )


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    client = docker.from_env(timeout=120, max_pool_size=_CONNECTIONS)
    pool = await to_thread.run_sync(_start_pool, client, options) if options.pooled else None
    try:
        yield LlmSandbox(client, options, pool)
    finally:
        if pool is not None:
            await to_thread.run_sync(pool.close)
        client.close()
