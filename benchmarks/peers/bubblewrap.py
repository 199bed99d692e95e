"""bubblewrap by hand: every command in its own namespaces, with no process kept between commands."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import to_thread

from benchmarks.peers import Absent, CommandFailed, NothingBeforehand, Options, Peer
from benchmarks.peers.by_command import FilesByCommand

_ROOT = "/tmp"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")


class Bubble(FilesByCommand):
    container = None
    root = _ROOT

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._prefix = [
            *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            # Not the whole root: that would also bind every mount of the other contenders' containers.
            *(part for name in _SYSTEM for part in ("--ro-bind-try", name, name)),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--bind", str(directory), _ROOT, "--chdir", _ROOT),
        ]

    async def run(self, command: Sequence[str]) -> str:
        done = await to_thread.run_sync(
            lambda: subprocess.run([*self._prefix, *command], capture_output=True, stdin=subprocess.DEVNULL)
        )
        if done.returncode != 0:
            raise CommandFailed(f"{command[0]}: {done.stderr.decode()[-200:]}")
        return done.stdout.decode()

    async def close(self) -> None:
        shutil.rmtree(self._directory)


class Bubbles(NothingBeforehand):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def open(self, name: str) -> Bubble:
        directory = self._directory / name
        directory.mkdir()
        return Bubble(directory)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    if shutil.which("bwrap") is None:
        raise Absent("bwrap is not installed")
    yield Bubbles(options.directory)
