"""A fake engine: containers are ordinary processes of the host, without any isolation, and fail when a test asks.

It keeps the contract of `sandboxd/engine/protocol.py`, which `tests/conformance` checks, and needs neither root nor a
container engine. It is part of the tests, not of the daemon: a daemon cannot be started with it by mistake.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel

from sandboxd.engine.protocol import (
    LABEL_INSTANCE,
    Container,
    ContainerDied,
    ContainerPaused,
    ContainerResumed,
    ContainerSpec,
    EngineEvent,
    Finding,
    Resynced,
)
from sandboxd.engine.spec import environment_of
from sandboxd.errors import Cause, EngineRefused, EngineUnavailable, SandboxdError
from sandboxd.image import default_image
from sandboxd.models.sandbox import Stats
from sandboxd.runner.inside.marks import MARK_LIMIT, mark_of
from sandboxd.runner.inside.tree import read_proc
from sandboxd.runner.protocol import RUNNER_COMMAND

NAME = "fake"
ENTRY = Path(__file__).with_name("entry.py")
MARKS = 1 << 20
"""How many marks are reserved for a container's processes, starting with that of its first process."""
_END_S = 30.0
_KILLED = 128 + signal.SIGKILL
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class FakeContainer:
    id: str
    spec: ContainerSpec
    directory: Path
    """Its own directory on the host, for what is not mounted: /tmp."""
    mark: int
    """The first mark of its processes; see `sandboxd/runner/inside/marks.py`."""
    process: subprocess.Popen[bytes] | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    is_paused: bool = False
    ended: anyio.Event = field(default_factory=anyio.Event)

    def describe(self) -> Container:
        is_running = self.cause is None
        return Container(
            id=self.id,
            name=self.spec.name,
            labels=dict(self.spec.labels),
            running=is_running,
            pid=self.process.pid if self.process is not None and is_running else None,
            exit_code=self.exit_code,
            cause=self.cause,
            paused=self.is_paused and is_running,
        )

    def pids(self) -> list[int]:
        """Return its live processes, whichever process is their parent by now."""
        found = []
        for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
            if self.mark <= (mark_of(pid) or 0) < self.mark + MARKS:
                proc = read_proc(pid)
                if proc is not None and proc.is_alive:
                    found.append(pid)
        return found

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            _signal(self.process.pid, number)  # it may not have its mark yet
        for pid in self.pids():
            _signal(pid, number)


