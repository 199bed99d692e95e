"""The docker command line: one `docker run`, then `docker exec` for each command and `docker cp` for each file."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import to_thread

from benchmarks.peers import CommandFailed, NothingBeforehand, Options, Peer
from benchmarks.peers.plain_container import RUN_FLAGS


async def _docker(*arguments: str) -> str:
    done = await to_thread.run_sync(
        lambda: subprocess.run(["docker", *arguments], capture_output=True, stdin=subprocess.DEVNULL)
    )
    if done.returncode != 0:
        raise CommandFailed(f"docker {arguments[0]}: {done.stderr.decode()[-200:]}")
    return done.stdout.decode()


class Container:
    root = "/workspace"

    def __init__(self, container: str, scratch: Path) -> None:
        self.container = container
        self._scratch = scratch

    async def run(self, command: Sequence[str]) -> str:
        return await _docker("exec", self.container, *command)

    async def write(self, path: str, content: bytes) -> None:
        self._scratch.write_bytes(content)
        await _docker("cp", str(self._scratch), f"{self.container}:{path}")

    async def read(self, path: str) -> bytes:
        await _docker("cp", f"{self.container}:{path}", str(self._scratch))
        return self._scratch.read_bytes()

    async def close(self) -> None:
        await _docker("rm", "-f", self.container)


class Cli(NothingBeforehand):
    def __init__(self, options: Options) -> None:
        self._options = options

    async def open(self, name: str) -> Container:
        container = await _docker(
            "run", "-d", *RUN_FLAGS, "--label", self._options.label, self._options.image, "sleep", "infinity"
        )
        return Container(container.strip(), self._options.directory / name)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    yield Cli(options)
