"""The sandboxes of one fork call: they wait for each other, so that all become ready or none does.

It carries out nothing but the part of each member that differs from an ordinary create. `Forks` takes the steps.
"""

from __future__ import annotations

from pathlib import Path

import anyio

from sandboxd.errors import NotReady, SandboxdError
from sandboxd.sandboxes.sandbox import Sandbox
from sandboxd.sandboxes.workspace_archive import load_archive
from sandboxd.workspace import Workspaces


class Gathering:
    """Waits until a number of members have arrived, or until it is released."""

    def __init__(self, members: int) -> None:
        self._missing = members
        self._complete = anyio.Event()

    def arrive(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self.release()

    def release(self) -> None:
        self._complete.set()

    async def wait(self) -> None:
        await self._complete.wait()


class ForkGroup:
    """The sandboxes of one call, which become ready together or fail together. Each has it as its source."""

    def __init__(self, source: Sandbox, staging: Path, workspaces: Workspaces, members: int) -> None:
        self.source = source
        self.staging = staging
        self.members: list[Sandbox] = []
        self.failure: SandboxdError | None = None
        self.recorded = Gathering(members)
        self.started = Gathering(members)
        self.copied = anyio.Event()
        self.finished = anyio.Event()
        self._workspaces = workspaces
        self._takes_staging = members == 1

    def fail(self, error: SandboxdError) -> None:
        """Let every member fail. The first error is the reason."""
        self.failure = self.failure or error
        for gate in (self.copied, self.finished):
            gate.set()
        self.recorded.release()
        self.started.release()

    def check(self) -> None:
        if self.failure is not None:
            raise NotReady("cannot fork this session: another fork of the same request failed")

    async def fill_workspace(self, sandbox: Sandbox) -> None:
        self.recorded.arrive()
        await self.copied.wait()
        self.check()
        if self._workspaces.kind == "loop":
            await self._workspaces.make_from(sandbox.record.id, self.staging, takes=self._takes_staging)

    async def before_ready(self, sandbox: Sandbox) -> None:
        if self._workspaces.kind != "loop" and sandbox.runner is not None:
            await load_archive(sandbox.runner, self.staging)
        self.started.arrive()
        await self.finished.wait()
        self.check()
