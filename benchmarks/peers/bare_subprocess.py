"""`subprocess.run` on the host, without any sandbox: what a framework without one does."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from anyio import to_thread

from benchmarks.peers import CommandFailed, Options, Peer
from benchmarks.peers.posix_spawn import Host, Spawned


class Subprocess(Spawned):
    async def run(self, command: Sequence[str]) -> str:
        done = await to_thread.run_sync(
            lambda: subprocess.run(command, cwd=self.root, capture_output=True, stdin=subprocess.DEVNULL)
        )
        if done.returncode != 0:
            raise CommandFailed(f"{command[0]}: {done.stderr.decode()[-200:]}")
        return done.stdout.decode()


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    yield Host(options.directory, Subprocess)
