"""The sampler of statistics: shared by its readers, idle without them, and never stopped by one sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from memo.ids import SessionRef
from sandboxd.errors import EngineUnavailable, LimitReached
from sandboxd.events import EventBus
from sandboxd.inspector.sampler import MAX_READERS, HostMeter, StatsSampler
from sandboxd.models.sandbox import SandboxView, Stats

pytestmark = pytest.mark.anyio


def view(session: str, state: str = "ready", container: str = "c1") -> SandboxView:
    return SandboxView.model_validate(
        {
            "tenant": "acme",
            "session": session,
            "user": "u",
            "agent": None,
            "state": state,
            "engine": "fake",
            "container": container,
            "created_at": "2026-01-01T00:00:00Z",
            "from_pool": False,
            "cause": None,
            "image": "i",
            "limits": {"memory_mb": 64},
        }
    )


class Measured:
    """Sandboxes whose CPU time grows by half a second with each measurement."""

    def __init__(self, *views: SandboxView) -> None:
        self.views = list(views)
        self.cpu = 0.0
        self.count = 0
        self.under_way = 0
        self.most_at_once = 0
        self.broken: set[str] = set()
        self.events = EventBus()

    def find_all(self) -> list[SandboxView]:
        return self.views

    async def disk_bytes(self) -> dict[SessionRef, int]:
        return {SessionRef.of("acme", "s1"): 7}

    async def stats(self, ref: SessionRef) -> Stats:
        self.count += 1
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            await anyio.sleep(0)
            if ref.session in self.broken:
                raise EngineUnavailable("cannot measure: no answer")
            self.cpu += 0.5
            return Stats(memory_bytes=5, cpu_seconds=self.cpu, pids=3)
        finally:
            self.under_way -= 1


def ticking(step_s: float) -> Iterator[float]:
    now = 0.0
    while True:
        now += step_s
        yield now


async def test_cpu_is_the_share_of_the_time_between_two_samples(tmp_path: Path) -> None:
    clock = ticking(2.0)
    sampler = StatsSampler(Measured(view("s1")), tmp_path, clock=lambda: next(clock))
    (first,) = (await sampler.sample()).sandboxes
    (second,) = (await sampler.sample()).sandboxes
    assert (first.cpu_percent, second.cpu_percent) == (None, 25.0)
    assert (first.memory_bytes, first.processes, first.memory_limit_bytes) == (5, 3, 64 * 1024 * 1024)
    assert first.disk_bytes == 7


async def test_a_new_container_is_not_compared_with_the_old_one(tmp_path: Path) -> None:
    sandboxes = Measured(view("s1"))
    sampler = StatsSampler(sandboxes, tmp_path)
    await sampler.sample()
    sandboxes.views = [view("s1", container="c2")]
    assert (await sampler.sample()).sandboxes[0].cpu_percent is None


async def test_a_sandbox_that_cannot_be_measured_is_left_out(tmp_path: Path) -> None:
    sandboxes = Measured(view("s1"), view("s2"), view("s3", state="hibernated"))
    sandboxes.broken = {"s1"}
    sample = await StatsSampler(sandboxes, tmp_path).sample()
    assert [one.session for one in sample.sandboxes] == ["s2"]


async def test_few_sandboxes_are_measured_at_once(tmp_path: Path) -> None:
    sandboxes = Measured(*(view(f"s{number}") for number in range(100)))
    assert len((await StatsSampler(sandboxes, tmp_path).sample()).sandboxes) == 100
    assert sandboxes.most_at_once <= 8


async def test_all_readers_share_a_sample_and_nothing_is_measured_without_one(tmp_path: Path) -> None:
    sandboxes = Measured(view("s1"))
    sampler = StatsSampler(sandboxes, tmp_path, interval_s=3600)
    async with sampler.open():
        assert not sampler.is_sampling
        with anyio.fail_after(60), sampler.listen() as one, sampler.listen() as other:
            assert await one.next() is await other.next()
            assert sampler.is_sampling
        await anyio.wait_all_tasks_blocked()
        assert not sampler.is_sampling
        assert sandboxes.count == 1
        with anyio.fail_after(60), sampler.listen() as again:
            assert await again.next() is not None
        assert sandboxes.count == 2


async def test_readers_end_when_the_daemon_stops(tmp_path: Path) -> None:
    sandboxes = Measured()
    sampler = StatsSampler(sandboxes, tmp_path, interval_s=3600)
    async with sampler.open():
        with anyio.fail_after(60), sampler.listen() as reader:
            assert await reader.next() is not None
            sandboxes.events.close()
            assert await reader.next() is None


async def test_readers_are_bounded(tmp_path: Path) -> None:
    sampler = StatsSampler(Measured(), tmp_path)

    def open_all(count: int) -> None:
        with sampler.listen():
            if count:
                open_all(count - 1)

    async with sampler.open():
        with pytest.raises(LimitReached, match=r"^cannot follow statistics"):
            open_all(MAX_READERS)
        open_all(MAX_READERS - 1)


def test_the_host_is_measured_from_proc(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  250 kB\nHugePages_Total: 0\n")
    (tmp_path / "stat").write_text("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1 1 1\n")
    meter = HostMeter(tmp_path, proc=tmp_path)
    first = meter.measure()
    assert (first.cpu_percent, first.memory_total, first.memory_used) == (None, 1_024_000, 768_000)
    (tmp_path / "stat").write_text("cpu  150 0 125 770 105 0 0 0 0 0\n")
    assert meter.measure().cpu_percent == 50.0
    assert first.disk_total >= first.disk_used > 0
