"""The engine's HTTP API with nothing in between: two requests per command, and one for its exit code."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from anyio import to_thread

from benchmarks import unix_http
from benchmarks.peers import Absent, CommandFailed, NothingBeforehand, Options, Peer
from benchmarks.peers.plain_container import content_of, labels_of, tar_of

_HEADER = struct.Struct(">BxxxL")


def engine_socket() -> Path:
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not address.startswith("unix://"):
        raise Absent(f"the engine is not on a unix socket but behind {address.partition(':')[0]}")
    return Path(address.removeprefix("unix://"))


def call(verb: str, target: str, body: object = None) -> bytes:
    if isinstance(body, bytes):
        return unix_http.call(engine_socket(), verb, target, body, "application/x-tar")
    return unix_http.call(engine_socket(), verb, target, None if body is None else json.dumps(body).encode())


def unpack(stream: bytes) -> str:
    """Return the output from the engine's frames, each of which has a header of eight bytes."""
    pieces, at = [], 0
    while at < len(stream):
        _, size = _HEADER.unpack_from(stream, at)
        pieces.append(stream[at + _HEADER.size : at + _HEADER.size + size])
        at += _HEADER.size + size
    return b"".join(pieces).decode()


class Container:
    root = "/workspace"

    def __init__(self, container: str) -> None:
        self.container = container

    def _run(self, command: Sequence[str]) -> str:
        wanted = {"Cmd": list(command), "AttachStdout": True, "AttachStderr": True}
        made = json.loads(call("POST", f"/containers/{self.container}/exec", wanted))["Id"]
        output = unpack(call("POST", f"/exec/{made}/start", {"Detach": False, "Tty": False}))
        if json.loads(call("GET", f"/exec/{made}/json"))["ExitCode"] != 0:
            raise CommandFailed(f"{command[0]}: {output[-200:]}")
        return output

    async def run(self, command: Sequence[str]) -> str:
        return await to_thread.run_sync(self._run, command)

    async def write(self, path: str, content: bytes) -> None:
        place = PurePosixPath(path)
        target = f"/containers/{self.container}/archive?path={quote(str(place.parent))}"
        await to_thread.run_sync(call, "PUT", target, tar_of(place.name, content))

    async def read(self, path: str) -> bytes:
        target = f"/containers/{self.container}/archive?path={quote(path)}"
        return content_of(await to_thread.run_sync(call, "GET", target))

    async def close(self) -> None:
        await to_thread.run_sync(call, "DELETE", f"/containers/{self.container}?force=1")


class Raw(NothingBeforehand):
    def __init__(self, options: Options) -> None:
        self._options = options

    def _open(self) -> Container:
        wanted = {
            "Image": self._options.image,
            "Labels": labels_of(self._options),
            "Cmd": ["sleep", "infinity"],
            "HostConfig": {"NetworkMode": "none", "Init": True},
        }
        made = json.loads(call("POST", "/containers/create", wanted))["Id"]
        call("POST", f"/containers/{made}/start")
        return Container(made)

    async def open(self, name: str) -> Container:
        return await to_thread.run_sync(self._open)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    yield Raw(options)