class ContainerTable:
    """The containers behind one fake engine and the faults of that engine.

    Engine objects share a table as clients of Docker share its daemon, so a container outlives the object that
    launched it. `close` ends every process.
    """

    def __init__(self, directory: Path) -> None:
        self.images = {default_image(NAME)}
        self.launched: list[ContainerSpec] = []
        """Every requested launch, in order."""
        self.gate: anyio.Event | None = None
        """While set, a launch waits for this event once it has started the container."""
        self.is_away = False
        self.containers: dict[str, FakeContainer] = {}
        self._directory = directory
        self._refusals: deque[SandboxdError] = deque()
        self._streams: list[EventStream] = []

    def leave(self) -> None:
        """Stop answering. Containers keep running, and nothing that happens to them is announced."""
        self.is_away = True

    def come_back(self) -> None:
        """Answer again. As after any attachment, event streams begin with Resynced."""
        self.is_away = False
        self.announce(Resynced())

    def refuse_launches(self, *errors: SandboxdError) -> None:
        """Raise these errors, one for each of the next launches."""
        self._refusals.extend(errors)

    def forgive(self) -> None:
        """Stop refusing launches."""
        self._refusals.clear()

    def end(self, container_id: str, cause: Cause = "killed", exit_code: int = _KILLED) -> None:
        """End a container now, with this cause."""
        container = self.containers[container_id]
        container.cause, container.exit_code = cause, exit_code
        container.signal(signal.SIGKILL)

    def freeze(self, container_id: str, is_frozen: bool = True) -> None:
        """Pause or resume a container."""
        container = self.containers[container_id]
        container.signal(signal.SIGSTOP if is_frozen else signal.SIGCONT)
        container.is_paused = is_frozen
        self.announce(ContainerPaused(container_id) if is_frozen else ContainerResumed(container_id))

    def announce(self, event: EngineEvent) -> None:
        if not self.is_away:
            for stream in self._streams:
                stream.put(event)

    def check(self) -> None:
        if self.is_away:
            raise EngineUnavailable("cannot reach the fake engine: a test stopped it")

    def check_launch(self) -> None:
        if self._refusals:
            raise self._refusals.popleft()

    def attach(self) -> EventStream:
        stream = EventStream()
        self._streams.append(stream)
        if not self.is_away:
            stream.put(Resynced())
        return stream

    def detach(self, stream: EventStream) -> None:
        self._streams.remove(stream)

    def add(self, spec: ContainerSpec) -> FakeContainer:
        container_id = secrets.token_hex(16)
        directory = self._directory / container_id
        (directory / "tmp").mkdir(parents=True)
        container = FakeContainer(container_id, spec, directory, mark=(secrets.randbits(40) + 1) * MARKS)
        self.containers[container_id] = container
        return container

    async def start(self, container: FakeContainer) -> None:
        """Start its first process, and wait until that has become the command."""
        spec = container.spec
        mounts = [(mount.target, str(mount.source)) for mount in spec.mounts]
        status, child_status = os.pipe()
        plan = {
            "command": spec.command,
            "env": dict(spec.env),
            "is_runner": spec.command == RUNNER_COMMAND,
            "limit": MARK_LIMIT,
            "mark": container.mark,
            "marks": MARKS,
            "mounts": [("/tmp", str(container.directory / "tmp")), *mounts],
            "status": child_status,
        }
        try:
            try:
                container.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-B", ENTRY, json.dumps(plan)],
                    cwd="/",
                    env={},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # stderr is the test's own, so that a failed start is explained
                    pass_fds=[child_status],
                    start_new_session=True,
                )
            finally:
                os.close(child_status)
            self._watch(container, container.process)
            await anyio.wait_readable(status)
            reason = os.read(status, 1000).decode()
        finally:
            os.close(status)
        if reason:
            raise EngineRefused(f"cannot launch {spec.name}: {spec.command[0]}: {reason}")

    def _watch(self, container: FakeContainer, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        life = os.pidfd_open(process.pid)

        def died() -> None:
            loop.remove_reader(life)
            os.close(life)
            code = process.wait()
            if container.cause is None:
                container.cause = "killed" if code < 0 else "exited"
                container.exit_code = 128 - code if code < 0 else code
            container.signal(signal.SIGKILL)  # in a container nothing outlives the first process
            container.ended.set()
            self.announce(ContainerDied(container.id, container.cause, container.exit_code))

        loop.add_reader(life, died)

    async def remove(self, container: FakeContainer) -> None:
        if container.process is not None:
            container.signal(signal.SIGKILL)
            with anyio.fail_after(_END_S):
                await container.ended.wait()
        self.containers.pop(container.id, None)
        shutil.rmtree(container.directory, ignore_errors=True)

    async def close(self) -> None:
        """End every container."""
        for container in list(self.containers.values()):
            await self.remove(container)


class EventStream:
    """The events that one reader has not taken yet."""

    def __init__(self) -> None:
        self._events: deque[EngineEvent] = deque()
        self._changed = anyio.Event()

    def put(self, event: EngineEvent) -> None:
        self._events.append(event)
        self._changed.set()

    async def take(self) -> EngineEvent:
        while not self._events:
            self._changed = anyio.Event()
            await self._changed.wait()
        return self._events.popleft()


class FakeEngine:
    """A client of a `ContainerTable`, as the daemon uses it."""

    name = NAME

    def __init__(self, table: ContainerTable) -> None:
        self._table = table

    async def launch(self, spec: ContainerSpec) -> Container:
        await anyio.lowlevel.checkpoint()
        self._table.check()
        self._table.launched.append(spec)
        self._table.check_launch()
        self._check_spec(spec)
        await self._remove_namesake(spec)
        container = self._table.add(spec)
        try:
            await self._table.start(container)
            if self._table.gate is not None:
                await self._table.gate.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._table.remove(container)
            raise
        return container.describe()

    def _check_spec(self, spec: ContainerSpec) -> None:
        if not spec.command:
            raise EngineRefused("cannot launch: the command is empty")
        if spec.uid == 0 or spec.gid == 0:
            raise EngineRefused("cannot launch: a container never runs as root; give another uid and gid")
        environment_of(spec)
        if spec.image not in self._table.images:
            raise EngineRefused(f"cannot launch {spec.name}: there is no image {spec.image}")
        for mount in spec.mounts:
            if not mount.source.is_dir():
                raise EngineRefused(f"cannot launch {spec.name}: there is no directory {mount.source}")

    async def _remove_namesake(self, spec: ContainerSpec) -> None:
        for other in [found for found in self._table.containers.values() if found.spec.name == spec.name]:
            if other.spec.labels.get(LABEL_INSTANCE) != spec.labels.get(LABEL_INSTANCE):
                raise EngineRefused(f"cannot launch {spec.name}: another daemon has a container of that name")
            await self._table.remove(other)

    async def remove(self, container_id: str) -> None:
        await anyio.lowlevel.checkpoint()
        self._table.check()
        if (container := self._table.containers.get(container_id)) is not None:
            await self._table.remove(container)

    async def pause(self, container_id: str) -> None:
        await self._set_paused(container_id, True)

    async def resume(self, container_id: str) -> None:
        await self._set_paused(container_id, False)

    async def _set_paused(self, container_id: str, is_paused: bool) -> None:
        await anyio.lowlevel.checkpoint()
        self._table.check()
        container = self._table.containers.get(container_id)
        if container is None or container.cause is not None:
            raise EngineRefused("cannot pause or resume this container: it does not run")
        if container.is_paused != is_paused:
            self._table.freeze(container_id, is_paused)

    async def inspect(self, container_id: str) -> Container | None:
        await anyio.lowlevel.checkpoint()
        self._table.check()
        container = self._table.containers.get(container_id)
        return None if container is None else container.describe()

    async def find(self, labels: Mapping[str, str]) -> list[Container]:
        await anyio.lowlevel.checkpoint()
        self._table.check()
        wanted = labels.items()
        return [found.describe() for found in self._table.containers.values() if wanted <= found.spec.labels.items()]

    async def events(self) -> AsyncIterator[EngineEvent]:
        stream = self._table.attach()
        try:
            while True:
                yield await stream.take()
        finally:
            self._table.detach(stream)

    async def stats(self, container_id: str) -> Stats:
        await anyio.lowlevel.checkpoint()
        self._table.check()
        container = self._table.containers.get(container_id)
        if container is None or container.cause is not None:
            raise EngineRefused(f"cannot read stats of {container_id}: it is not running")
        measured = [used for used in map(_usage, container.pids()) if used is not None]
        return Stats(
            memory_bytes=sum(used[0] for used in measured),
            cpu_seconds=sum(used[1] for used in measured),
            pids=len(measured),
        )

    async def has_image(self, image: str) -> bool:
        self._table.check()
        return image in self._table.images

    async def find_runtime(self, name: str | None) -> str | None:
        self._table.check()
        if name is not None:
            raise EngineRefused(f"cannot use the runtime {name}: the fake engine has none; unset SANDBOXD_RUNTIME")
        return None

    async def diagnose(self) -> list[Finding]:
        advice = "use the fake engine in tests only"
        return [Finding("seccomp", "missing", "processes of the host, without any isolation", advice)]

    async def aclose(self) -> None:
        """Do nothing: containers belong to the table."""


def _usage(pid: int) -> tuple[int, float] | None:
    """Return the memory in bytes and the processor time in seconds of one process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return pages * _PAGE_BYTES, (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
