"""The bare system call on the host, without any sandbox: the lower bound of every figure, and the baseline."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.peers import CommandFailed, NothingBeforehand, Options, Peer


class Spawned:
    """`posix_spawn` and `waitpid`, and nothing around them: it blocks, so it serves one client."""

    container = None

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    async def run(self, command: Sequence[str]) -> str:
        pid = os.posix_spawn(f"/bin/{command[0]}", list(command), {})
        if os.waitpid(pid, 0)[1] != 0:
            raise CommandFailed(command[0])
        return ""

    async def write(self, path: str, content: bytes) -> None:
        Path(path).write_bytes(content)

    async def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    async def close(self) -> None:
        shutil.rmtree(self.root)


class Host(NothingBeforehand):
    """Sessions that are directories on the host."""

    def __init__(self, directory: Path, kind: type[Spawned]) -> None:
        self._directory = directory
        self._kind = kind

    async def open(self, name: str) -> Spawned:
        root = self._directory / name
        root.mkdir()
        return self._kind(root)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    yield Host(options.directory, Spawned)
