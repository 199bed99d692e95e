"""The cost of an idle sandbox: memory and CPU of its container, as the engine reports them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
from anyio import to_thread
from rich.console import Console
from rich.table import Table

from benchmarks.peers.docker_raw import call

WATCHED_S = 5.0
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Idle:
    """Return the private memory and the CPU use, as a fraction of one core, of each sandbox's container."""

    name: str
    n: int
    memory_mb: float
    cpu_percent: float


@dataclass(frozen=True, slots=True)
class Count:
    memory_bytes: int
    cpu_s: float
    at: float


async def idle_cost(containers: Mapping[str, Sequence[str]]) -> list[Idle]:
    """Watch all of them over the same period."""
    ids = [container for held in containers.values() for container in held]
    before = await _count(ids)
    await anyio.sleep(WATCHED_S)
    after = await _count(ids)
    found = []
    for name, held in containers.items():
        cpu = sum((after[id].cpu_s - before[id].cpu_s) / (after[id].at - before[id].at) for id in held)
        memory = sum(after[id].memory_bytes for id in held)
        found.append(Idle(name, len(held), memory / _MIB / len(held), cpu * 100 / len(held)))
    return found


async def _count(ids: Sequence[str]) -> dict[str, Count]:
    """Query all containers at once: the engine samples once a second."""
    counts: dict[str, Count] = {}

    async def count(container: str) -> None:
        answer = await to_thread.run_sync(call, "GET", f"/containers/{container}/stats?stream=false&one-shot=true")
        stats: dict[str, Any] = json.loads(answer)
        counted = stats["memory_stats"]["stats"]
        # Private memory, without the page cache: "rss" in cgroup v1, "anon" in v2.
        memory = counted["rss"] if "rss" in counted else counted["anon"]
        counts[container] = Count(memory, stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9, time.monotonic())

    async with anyio.create_task_group() as tasks:
        for container in ids:
            tasks.start_soon(count, container)
    return counts


def show_idle(found: Sequence[Idle]) -> None:
    table = Table(title="an idle sandbox", title_justify="left")
    for heading in ("what", "memory MB", "CPU %", "n"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for item in found:
        table.add_row(item.name, f"{item.memory_mb:.1f}", f"{item.cpu_percent:.2f}", str(item.n))
    Console().print(table)
