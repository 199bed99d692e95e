"""What a store costs: durable writes compared with plain sqlite3, reads, snapshots, feed, growth to a million rows.

`python -m benchmarks.stores [--rounds N] [--rows N …] [--only PART …] [--directory DIR]` prints tables and promises; a
run of all parts writes benchmarks/results/stores.json. The directory must be on a disk: where a sync is free, the time
of a durable write means nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.measure import Act, Figure, Promise, figure, interleave, show, show_promises, write
from benchmarks.plain_sqlite import Plain
from benchmarks.store_growth import growth
from memo import DocumentKey, InMemoryStore, SessionRef, SQLiteStore
from memo.changes import ChangeStream
from memo.stores import BaseStore
from memo.stores.filesystem import FilesystemStore

BLOCK = 16
TASKS = 8
DOCUMENT = "a line of notes, as long as such lines are\n" * 95  # 4 KB
ARTIFACT = "a line of output, as long as such lines are\n" * 186  # 8 KB
SNAPSHOTS = (100, 1_000, 10_000)
MOST_SNAPSHOTS = 15
AT_ONCE = 64

Figures = dict[str, list[Figure]]
Part = tuple[Figures, list[Promise]]
Numbered = Callable[[int], Awaitable[object]]


def key_of(number: int) -> DocumentKey:
    return DocumentKey.of("bench", f"s{number}", "session", "NOTES.md")


@asynccontextmanager
async def stores_in(directory: Path) -> AsyncIterator[dict[str, BaseStore]]:
    directory.mkdir(exist_ok=True)
    made: dict[str, BaseStore] = {
        "sqlite": SQLiteStore(directory / "memo.db"),
        "filesystem": FilesystemStore(directory / "files"),
        "memory": InMemoryStore(),
    }
    async with AsyncExitStack() as stack:
        for store in made.values():
            await stack.enter_async_context(store)
        yield made


def in_blocks(call: Numbered, tasks: int) -> Act:
    """Run BLOCK calls, distributed over this many tasks; each call gets its task's number."""

    async def work(number: int) -> None:
        for _ in range(BLOCK // tasks):
            await call(number)

    async def act() -> None:
        if tasks == 1:
            await work(0)
            return
        async with anyio.create_task_group() as group:
            for number in range(tasks):
                group.start_soon(work, number)

    return act


async def interleave_blocks(acts: dict[str, Act], rounds: int) -> list[Figure]:
    """Return the figures of one call: a block divided by its calls, because a single call is lost in the noise."""
    blocks = await interleave(acts, rounds)
    return [replace(f, p50_ms=f.p50_ms / BLOCK, p95_ms=f.p95_ms / BLOCK) for f in blocks]


def show_rates(title: str, figures: list[Figure]) -> None:
    show(title, figures, "plain sqlite3")
    for item in figures:
        print(f"{item.name:32} {1000 / item.p50_ms:10,.0f} a second")


async def writes(directory: Path, rounds: int) -> Part:
    numbers = iter(range(sys.maxsize))
    plain = Plain(directory / "plain.db")
    crowd = [Plain(directory / "crowd.db") for _ in range(TASKS)]

    def text() -> str:
        return f"{next(numbers)} {DOCUMENT}"  # never the same twice, because a known text is not written again

    async def bare(number: int) -> None:
        plain.write(key_of(number), text())

    async def in_thread(number: int) -> None:
        await to_thread.run_sync(crowd[number].write, key_of(number), text())

    async def write_one(store: BaseStore, first: int, number: int) -> None:
        await store.write_document(key_of(first + number), text())

    def contenders(stores: dict[str, BaseStore]) -> dict[str, Act]:
        alone = {name: in_blocks(partial(write_one, store, 0), 1) for name, store in stores.items()}
        together = {
            f"{name}, {TASKS} tasks": in_blocks(partial(write_one, store, 1), TASKS) for name, store in stores.items()
        }
        return alone | together

    async with SQLiteStore(directory / "memo.db") as ours:  # no other reader, because a file watcher would use CPU time
        acts = {"plain sqlite3": in_blocks(bare, 1), f"plain sqlite3, {TASKS} threads": in_blocks(in_thread, TASKS)}
        figures = await interleave_blocks(acts | contenders({"sqlite": ours}), rounds)
    async with stores_in(directory / "others") as others:
        del others["sqlite"]
        figures += await interleave_blocks(contenders(others), rounds // 4)
    _check_the_same_was_written(plain, directory / "memo.db")
    for connection in (plain, *crowd):
        connection.close()
    show_rates("one durable write of 4 KB", figures)
    p50 = {f.name: f.p50_ms for f in figures}
    alone, together = (p50["plain sqlite3"] / p50[name] for name in ("sqlite", f"sqlite, {TASKS} tasks"))
    return {"writes": figures}, [
        Promise("durable writes, one after the other", "≥ 60 % of plain sqlite3", f"{alone:.0%}", alone >= 0.6),
        Promise(f"durable writes, {TASKS} tasks", "≥ plain sqlite3", f"{together:.0%}", together >= 1),
    ]


def _check_the_same_was_written(plain: Plain, path: Path) -> None:
    ours = Plain(path)
    found, expected = (side.rows_by_document()[key_of(0).owner] for side in (ours, plain))
    ours.close()
    if found != expected:
        raise RuntimeError(f"cannot compare: the store wrote {found} rows, plain sqlite3 {expected}")


async def reads(directory: Path, rounds: int) -> Part:
    plain = Plain(directory / "plain.db")
    plain.write(key_of(0), DOCUMENT)

    async def bare(number: int) -> None:
        plain.read(key_of(number))

    async def read_one(store: BaseStore, number: int) -> None:
        await store.read_document(key_of(number))

    async with stores_in(directory) as stores:
        acts = {"plain sqlite3": in_blocks(bare, 1)}
        for name, store in stores.items():
            for number in range(TASKS):
                await store.write_document(key_of(number), DOCUMENT)
            acts[name] = in_blocks(partial(read_one, store), 1)
            acts[f"{name}, {TASKS} tasks"] = in_blocks(partial(read_one, store), TASKS)
        figures = await interleave_blocks(acts, rounds)
    plain.close()
    show_rates("one read of 4 KB", figures)
    return {"reads": figures}, []


async def snapshots(directory: Path, rounds: int) -> Part:
    """List and read every artifact of a session. The cost of one must not grow with their number."""
    figures: list[Figure] = []
    async with stores_in(directory) as stores:
        for name, store in stores.items():
            acts: dict[str, Act] = {}
            for count in SNAPSHOTS:
                ref = SessionRef.of("bench", f"snapshot{count}")
                await _write_artifacts(store, ref, count)
                acts[f"{name}, {count:,}"] = partial(_snapshot, store, ref, count)
            measured = await interleave(acts, min(rounds, MOST_SNAPSHOTS))
            for count, whole in zip(SNAPSHOTS, measured, strict=True):
                figures.append(replace(whole, p50_ms=whole.p50_ms / count, p95_ms=whole.p95_ms / count))
    show("snapshot: list and read, for each artifact of 8 KB", figures, "sqlite, 100")
    by_name = {f.name: f for f in figures}
    promises = []
    for name in ("sqlite", "filesystem"):  # in memory the CPU cache dominates, not the store
        ratio = by_name[f"{name}, 10,000"].ratio_to(by_name[f"{name}, 100"])
        promises.append(Promise(f"snapshot, {name}, each of 10,000", "≤ 1.5 × of 100", f"{ratio:.2f} ×", ratio <= 1.5))
    return {"snapshots": figures}, promises


async def _snapshot(store: BaseStore, ref: SessionRef, count: int) -> None:
    listed = await store.list_artifacts(ref)
    texts = await store.read_artifacts(ref, [entry.key.tool_call for entry in listed])
    if len(texts) != count:
        raise RuntimeError(f"cannot measure: {len(texts)} artifacts of {count}")


async def _write_artifacts(store: BaseStore, ref: SessionRef, count: int) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await store.write_tool_result_artifact(ref, f"call{number}", f"{number} {ARTIFACT}")

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(work)


async def feed(directory: Path, rounds: int) -> Part:
    """Time from the call of a write until a feed has the change, and until the writer has its answer."""
    figures: list[Figure] = []
    async with stores_in(directory) as stores:
        for name, store in stores.items():
            await store.write_document(key_of(0), DOCUMENT)
            async with AsyncExitStack() as stack:
                mine = await stack.enter_async_context(store.changes(await store.last_change()))
                other = None
                if name != "memory":
                    place = directory / ("memo.db" if name == "sqlite" else "files")
                    other = await stack.enter_async_context(_listening(place))
                took = await _write_and_hear(store, mine, other, rounds * 10)
            figures += [figure(f"{name}, {what}", values) for what, values in took.items() if values]
    show("from the call of a write of 4 KB to …", figures, "sqlite, acknowledged")
    return {"feed": figures}, []


async def _write_and_hear(
    store: BaseStore, mine: ChangeStream, other: BufferedByteReceiveStream | None, count: int
) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {"acknowledged": [], "heard": [], "heard in another process": []}

    def note(what: str, at: float) -> None:
        took[what].append((at - started) * 1000)

    async def hear() -> None:
        await anext(mine)
        note("heard", time.perf_counter())

    for number in range(count):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hear)
            await anyio.wait_all_tasks_blocked()
            started = time.perf_counter()
            await store.write_document(key_of(0), f"{number} {DOCUMENT}")
            note("acknowledged", time.perf_counter())
        if other is not None:
            note("heard in another process", float(await other.receive_until(b"\n", 100)))
    return took


@asynccontextmanager
async def _listening(place: Path) -> AsyncIterator[BufferedByteReceiveStream]:
    """Another process that reports when it receives each change. On Linux, all processes share perf_counter's clock."""
    command = [sys.executable, "-m", "benchmarks.stores", "--listen", str(place)]
    async with await anyio.open_process(command, stderr=None) as process:
        assert process.stdout is not None
        heard = BufferedByteReceiveStream(process.stdout)
        await heard.receive_until(b"\n", 100)
        yield heard
        process.terminate()


async def listen(place: Path) -> None:
    store = FilesystemStore(place) if place.is_dir() else SQLiteStore(place)
    async with store, store.changes(await store.last_change()) as changes:
        print("listening", flush=True)
        async for _ in changes:
            print(time.perf_counter(), flush=True)


async def main(options: argparse.Namespace) -> None:
    parts: dict[str, Callable[[Path], Awaitable[Part]]] = {
        "writes": lambda path: writes(path, options.rounds),
        "reads": lambda path: reads(path, options.rounds),
        "snapshots": lambda path: snapshots(path, options.rounds),
        "feed": lambda path: feed(path, options.rounds),
        "growth": lambda path: growth(path, options.rounds, options.rows),
    }
    figures: Figures = {}
    promises: list[Promise] = []
    for name in options.only or parts:
        with tempfile.TemporaryDirectory(prefix="sandboxd-bench-", dir=options.directory) as directory:
            measured, kept = await parts[name](Path(directory))
        figures |= measured
        promises += kept
    show_promises(promises)
    if options.only is None:
        print(f"written to {write('stores', figures, promises)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--only", nargs="+", choices=["writes", "reads", "snapshots", "feed", "growth"])
    parser.add_argument("--directory", help="where the stores are created; must be on a disk")
    parser.add_argument("--listen", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.listen is not None:
        anyio.run(listen, given.listen, backend_options={"use_uvloop": True})
    else:
        anyio.run(main, given, backend_options={"use_uvloop": True})
