"""inspect-ai: its docker sandbox, one compose project per sample."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from inspect_ai._util.error import PrerequisiteError
from inspect_ai.util._sandbox.docker.docker import DockerSandboxEnvironment
from inspect_ai.util._subprocess import init_max_subprocesses

from benchmarks.peers import Absent, CommandFailed, NothingBeforehand, Options, Peer

_TASK = "bench"
_CLIENTS = 40


class Sample:
    root = "/workspace"

    def __init__(self, config: str, environments: dict[str, Any]) -> None:
        self._config = config
        self._environments = environments
        self._inner = environments["default"]
        self.container: str | None = None

    async def run(self, command: Sequence[str]) -> str:
        done = await self._inner.exec(list(command))
        if done.returncode != 0:
            raise CommandFailed(f"{command[0]}: {done.stderr[-200:]}")
        return str(done.stdout)

    async def write(self, path: str, content: bytes) -> None:
        await self._inner.write_file(path, content)

    async def read(self, path: str) -> bytes:
        content: bytes = await self._inner.read_file(path, text=False)
        return content

    async def close(self) -> None:
        await DockerSandboxEnvironment.sample_cleanup(_TASK, self._config, self._environments, False)


class Inspect(NothingBeforehand):
    def __init__(self, config: str) -> None:
        self._config = config

    async def open(self, name: str) -> Sample:
        made = await DockerSandboxEnvironment.sample_init(_TASK, self._config, {})
        sample = Sample(self._config, made)
        sample.container = (await made["default"].connection()).container
        return sample


def _missing() -> str | None:
    """Return what it needs and this host lacks. Its own check stops at the first problem and returns a paragraph."""
    compose = subprocess.run(["docker", "compose", "version", "--short"], capture_output=True, text=True)
    if compose.returncode != 0:
        engine = subprocess.run(["docker", "version", "-f", "{{.Server.Version}}"], capture_output=True, text=True)
        return (
            "it needs docker engine 24.0.6 and the compose plugin 2.21 or newer; "
            f"here are engine {engine.stdout.strip()} and no compose plugin"
        )
    return None


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    if (missing := _missing()) is not None:
        raise Absent(missing)
    config = Path(options.directory) / "compose.yaml"
    config.write_text(
        f"services:\n  default:\n    image: {options.image}\n    x-local: true\n    init: true\n"
        "    command: sleep infinity\n    network_mode: none\n"
    )
    init_max_subprocesses(_CLIENTS)
    try:
        await DockerSandboxEnvironment.task_init(_TASK, str(config))
    except PrerequisiteError as error:
        raise Absent(" ".join(str(error).split())[:300]) from error
    try:
        yield Inspect(str(config))
    finally:
        await DockerSandboxEnvironment.task_cleanup(_TASK, str(config), True)
