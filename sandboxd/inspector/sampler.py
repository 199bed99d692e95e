"""StatsSampler: what the host and every running sandbox use, measured while at least one reader listens.

All readers share one sample. A sandbox that cannot be measured is left out of a sample; the next one tries again.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from memo.ids import SessionRef
from sandboxd.bounded import each
from sandboxd.errors import LimitReached, SandboxdError
from sandboxd.events import EventBus
from sandboxd.models.inspector import HostStats, SandboxStats, StatsSample
from sandboxd.models.sandbox import SandboxView, Stats

INTERVAL_S = 2.0
MAX_READERS = 64
_AT_ONCE = 8
"""How many sandboxes are measured concurrently."""
_STATS_S = 5.0
"""How long one measurement may take."""


class MeasuredSandboxes(Protocol):
    def find_all(self) -> list[SandboxView]: ...
    async def stats(self, ref: SessionRef) -> Stats: ...
    async def disk_bytes(self) -> dict[SessionRef, int]: ...
    @property
    def events(self) -> EventBus: ...


@dataclass(frozen=True, slots=True)
class _Usage:
    at: float
    cpu_seconds: float


class StatsSampler:
    """Samples inside `open()`, which lasts as long as the app."""

    def __init__(
        self,
        sandboxes: MeasuredSandboxes,
        data: Path,
        *,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sandboxes = sandboxes
        self._host = HostMeter(data)
        self._interval_s = interval_s
        self._clock = clock
        self._usage: dict[tuple[str, str, str | None], _Usage] = {}
        self._tasks: TaskGroup | None = None
        self._sampling: anyio.CancelScope | None = None
        self._readers = 0
        self._number = 0
        self._newest: StatsSample | None = None
        self._changed = anyio.Event()
        self._is_closed = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._end_with_events)
            yield
            tasks.cancel_scope.cancel()
        self._tasks = None

    @contextmanager
    def listen(self) -> Iterator[SampleReader]:
        """Count a reader; the first one starts the sampling and the last one ends it."""
        if self._tasks is None:
            raise RuntimeError("cannot sample: the app's lifespan has not started")
        if self._readers >= MAX_READERS:
            raise LimitReached(f"cannot follow statistics: {self._readers} readers are connected; close one")
        self._readers += 1
        if self._sampling is None:
            self._sampling = anyio.CancelScope()
            self._tasks.start_soon(self._sample_for_ever, self._sampling)
        try:
            yield SampleReader(self)
        finally:
            self._readers -= 1
            if not self._readers and self._sampling is not None:
                self._sampling.cancel()
                self._sampling = None
                self._newest = None
                self._usage.clear()

    @property
    def is_sampling(self) -> bool:
        return self._sampling is not None

    async def wait(self, seen: int) -> tuple[int, StatsSample | None]:
        """Return the newest sample once there is one after the one with this number; None once the daemon stops."""
        while not self._is_closed and (self._newest is None or self._number <= seen):
            await self._changed.wait()
        return self._number, None if self._is_closed else self._newest

    async def _end_with_events(self) -> None:
        await self._sandboxes.events.wait_closed()
        self._is_closed = True
        self._changed.set()

    async def _sample_for_ever(self, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                sample = await self.sample()
                if scope.cancel_called:
                    return
                self._newest = sample
                self._number += 1
                changed, self._changed = self._changed, anyio.Event()
                changed.set()
                await anyio.sleep(self._interval_s)

    async def sample(self) -> StatsSample:
        """Measure everything once."""
        running = [view for view in self._sandboxes.find_all() if view.state == "ready"]
        found: dict[SessionRef, SandboxStats] = {}
        disk = await self._disk_bytes()

        async def measure(view: SandboxView) -> None:
            ref = SessionRef(view.tenant, view.session)
            with suppress(SandboxdError), anyio.move_on_after(_STATS_S):
                found[ref] = self._described(view, await self._sandboxes.stats(ref), disk.get(ref))

        await each(running, measure, _AT_ONCE)
        present = {(view.tenant, view.session, view.container) for view in running}
        self._usage = {key: usage for key, usage in self._usage.items() if key in present}
        host = await to_thread.run_sync(self._host.measure, abandon_on_cancel=True)
        return StatsSample(at=datetime.now(UTC), host=host, sandboxes=[found[key] for key in sorted(found)])

    async def _disk_bytes(self) -> dict[SessionRef, int]:
        with suppress(SandboxdError):
            return await self._sandboxes.disk_bytes()
        return {}

    def _described(self, view: SandboxView, stats: Stats, disk_bytes: int | None) -> SandboxStats:
        key = (view.tenant, view.session, view.container)
        now, before = self._clock(), self._usage.get(key)
        self._usage[key] = _Usage(now, stats.cpu_seconds)
        percent = None
        if before is not None and now > before.at:
            percent = round(max(0.0, 100 * (stats.cpu_seconds - before.cpu_seconds) / (now - before.at)), 1)
        return SandboxStats(
            tenant=view.tenant,
            session=view.session,
            cpu_percent=percent,
            memory_bytes=stats.memory_bytes,
            memory_limit_bytes=int(view.limits.get("memory_mb", 0)) * 1024 * 1024,
            processes=stats.pids,
            disk_bytes=disk_bytes,
        )


class SampleReader:
    """One reader's place in the sequence of samples."""

    def __init__(self, sampler: StatsSampler) -> None:
        self._sampler = sampler
        self._seen = 0

    async def next(self) -> StatsSample | None:
        """Wait for a sample that this reader has not seen; None once the daemon stops.

        A sample that the reader was too slow for is skipped.
        """
        self._seen, sample = await self._sampler.wait(self._seen)
        return sample


class HostMeter:
    """Reads /proc and the file system of the data directory."""

    def __init__(self, data: Path, proc: Path = Path("/proc")) -> None:
        self._data = data
        self._proc = proc
        self._ticks: tuple[int, int] | None = None

    def measure(self) -> HostStats:
        memory = self._memory()
        disk = os.statvfs(self._data)
        total = memory.get("MemTotal", 0)
        return HostStats(
            cpu_percent=self._cpu_percent(),
            memory_used=total - memory.get("MemAvailable", total),
            memory_total=total,
            disk_used=(disk.f_blocks - disk.f_bfree) * disk.f_frsize,
            disk_total=disk.f_blocks * disk.f_frsize,
        )

    def _cpu_percent(self) -> float | None:
        """Return how busy all CPUs together were since the last measurement."""
        fields = [int(field) for field in (self._proc / "stat").read_text().splitlines()[0].split()[1:9]]
        idle, total = fields[3] + fields[4], sum(fields)
        before, self._ticks = self._ticks, (idle, total)
        if before is None or total <= before[1]:
            return None
        return round(100 * (1 - (idle - before[0]) / (total - before[1])), 1)

    def _memory(self) -> dict[str, int]:
        lines = (line.partition(":") for line in (self._proc / "meminfo").read_text().splitlines())
        return {name: int(value.split()[0]) * 1024 for name, _, value in lines if value.endswith("kB")}
