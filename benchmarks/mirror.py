"""Mirrors: time from commit to readable, fan-out compared with bare hard links, snapshots with `cp -r` and `cp -al`.

`python -m benchmarks.mirror [--rounds N] [--most N]` prints tables and writes benchmarks/results/mirror.json. It
measures host directories: a container sees the same directory through a mount, and a rename at once. Mirrors and their
baselines are where a daemon puts mirrors, in memory if there is room; the store is on disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
from rich.progress import track

from benchmarks.measure import Figure, Promise, figure, show, show_promises, write
from memo import SQLiteStore
from memo.documents import ArtifactKey, DocumentKey
from memo.ids import SessionRef, TenantId, UserId
from sandboxd.daemon.server import settle_collector
from sandboxd.events import EventBus
from sandboxd.memory import Memory
from sandboxd.memory.text import Text
from sandboxd.sandboxes import cache_place

ACME, ANN = TenantId("acme"), UserId("ann")
SIZES = (10, 100, 1000, 10_000)
FANS = (1, 10, 100)
ARTIFACT_BYTES = 8192
BLOB_CACHE_BYTES = 1024**3


@contextmanager
def placed(data: Path) -> Iterator[Path]:
    """A data directory with mirrors where a daemon would put them; yields the parent directory of the mirrors."""
    data.mkdir()
    cache_place.settle(data, "auto", BLOB_CACHE_BYTES)
    beside = (data / "mirrors").resolve().parent
    try:
        yield beside
    finally:
        shutil.rmtree(beside)


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1000


async def in_thread(work: Callable[[], object]) -> None:
    await anyio.to_thread.run_sync(work)


async def measure_visible(directory: Path, rounds: int) -> list[Figure]:
    """Time a commit until its text can be read, and complete writes through the daemon's writer."""
    ref = SessionRef.of("acme", "s1")
    notes, unseen = DocumentKey.of_session(ref, "NOTES.md"), DocumentKey.of("acme", "s2", "session", "NOTES.md")
    followed, bare, door = [], [], []
    async with (
        SQLiteStore(directory / "memo.db") as store,
        SQLiteStore(directory / "memo.db") as elsewhere,
        Memory(directory / "data", store, events=EventBus()) as memory,
    ):
        file = await memory.create("box", ref, ANN) / "session" / "NOTES.md"
        await memory.write(notes, "first")
        for number in track(range(rounds), description="visible", transient=True):
            text = f"round {number} " * 100
            await elsewhere.write_document(notes, text)
            committed = time.perf_counter()
            while file.stat().st_size != len(text) or file.read_text() != text:
                await anyio.sleep(0.0002)  # a spinning reader would take the CPU time that it measures
            followed.append((time.perf_counter() - committed) * 1000)
            bare.append(await timed(lambda text=text: store.write_document(unseen, text)))  # type: ignore[misc]
            door.append(await timed(lambda text=text: memory.write(notes, f"{text}again")))  # type: ignore[misc]
    return [
        figure("a commit alone", bare),
        figure("a commit by another process → readable", followed),
        figure("a write through the writer", door),
    ]


async def measure_fan_out(directory: Path, beside: Path, rounds: int) -> list[Figure]:
    """One new USER.md into 1, 10 and 100 live mirrors, compared with hard-linking as many files."""
    took: dict[str, list[float]] = {}
    async with (
        SQLiteStore(directory / "memo.db") as store,
        Memory(directory / "data", store, events=EventBus()) as memory,
    ):
        for fan in FANS:
            user = UserId(f"user{fan}")
            for number in range(fan):
                await memory.create(f"fan{fan}-{number}", SessionRef.of("acme", f"fan{fan}-{number}"), user)
                (beside / f"links{fan}" / str(number)).mkdir(parents=True)
        for number in track(range(1, rounds + 1), description="fan-out", transient=True):
            for fan in FANS:
                links = beside / f"links{fan}"
                took.setdefault(f"link {fan} files", []).append(await _link(links, fan, number))
                text = Text.of(f"text {number} for {fan}".encode(), number)
                key = DocumentKey.of_user(ACME, UserId(f"user{fan}"), "USER.md")
                took.setdefault(f"one text into {fan} mirrors", []).append(
                    await timed(lambda key=key, text=text: memory._mirrors.install(key, text, revisioned=True))  # type: ignore[misc]
                )
                while memory._mirrors.dirty:  # manifests are written later; keep them out of the next measurement
                    await anyio.sleep(0.001)
    return [figure(name, values) for name, values in took.items()]


async def _link(links: Path, fan: int, number: int) -> float:
    source = links / f"source{number}"
    for directory in range(fan):
        (links / str(directory) / "USER.md").unlink(missing_ok=True)
    targets = [f"{links}/{directory}/USER.md" for directory in range(fan)]

    def work() -> None:
        source.write_text(f"text {number}")
        for target in targets:
            os.link(source, target)

    return await timed(lambda: in_thread(work))


