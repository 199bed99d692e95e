"""Scaling: curves from 1 to 100 sandboxes and from 0 to 10,000 artifacts.

`python -m benchmarks.growth [--most N]` prints tables and writes benchmarks/results/growth.json: latency, commands per
second and the daemon's memory by number of live sandboxes, the time of a create by number of artifacts, and what 100
idle sandboxes cost the daemon.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from rich.progress import track

from benchmarks import interruptible
from benchmarks.daemon import cost_of, cpu_percent, own_directory, serving
from benchmarks.exec import spawn
from benchmarks.measure import Curve, Figure, Promise, figure, show, show_curves, show_promises, write
from memo import ArtifactKey, SQLiteStore
from memo.ids import SessionRef
from sandboxd.client import AsyncClient

SANDBOXES = (1, 10, 25, 50, 100)
ARTIFACTS = (0, 10, 100, 1000, 10_000)
CALLS = 200
CLIENTS = 32
RATE_S = 2.0
IDLE_S = 20.0
SETTLE_S = 3.0
CREATES = 3
FEW = 100
_AT_ONCE = 2
_WRITERS = 16

Write = Callable[[ArtifactKey, str], Awaitable[object]]
"""How an artifact is written to the store."""


async def more_sandboxes(root: Path, most: int) -> tuple[list[Figure], list[Curve], list[Promise]]:
    figures: list[Figure] = []
    latency, rate, memory, ratios = [], [], [], []
    async with serving(root / "many") as daemon, AsyncClient(daemon.socket, tenant="bench") as api:
        memory.append((0.0, cost_of(daemon.pid).rss_mb))
        live = 0
        for wanted in (size for size in SANDBOXES if size <= most):
            await _create(api, range(live, wanted))
            live = wanted
            memory.append((float(live), cost_of(daemon.pid).rss_mb))
            found = await _beside_a_bare_process(api, live)
            figures += found
            latency.append((float(live), found[1].p50_ms))
            ratios.append(found[1].ratio_to(found[0]))
            rate.append((float(live), await _rate(api, live)))
        await anyio.sleep(SETTLE_S)
        before = cost_of(daemon.pid)
        await anyio.sleep(IDLE_S)
        after = cost_of(daemon.pid)
        for number in range(live):
            await api.destroy_sandbox(f"s{number}")
    cpu = cpu_percent(before, after)
    grown = after.rss_mb - before.rss_mb
    slower = ratios[-1] / ratios[0]
    curves = [
        Curve("`true`, p50", "live sandboxes", "ms", tuple(latency)),
        Curve(f"commands a second, {CLIENTS} clients", "live sandboxes", "per second", tuple(rate)),
        Curve("the daemon's memory", "live sandboxes", "MB", tuple(memory)),
    ]
    promises = [
        Promise(
            f"daemon with {live} idle sandboxes: memory", "≤ 150 MB", f"{after.rss_mb:.0f} MB", after.rss_mb <= 150
        ),
        Promise(f"daemon with {live} idle sandboxes: CPU", "≤ 2 %", f"{cpu:.2f} %", cpu <= 2),
        Promise(
            f"daemon with {live} idle sandboxes: growth", "none", f"{grown:+.2f} MB in {IDLE_S:.0f} s", grown < 0.5
        ),
        Promise(
            f"`true` relative to a bare process, {live} live", "≤ 1.5 × of 1", f"{slower:.2f} ×", slower <= 1.5, CALLS
        ),
    ]
    return figures, curves, promises


async def _beside_a_bare_process(api: AsyncClient, live: int) -> list[Figure]:
    """Return ratios to a baseline measured at the same time, because the sizes are measured minutes apart."""
    bare, ours = [], []
    for number in track(range(CALLS), description=f"{live} sandboxes", transient=True):
        started = time.perf_counter()
        await spawn()
        bare.append((time.perf_counter() - started) * 1000)
        started = time.perf_counter()
        await api.exec(f"s{number % live}", ["true"])
        ours.append((time.perf_counter() - started) * 1000)
    return [figure(f"posix_spawn, {live} live", bare), figure(f"`true`, {live} live", ours)]


async def _create(api: AsyncClient, numbers: range) -> None:
    left = iter(numbers)

    async def work() -> None:
        for number in left:
            await api.ensure_sandbox(f"s{number}", f"user{number % 10}", limits={"memory_mb": 128, "disk_mb": 64})

    async with anyio.create_task_group() as tasks:
        for _ in range(_AT_ONCE):
            tasks.start_soon(work)


async def _rate(api: AsyncClient, live: int) -> float:
    done = 0

    async def work(number: int) -> None:
        nonlocal done
        at = number
        while time.perf_counter() < end:
            await api.exec(f"s{at % live}", ["true"])
            at += CLIENTS
            done += 1

    started = time.perf_counter()
    end = started + RATE_S
    async with anyio.create_task_group() as tasks:
        for number in range(CLIENTS):
            tasks.start_soon(work, number)
    return done / (time.perf_counter() - started)


async def more_artifacts(root: Path, most: int) -> tuple[list[Figure], list[Curve], list[Promise]]:
    """Time creates through the API of new sessions with this many artifacts of 8 KB."""
    figures, points = [], []
    async with (
        serving(root / "artifacts") as daemon,
        AsyncClient(daemon.socket, tenant="bench") as api,
        SQLiteStore(daemon.data / "memo.db") as store,
    ):
        for count in (size for size in ARTIFACTS if size <= most):
            took = []
            for turn in track(range(CREATES), description=f"{count} artifacts", transient=True):
                name = f"a{count}-{turn}"
                await api.ensure_session(name, "bench")
                await fill_with_artifacts(store.write_artifact, name, count)
                started = time.perf_counter()
                await api.ensure_sandbox(name, "bench")
                took.append((time.perf_counter() - started) * 1000)
                await api.destroy_sandbox(name)
            figures.append(figure(f"create, {count:,} artifacts", took))
            points.append((float(count), figures[-1].p50_ms))
    promises = []
    if len(points) == len(ARTIFACTS):
        bare = min(took for count, took in points if count <= FEW)  # the start of a container varies by more than this
        each = {count: (took - bare) / count for count, took in points if count}
        ratio = each[10_000] / each[1000] if each[1000] > 0 else 1.0
        promises = [
            Promise("create, each artifact at 10,000", "≤ 1.5 × of 1,000", f"{ratio:.2f} ×", ratio <= 1.5, CREATES)
        ]
    return figures, [Curve("create", "artifacts of 8 KB", "ms", tuple(points))], promises


async def fill_with_artifacts(write: Write, session: str, count: int) -> None:
    ref = SessionRef.of("bench", session)
    numbers = iter(range(count))

    async def keep() -> None:
        for number in numbers:
            text = f"{session} {number} ".ljust(8192, "x")
            await write(ArtifactKey.of(ref, f"call{number}"), text)

    async with anyio.create_task_group() as tasks:
        for _ in range(_WRITERS):
            tasks.start_soon(keep)


async def measure(root: Path, most: int, artifacts: int):  # type: ignore[no-untyped-def]
    sandboxes = await more_sandboxes(root, most)
    creates = await more_artifacts(root, artifacts)
    return sandboxes, creates


def run(most: int, artifacts: int) -> None:
    with own_directory() as root:
        sandboxes, creates = interruptible.run(measure, root, most, artifacts)
    show("by live sandboxes", sandboxes[0], sandboxes[0][0].name)
    show("by artifacts", creates[0], creates[0][0].name)
    curves, promises = sandboxes[1] + creates[1], sandboxes[2] + creates[2]
    show_curves(curves)
    show_promises(promises)
    figures = {"by live sandboxes": sandboxes[0], "by artifacts": creates[0]}
    print(f"written to {write('growth', figures, promises, curves=curves).name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=100, help="live sandboxes")
    parser.add_argument("--artifacts", type=int, default=10_000)
    given = parser.parse_args()
    run(given.most, given.artifacts)
