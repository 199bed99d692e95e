"""Where the time goes when a sandbox is claimed from the pool and when a session of 10,000 artifacts is mirrored again.

`python -m benchmarks.stages [--rounds N]` times the stages from outside, in one process with the manager, prints how
long each takes, and writes benchmarks/results/stages.json. It shows what limits two promises, and checks none itself.
Stages may overlap: threads read, hash and write at the same time.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from rich.progress import track

from benchmarks import interruptible
from benchmarks.daemon import image, own_directory, remove_containers, unmount_rest
from benchmarks.growth import Write, fill_with_artifacts
from benchmarks.measure import Figure, figure, show, write
from benchmarks.mirror import placed
from memo import DocumentKey, SQLiteStore
from memo.ids import SessionRef, UserId
from memo.stores.sqlite import snapshots as stored
from sandboxd.daemon import logs
from sandboxd.daemon.server import settle_collector
from sandboxd.events import EventBus
from sandboxd.limits import Limits
from sandboxd.memory import Memory, snapshot
from sandboxd.memory.mirror import Mirrors
from sandboxd.memory.store_client import StoreClient
from sandboxd.models.sandbox import SandboxRequest
from sandboxd.runner.client import RunnerClient
from sandboxd.sandboxes.effects import Effects
from sandboxd.sandboxes.manager import SandboxManager
from sandboxd.sandboxes.registry import Registry
from sandboxd.settings import Settings

USER = UserId("bench")
ARTIFACTS = 100
MANY = 10_000
POOL = 2

# Where a stage is in the code, and its name in the table.
STAGES: tuple[tuple[Any, str, str], ...] = (
    (Effects, "_hand_over", "the whole claim"),
    (Registry, "save", "the intent, on the disk"),
    (RunnerClient, "configure", "the environment, to the runner"),
    (StoreClient, "list_files", "the list of what the session has"),
    (stored, "list_of", "  of it, in the store"),
    (snapshot, "_look", "what the directory has"),
    (snapshot._Snapshot, "link_known", "links to texts that are here"),
    (StoreClient, "read_batch", "the other texts, from the store"),
    (stored, "read", "  of it, in the store"),
    (snapshot._Snapshot, "_keep", "hash and write them"),
    (Mirrors, "write_manifest", "the manifest"),
)


class Clock:
    """How long each stage took in the current round; repeated stages are summed."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = {}
        self._now: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        self._now[name] = self._now.get(name, 0.0) + seconds * 1000

    def begin_round(self) -> None:
        self._now = {}

    def end_round(self) -> None:
        for name, took in self._now.items():
            self.took.setdefault(name, []).append(took)

    def figures(self) -> list[Figure]:
        order = [name for _, _, name in STAGES]
        return [figure(name, self.took[name]) for name in order if name in self.took]


@contextmanager
def timed_stages(clock: Clock) -> Iterator[None]:
    """Time every stage inside the `with` block."""
    before = [(place, attribute, getattr(place, attribute)) for place, attribute, _ in STAGES]
    for place, attribute, name in STAGES:
        setattr(place, attribute, _watched(getattr(place, attribute), name, clock))
    try:
        yield
    finally:
        for place, attribute, function in before:
            setattr(place, attribute, function)


def _watched(function: Callable[..., Any], name: str, clock: Clock) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **named)
        finally:
            clock.add(name, time.perf_counter() - started)

    @functools.wraps(function)
    async def call_async(*args: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return await function(*args, **named)
        finally:
            clock.add(name, time.perf_counter() - started)

    return call_async if inspect.iscoroutinefunction(function) else call


async def claims(root: Path, rounds: int) -> dict[str, list[Figure]]:
    """Claim sandboxes from the pool, each for a session with three documents and 100 artifacts of 8 KB.

    Alternate between artifacts written through this daemon and artifacts that another process wrote to the store.
    """
    seen, unseen = Clock(), Clock()
    settings = Settings(data=root / "data", socket=root / "socket", pool=POOL, pool_max=POOL, image=image())
    async with (
        SQLiteStore(root / "memo.db") as store,
        SandboxManager(settings, memo_provider=store) as manager,
    ):
        assert manager.memory is not None
        settle_collector()
        kinds: tuple[tuple[str, Clock, Write], ...] = (
            ("seen", seen, manager.memory.write_artifact),
            ("unseen", unseen, store.write_artifact),
        )
        for number in track(range(rounds), description="claims", transient=True):
            for kind, clock, write_artifact in kinds:
                ref = SessionRef.of("bench", f"{kind}{number}")
                await fill_with_artifacts(write_artifact, ref.session, ARTIFACTS)
                for name in ("NOTES.md", "TODO.md"):
                    await store.write_document(DocumentKey.of_session(ref, name), f"{name} of {number}")
                await store.write_document(DocumentKey.of_user(ref.tenant, USER, "USER.md"), f"text {number}")
                while manager.pool.ready < POOL:
                    await anyio.sleep(0.05)
                with timed_stages(clock):
                    clock.begin_round()
                    await manager.ensure_sandbox(ref, SandboxRequest(user=USER, limits=Limits()))
                    clock.end_round()
                await manager.destroy(ref)
        instance = manager.layout.instance()
    await remove_containers(f"sandboxd.instance={instance}")
    await unmount_rest(settings.data)
    return {
        f"a claim, {ARTIFACTS} artifacts that went through the daemon": seen.figures(),
        f"a claim, {ARTIFACTS} artifacts that it has never seen": unseen.figures(),
    }


async def snapshots(root: Path, data: Path, rounds: int) -> list[Figure]:
    """Rebuild the mirror of one big session repeatedly, with every text in the blob cache."""
    clock = Clock()
    ref = SessionRef.of("bench", "many")
    async with SQLiteStore(root / "many.db") as store, Memory(data, store, events=EventBus()) as memory:
        await fill_with_artifacts(store.write_artifact, ref.session, MANY)
        await memory.create("cold", ref, USER)
        while sum(path.is_file() for path in (data / "blobs").resolve().rglob("*")) < MANY:  # they follow
            await anyio.sleep(0.05)
        settle_collector()
        with timed_stages(clock):
            for number in track(range(rounds), description="snapshots", transient=True):
                clock.begin_round()
                started = time.perf_counter()
                await memory.create(f"warm{number}", ref, USER)
                clock.add("the whole snapshot", time.perf_counter() - started)
                clock.end_round()
                memory.drop(f"warm{number}")
    return [figure("the whole snapshot", clock.took["the whole snapshot"]), *clock.figures()]


async def measure(root: Path, rounds: int) -> dict[str, list[Figure]]:
    logs.configure("error")
    claimed = await claims(root, rounds)
    with placed(root / "many"):
        mirrored = await snapshots(root, root / "many", max(rounds // 4, 3))
    return {**claimed, f"a warm snapshot, {MANY:,} artifacts": mirrored}


def run(rounds: int) -> None:
    with own_directory() as root:
        groups = interruptible.run(measure, root, rounds)
    for name, figures in groups.items():
        show(name, figures, figures[0].name)
    print(f"written to {write('stages', groups, []).name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    run(parser.parse_args().rounds)