async def measure_snapshots(directory: Path, most: int, rounds: int) -> dict[int, list[Figure]]:
    """Snapshots of n artifacts, cold and with warm blobs, compared with copying and linking an equal directory."""
    figures: dict[int, list[Figure]] = {}
    async with SQLiteStore(directory / "memo.db") as store:
        for size in (size for size in SIZES if size <= most):
            took: dict[str, list[float]] = {"cp -al": [], "cp -r": [], "warm snapshot": [], "cold snapshot": []}
            for number in track(range(rounds), description=f"{size} artifacts", transient=True):
                await _snapshot_round(store, directory / f"{size}-{number}", f"{size}-{number}", size, took)
            figures[size] = [figure(name, values) for name, values in took.items()]
    return figures


async def _snapshot_round(
    store: SQLiteStore, place: Path, session: str, size: int, took: dict[str, list[float]]
) -> None:
    ref = SessionRef.of("acme", session)

    async def keep(first: int) -> None:
        for number in range(first, size, 16):
            text = f"{session} {number} ".ljust(ARTIFACT_BYTES, "x")
            await store.write_artifact(ArtifactKey.of(ref, f"call-{number}"), text)

    async with anyio.create_task_group() as tasks:
        for first in range(16):
            tasks.start_soon(keep, first)
    with placed(place) as beside:
        await _take_snapshots(store, place, beside, ref, size, took)
    shutil.rmtree(place, ignore_errors=True)


async def _take_snapshots(
    store: SQLiteStore, place: Path, beside: Path, ref: SessionRef, size: int, took: dict[str, list[float]]
) -> None:
    async with Memory(place, store, events=EventBus()) as memory:
        took["cold snapshot"].append(await timed(lambda: memory.create("cold", ref, ANN)))
        while (
            sum(path.is_file() for path in (place / "blobs").resolve().rglob("*")) < size
        ):  # blobs are written later; "warm" includes them
            await anyio.sleep(0.01)
        took["warm snapshot"].append(await timed(lambda: memory.create("warm", ref, ANN)))
        source = beside / "mirrors" / "cold"
        for name, flags in (("cp -r", "-r"), ("cp -al", "-al")):
            copy = ["cp", flags, str(source), str(beside / flags.strip("-"))]
            took[name].append(await timed(lambda copy=copy: in_thread(lambda: subprocess.run(copy, check=True))))  # type: ignore[misc]


def promises(fans: list[Figure], snapshots: dict[int, list[Figure]], most: int) -> list[Promise]:
    by_name = {item.name: item for item in fans}
    fan_out = by_name["one text into 100 mirrors"]
    fan_ratio = fan_out.ratio_to(by_name["link 100 files"])
    kept = [
        Promise("one text into 100 mirrors", "≤ 2 × linking 100", f"{fan_ratio:.2f} ×", fan_ratio <= 2, fan_out.n),
    ]
    p50 = {size: {item.name: item.p50_ms for item in items} for size, items in snapshots.items()}
    if most > 100:
        growth = (p50[most]["cold snapshot"] / most) / (p50[100]["cold snapshot"] / 100)
        warm = p50[most]["warm snapshot"] / p50[most]["cp -al"]
        n = snapshots[most][0].n
        kept += [
            Promise(f"each artifact at {most} against 100", "≤ 1.5 ×", f"{growth:.2f} ×", growth <= 1.5, n),
            Promise(f"warm snapshot of {most}", "≤ 2 × cp -al", f"{warm:.2f} ×", warm <= 2, n),
        ]
    return kept


async def measure(rounds: int, most: int, directory: Path) -> None:
    settle_collector()  # as a daemon does
    for name in ("visible", "fan", "snapshots"):
        (directory / name).mkdir()
    with placed(directory / "visible" / "data"):
        visible = await measure_visible(directory / "visible", rounds)
    show("commit to readable", visible, "a commit alone")
    with placed(directory / "fan" / "data") as beside:
        fans = await measure_fan_out(directory / "fan", beside, rounds)
    show("fan-out", fans, "link 100 files")
    snapshots = await measure_snapshots(directory / "snapshots", most, max(3, rounds // 40))
    for size, figures in snapshots.items():
        show(f"snapshot of {size} artifacts of 8 KB", figures, "cp -al")
    kept = promises(fans, snapshots, most)
    show_promises(kept)
    groups = {"visible": visible, "fan-out": fans}
    groups |= {f"snapshot {size}": figures for size, figures in snapshots.items()}
    print(write("mirror", groups, kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--most", type=int, default=10_000, choices=SIZES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        anyio.run(measure, options.rounds, options.most, Path(directory), backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main()
