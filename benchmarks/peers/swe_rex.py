"""swe-rex: its docker deployment, with its server in the image, and its own client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from swerex.deployment.docker import DockerDeployment
from swerex.runtime.abstract import Command, ReadFileRequest, WriteFileRequest

from benchmarks.peers import Absent, CommandFailed, NothingBeforehand, Options, Peer

IMAGE_VARIABLE = "BENCH_SWE_REX_IMAGE"


class Deployed:
    root = "/workspace"

    def __init__(self, deployment: Any) -> None:
        self._deployment = deployment
        self._runtime = deployment.runtime
        self.container = str(deployment.container_name)

    async def run(self, command: Sequence[str]) -> str:
        done = await self._runtime.execute(Command(command=list(command), shell=False))
        if done.exit_code != 0:
            raise CommandFailed(f"{command[0]}: {done.stderr[-200:]}")
        return str(done.stdout)

    async def write(self, path: str, content: bytes) -> None:
        await self._runtime.write_file(WriteFileRequest(path=path, content=content.decode()))

    async def read(self, path: str) -> bytes:
        return str((await self._runtime.read_file(ReadFileRequest(path=path))).content).encode()

    async def close(self) -> None:
        await self._deployment.stop()


class SweRex(NothingBeforehand):
    def __init__(self, image: str, label: str) -> None:
        self._image = image
        self._label = label

    async def open(self, name: str) -> Deployed:
        deployment = DockerDeployment(
            image=self._image, pull="never", startup_timeout=60, docker_args=["--label", self._label]
        )
        await deployment.start()
        return Deployed(deployment)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    image = os.environ.get(IMAGE_VARIABLE)
    if not image:
        raise Absent("there is no image with its server")
    yield SweRex(image, options.label)
