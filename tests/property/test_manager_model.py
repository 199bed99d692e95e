"""The manager against a model, under any order of creates, destroys, deaths, outages and restarts.

Invariant: a session has at most one container, a container belongs to a session that the registry has, and a workspace
keeps its files until its sandbox is destroyed.
"""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from memo.ids import SessionRef
from sandboxd.errors import EngineRefused, EngineUnavailable, SandboxNotFound
from sandboxd.runner.calls import Exec
from tests.long_runs import scaled
from tests.world.fake_engine import ContainerTable
from tests.world.world import HANG_S, World, managing, settings_in

SESSIONS = ("s1", "s2")
ACTS = ("create", "create twice", "destroy", "die", "refuse", "outage", "restart", "collect")


@dataclass
class Model:
    """What each session must have: its files, and whether its container runs."""

    files: dict[str, set[str]] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)


class Run:
    """One sequence of acts, each checked against the model."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._table = ContainerTable(directory / "containers")
        self._stack = AsyncExitStack()
        self._model = Model()
        self._written = 0
        self.world: World

    async def act_all(self, acts: list[tuple[str, str]]) -> None:
        try:
            await self._open()
            for act, session in acts:
                await getattr(self, act.replace(" ", "_"))(session)
                await self._check()
        finally:
            try:
                await self._stack.aclose()
            finally:
                await self._table.close()

    async def _open(self) -> None:
        self._stack = AsyncExitStack()
        opened = managing(self._table, settings_in(self._directory))
        self.world = World(self._directory, self._table, await self._stack.enter_async_context(opened))

    async def create(self, session: str) -> None:
        await self.world.create(session)
        self._model.ready.add(session)
        await self._write(session)

    async def create_twice(self, session: str) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(self.world.create, session)
        self._model.ready.add(session)
        await self._write(session)

    async def destroy(self, session: str) -> None:
        is_known = session in self._model.files
        try:
            await self.world.manager.destroy(SessionRef.of("acme", session))
            assert is_known
        except SandboxNotFound:
            assert not is_known
        self._model.files.pop(session, None)
        self._model.ready.discard(session)

    async def die(self, session: str) -> None:
        if session in self._model.ready:
            self._table.end(self.world.running_container(session), "oom")
            assert (await self.world.wait_for(session, "gone")).cause == "oom"
            self._model.ready.discard(session)

    async def refuse(self, session: str) -> None:
        """Request a sandbox while the engine refuses to launch."""
        self._table.refuse_launches(EngineRefused("cannot launch: a test said so"))
        try:
            await self.world.create(session)
            assert session in self._model.ready
        except EngineRefused:
            assert session not in self._model.ready
        self._table.forgive()

    async def outage(self, session: str) -> None:
        """Request a sandbox while the engine does not answer, and let one die unnoticed."""
        self._table.leave()
        if session in self._model.ready:
            container = self.world.running_container(session)
            self._table.end(container, "killed")
            await self._table.containers[container].ended.wait()
        with suppress(EngineUnavailable):
            await self.world.create(SESSIONS[0] if session == SESSIONS[1] else SESSIONS[1])
        self._table.come_back()
        if session in self._model.ready:
            await self.world.wait_for(session, "gone")
            self._model.ready.discard(session)

    async def restart(self, session: str) -> None:
        await self._stack.aclose()
        await self._open()
        for ready in self._model.ready:
            await self.world.wait_for(ready, "ready")

    async def collect(self, session: str) -> None:
        report = await self.world.manager.collect_garbage()
        assert (report.containers, report.directories, report.unclaimed_workspaces) == (0, 0, [])

    async def _write(self, session: str) -> None:
        self._written += 1
        name = f"f{self._written}"
        with await self.world.manager.call(SessionRef.of("acme", session)) as runner:
            assert (await runner.exec(Exec(("touch", name)))).exit_code == 0
        self._model.files.setdefault(session, set()).add(name)

    async def _check(self) -> None:
        """Compare manager, registry, engine and disk with the model, once pending work is done."""
        with anyio.fail_after(HANG_S):
            while self._seen() != self._expected():
                await anyio.sleep(0.01)
        for session in self._model.ready:
            names = {path.name for path in self.world.workspace(session).iterdir()} - {"memo"}
            assert names == self._model.files[session]

    def _expected(self) -> object:
        states = {s: "ready" if s in self._model.ready else "gone" for s in self._model.files}
        return states, sorted(states.values()), len(self._model.ready), len(states), len(self._model.ready)

    def _seen(self) -> object:
        views = {
            str(view.session): view.state for view in self.world.manager.of_tenant(SessionRef.of("acme", "x").tenant)
        }
        registered, running = self.world.registered(), self.world.running()
        assert len(set(running)) == len(running), "a sandbox has two containers"
        assert set(running) <= set(registered), "a container has no record"
        workspaces = self.world.on_disk().get("workspaces", [])
        return views, sorted(registered.values()), len(running), len(workspaces), len(self._table.containers)


@settings(max_examples=scaled(15, 300), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.sampled_from(SESSIONS)), max_size=12))
def test_a_session_has_at_most_one_container_and_keeps_its_files(acts: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory(prefix="sandboxd-model-") as name:
        anyio.run(Run(Path(name)).act_all, acts, backend_options={"use_uvloop": True})
