"""A world for tests: the real manager and memory, over a fake engine and a store in memory, on a temporary directory.

Nothing is canned: commands run, files are files, mirrors are written. `serving.py` puts the real API in front of it.
"""

from __future__ import annotations

import atexit
import json
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import anyio

from memo.ids import SessionRef, UserId
from sandboxd.engine.protocol import LABEL_SANDBOX
from sandboxd.memory import Memory
from sandboxd.models.sandbox import SandboxRequest, SandboxView
from sandboxd.sandboxes.manager import SandboxManager
from sandboxd.settings import Settings
from sandboxd.workspace import Workspaces
from tests.world.fake_engine import ContainerTable, FakeEngine

ANN = UserId("ann")
HANG_S = 30


class PlainWorkspaces(Workspaces):
    """Plain directories, even for root: mounting is slow, and not every host allows it."""

    def _probe(self) -> str:
        return "a test asked for them"


@dataclass
class World:
    """A manager and its surroundings."""

    directory: Path
    table: ContainerTable
    manager: SandboxManager
    opened: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def stop(self) -> None:
        """Close the manager, as a daemon that ends does. Containers keep running."""
        await self.opened.aclose()

    @property
    def memory(self) -> Memory:
        assert self.manager.memory is not None, "this world has no store"
        return self.manager.memory

    async def create(self, session: str, user: str = ANN, tenant: str = "acme", **request: Any) -> SandboxView:
        ref = SessionRef.of(tenant, session)
        return await self.manager.ensure_sandbox(ref, SandboxRequest(user=UserId(user), **request))

    def workspace(self, session: str, tenant: str = "acme") -> Path:
        """Return the host's directory that the session's container shows as /workspace."""
        mounts = self.table.containers[self.running_container(session, tenant)].spec.mounts
        return next(mount.source for mount in mounts if mount.target == "/workspace")

    def sandbox_id(self, session: str, tenant: str = "acme") -> str:
        return self.table.containers[self.running_container(session, tenant)].spec.labels[LABEL_SANDBOX]

    def mirror(self, session: str, tenant: str = "acme") -> Path:
        """Return the host's directory that the session's container shows as its memory."""
        mounts = self.table.containers[self.running_container(session, tenant)].spec.mounts
        return next(mount.source for mount in mounts if mount.target == "/workspace/memo")

    async def wait_for(self, session: str, state: str, tenant: str = "acme") -> SandboxView:
        """Wait until the session's sandbox is in this state."""
        ref = SessionRef.of(tenant, session)
        with anyio.fail_after(HANG_S):
            async with self.manager.events.subscribe() as events:
                while (view := self.manager.get(ref)).state != state:
                    await anext(events)
        return view

    def running_container(self, session: str, tenant: str = "acme") -> str:
        container = self.manager.get(SessionRef.of(tenant, session)).container
        assert container is not None
        return container

    async def wait_quiet(self, session: str, tenant: str = "acme") -> None:
        """Wait until no process of a command runs in the session's container."""
        with anyio.fail_after(HANG_S), await self.manager.call(SessionRef.of(tenant, session)) as runner:
            while await runner.has_processes():
                await anyio.sleep(0.02)

    async def wait_busy(self) -> None:
        """Wait until a call is under way."""
        with anyio.fail_after(HANG_S):
            while not self.manager.busy_users():
                await anyio.sleep(0.01)

    def commands(self) -> int:
        """Return how many commands have run to their end."""
        return sum(event.kind == "exec" for event in self.manager.events.recent())

    def running(self) -> list[str]:
        """Return the sandbox ids of the containers that run."""
        specs = [found.spec for found in self.table.containers.values() if found.cause is None]
        return sorted(spec.labels[LABEL_SANDBOX] for spec in specs)

    def registered(self) -> dict[str, str]:
        """Return the state of every sandbox that the registry has on disk, by its id."""
        with closing(sqlite3.connect(self.manager.layout.registry)) as database:
            rows = database.execute("SELECT id, record FROM sandboxes ORDER BY id").fetchall()
        return {sandbox_id: json.loads(record)["state"] for sandbox_id, record in rows}

    def on_disk(self) -> dict[str, list[str]]:
        """Return the sandbox ids that have a directory below the data directory, by its kind."""
        data = self.manager.layout.data
        kinds = ("run", "mirrors", "workspaces")
        found = {kind: sorted(path.name for path in (data / kind).glob("[!.]*")) for kind in kinds}
        return {kind: names for kind, names in found.items() if names}

    def is_empty(self) -> bool:
        """Return whether nothing of any sandbox is left: on the engine, in the registry, on disk."""
        return not (self.table.containers or self.registered() or self.on_disk())


def settings_in(directory: Path, **settings: Any) -> Settings:
    """Return settings of a small world: no pool, and the caches on disk."""
    chosen = {"pool": 0, "cache": "disk", **settings}
    return Settings(data=directory / "data", socket=directory / "daemon.sock", **chosen)


def _share_runner(directory: Path) -> None:
    """Let all worlds of this process share the installed runner: compiling it takes longer than all the rest."""
    if not directory.exists():
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.symlink_to(_runner_directory())


@cache
def _runner_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="sandboxd-test-runner-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


@asynccontextmanager
async def managing(table: ContainerTable, settings: Settings, store: Any = None) -> AsyncIterator[SandboxManager]:
    """Open a manager over the containers of a table, like a daemon that starts on a data directory."""
    manager = SandboxManager(settings, engine=FakeEngine(table), memo_provider=store)
    _share_runner(settings.data / "runner")
    manager._parts.workspaces = PlainWorkspaces(manager.layout.workspaces, uid=settings.uid, gid=settings.gid)
    async with manager:
        yield manager


@asynccontextmanager
async def open_world(directory: Path, *, store: Any = None, **settings: Any) -> AsyncIterator[World]:
    """Open a world; at its end every container is gone."""
    table = ContainerTable(directory / "containers")
    try:
        async with AsyncExitStack() as opened:
            manager = await opened.enter_async_context(managing(table, settings_in(directory, **settings), store))
            yield World(directory, table, manager, opened)
    finally:
        with anyio.CancelScope(shield=True):
            await table.close()
