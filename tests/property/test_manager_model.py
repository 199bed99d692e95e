"""The manager against a model, under any order of creates, pauses, destroys, deaths, outages and restarts.

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
ACTS = (
    *("create", "create twice", "recreate", "call", "pause", "resume", "hibernate", "destroy"),
    *("die", "refuse", "outage", "restart", "collect"),
)
RUNNING = ("ready", "paused")


@dataclass
class Model:
    """What each session must have: its files and its state."""

    files: dict[str, set[str]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    def is_running(self, session: str) -> bool:
        return self.states.get(session) in RUNNING

    def refused(self, session: str) -> None:
        """Note that the session's container could not be launched."""
        if session in self.states:
            self.states[session] = "hibernated"


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
        await self._write(session)

    async def recreate(self, session: str) -> None:
        await self.world.create(session, recreate=True)
        await self._write(session)

    async def call(self, session: str) -> None:
        """Call a sandbox, which resumes it unless its container died."""
        if self._model.states.get(session) in ("ready", "paused", "hibernated"):
            await self._write(session)

    async def pause(self, session: str) -> None:
        if self._model.is_running(session):
            await self.world.manager.pause(SessionRef.of("acme", session))
            self._model.states[session] = "paused"

    async def resume(self, session: str) -> None:
        if self._model.states.get(session, "gone") != "gone":
            await self.world.manager.resume(SessionRef.of("acme", session))
            self._model.states[session] = "ready"

    async def hibernate(self, session: str) -> None:
        if self._model.is_running(session):
            await self.world.manager.hibernate(SessionRef.of("acme", session))
            self._model.states[session] = "hibernated"

    async def create_twice(self, session: str) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(self.world.create, session)
        await self._write(session)

    async def destroy(self, session: str) -> None:
        is_known = session in self._model.files
        try:
            await self.world.manager.destroy(SessionRef.of("acme", session))
            assert is_known
        except SandboxNotFound:
            assert not is_known
        self._model.files.pop(session, None)
        self._model.states.pop(session, None)

    async def die(self, session: str) -> None:
        if self._model.is_running(session):
            self._table.end(self.world.running_container(session), "oom")
            assert (await self.world.wait_for(session, "gone")).cause == "oom"
            self._model.states[session] = "gone"

    async def refuse(self, session: str) -> None:
        """Request a sandbox while the engine refuses to launch."""
        self._table.refuse_launches(EngineRefused("cannot launch: a test said so"))
        try:
            await self.world.create(session)
            assert self._model.is_running(session)
            self._model.states[session] = "ready"
        except EngineRefused:
            assert not self._model.is_running(session)
            self._model.refused(session)
        self._table.forgive()

    async def outage(self, session: str) -> None:
        """Request a sandbox while the engine does not answer, and let one die unnoticed."""
        self._table.leave()
        if self._model.is_running(session):
            container = self.world.running_container(session)
            self._table.end(container, "killed")
            await self._table.containers[container].ended.wait()
        other = SESSIONS[0] if session == SESSIONS[1] else SESSIONS[1]
        with suppress(EngineUnavailable):
            await self.world.create(other)
        if not self._model.is_running(other):
            self._model.refused(other)
        self._table.come_back()
        if self._model.is_running(session):
            await self.world.wait_for(session, "gone")
            self._model.states[session] = "gone"

    async def restart(self, session: str) -> None:
        await self._stack.aclose()
        await self._open()
        for known, state in self._model.states.items():
            await self.world.wait_for(known, state)

    async def collect(self, session: str) -> None:
        report = await self.world.manager.collect_garbage()
        assert (report.containers, report.directories, report.unclaimed_workspaces) == (0, 0, [])

    async def _write(self, session: str) -> None:
        self._written += 1
        name = f"f{self._written}"
        with await self.world.manager.call(SessionRef.of("acme", session)) as runner:
            assert (await runner.exec(Exec(("touch", name)))).exit_code == 0
        self._model.files.setdefault(session, set()).add(name)
        self._model.states[session] = "ready"

    async def _check(self) -> None:
        """Compare manager, registry, engine and disk with the model, once pending work is done."""
        with anyio.fail_after(HANG_S):
            while self._seen() != self._expected():
                await anyio.sleep(0.01)
        for session in filter(self._model.is_running, self._model.states):
            names = {path.name for path in self.world.workspace(session).iterdir()} - {"memo"}
            assert names == self._model.files[session]

    def _expected(self) -> object:
        states = self._model.states
        running = sum(map(self._model.is_running, states))
        return states, sorted(states.values()), running, len(states), running

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
