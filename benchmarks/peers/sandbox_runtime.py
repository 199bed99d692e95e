"""Anthropic's sandbox-runtime, used as a library from a persistent Node process, so no figure includes a Node start."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.peers import Absent, CommandFailed, NothingBeforehand, Options, Peer
from benchmarks.peers.by_command import FilesByCommand
from benchmarks.peers.environment import NODE_MODULES

_DRIVER = Path(__file__).with_suffix(".mjs")
_MOST_BYTES = 16_000_000
_START_S = 60
# It binds the whole root of the host, with every mount of every other contender's container in it. To measure it
# without them, it runs in its own mount namespace, from which they are removed.
_ALONE = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    "awk '$5 ~ \"/(docker|containerd|sandboxd-bench-[^/]*/daemon[0-9]*)/\" { print $5 }' /proc/self/mountinfo"
    ' | xargs -r umount -l 2>/dev/null; exec "$@"',
    "sh",
)


class Node:
    """The process that runs the library. Many commands may be in flight; answers carry the number of their command."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)
        self._waiting: dict[int, tuple[anyio.Event, dict[str, Any]]] = {}
        self._number = 0

    async def next_line(self) -> dict[str, Any]:
        line: dict[str, Any] = json.loads(await self._lines.receive_until(b"\n", _MOST_BYTES))
        return line

    async def read_answers(self) -> None:
        while True:
            answer = await self.next_line()
            event, kept = self._waiting.pop(answer["id"])
            kept.update(answer)
            event.set()

    async def run(self, command: Sequence[str], cwd: str) -> str:
        self._number += 1
        event, answer = self._waiting[self._number] = anyio.Event(), {}
        asked = {"id": self._number, "command": shlex.join(command), "cwd": cwd}
        await self._stdin.send(json.dumps(asked).encode() + b"\n")
        await event.wait()
        if answer["code"] != 0:
            raise CommandFailed(f"{command[0]}: {answer['stderr'][-200:]}")
        return str(answer["stdout"])


class Directory(FilesByCommand):
    container = None

    def __init__(self, node: Node, root: Path) -> None:
        self._node = node
        self.root = str(root)

    async def run(self, command: Sequence[str]) -> str:
        return await self._node.run(command, self.root)

    async def close(self) -> None:
        shutil.rmtree(self.root)


class SandboxRuntime(NothingBeforehand):
    def __init__(self, node: Node, directory: Path) -> None:
        self._node = node
        self._directory = directory

    async def open(self, name: str) -> Directory:
        root = self._directory / name
        root.mkdir()
        return Directory(self._node, root)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    if missing := [program for program in ("node", "bwrap", "socat", "rg") if shutil.which(program) is None]:
        raise Absent(f"it needs {', '.join(missing)}, which this host lacks")
    if not (NODE_MODULES / "@anthropic-ai").is_dir():
        raise Absent("its npm package is not installed")
    alone = _ALONE if os.geteuid() == 0 else ()
    command = [*alone, "node", str(_DRIVER), str(NODE_MODULES.parent), str(options.directory)]
    async with (
        await anyio.open_process(command, stderr=None, cwd=options.directory) as process,
        anyio.create_task_group() as tasks,
    ):
        node = Node(process)
        try:
            with anyio.fail_after(_START_S):
                await node.next_line()
        except (anyio.IncompleteRead, TimeoutError):
            raise Absent("its library does not start here; its log says why") from None
        tasks.start_soon(node.read_answers)
        yield SandboxRuntime(node, options.directory)
        tasks.cancel_scope.cancel()
        process.terminate()
