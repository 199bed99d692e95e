"""Mixed load: creates, calls, writes, updates of one user's text in many sandboxes, and many artifacts.

`python -m benchmarks.load [--seconds N] [--sandboxes N]` runs the loads sequentially against one daemon, counts wrong
and lost results, and writes benchmarks/results/load.json. Its times are informative and not part of a promise.
`benchmarks.soak` creates and destroys thousands of sandboxes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from benchmarks import interruptible
from benchmarks.daemon import own_directory, serving
from benchmarks.growth import fill_with_artifacts
from benchmarks.measure import Figure, Promise, figure, show, show_promises, write
from benchmarks.visible import Lines
from memo import SQLiteStore
from sandboxd.client import AsyncClient

LIMITS = {"memory_mb": 128, "disk_mb": 64}
USER = "crowd"
WRITES_PER_S = 100
WRITERS = 10
TEXTS_PER_S = 10
ARTIFACTS, MORE_ARTIFACTS = 10_000, 1000
LAST_TEXT_S = 2.0
LOOK_EVERY_S = 0.02

READER = """
import json, sys, time
path, last = sys.argv[1], int(sys.argv[2])
seen = torn = back = looks = 0
print("reading", flush=True)
while seen < last:
    with open(path) as file:
        lines = file.read().split()
    looks += 1
    if len(lines) != 200 or len(set(lines)) != 1:
        torn += 1
    elif int(lines[0]) < seen:
        back += 1
    else:
        seen = int(lines[0])
    time.sleep(0.05)
print(json.dumps({"at": time.perf_counter(), "torn": torn, "back": back, "looks": looks}), flush=True)
"""


def names(count: int) -> list[str]:
    return [f"load{number}" for number in range(count)]


@asynccontextmanager
async def looking(api: AsyncClient) -> AsyncIterator[list[float]]:
    """Poll the daemon's health in the background; yield the response times."""
    took: list[float] = []

    async def look() -> None:
        while True:
            started = time.perf_counter()
            await api.health()
            took.append((time.perf_counter() - started) * 1000)
            await anyio.sleep(LOOK_EVERY_S)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        yield took
        tasks.cancel_scope.cancel()


async def all_at_once(work: Callable[[str], Coroutine[Any, Any, None]], sessions: list[str]) -> None:
    async with anyio.create_task_group() as tasks:
        for session in sessions:
            tasks.start_soon(work, session)


async def creates(api: AsyncClient, sessions: list[str]) -> tuple[list[Figure], list[Promise]]:
    took: list[float] = []

    async def create(session: str) -> None:
        started = time.perf_counter()
        await api.ensure_sandbox(session, USER, limits=LIMITS)
        took.append((time.perf_counter() - started) * 1000)

    async with looking(api) as health:
        await all_at_once(create, sessions)
    ready = sum(sandbox.state == "ready" for sandbox in await api.list_sandboxes())
    text = f"{ready} ready; {len(health)} other answers meanwhile, the slowest after {max(health):.0f} ms"
    figures = [figure(f"one of {len(sessions)} creates at once", took), figure("health meanwhile", health)]
    is_kept = ready == len(sessions) and bool(health)
    return figures, [Promise(f"{len(sessions)} creates at once", "all ready", text, is_kept, len(took))]


async def calls(api: AsyncClient, sessions: list[str], seconds: float) -> tuple[list[Figure], list[Promise]]:
    took: list[float] = []
    wrong = 0
    until = time.monotonic() + seconds

    async def loop(session: str) -> None:
        nonlocal wrong
        while time.monotonic() < until:
            started = time.perf_counter()
            result = await api.exec(session, ["echo", session])
            took.append((time.perf_counter() - started) * 1000)
            wrong += result.exit_code != 0 or result.stdout != f"{session}\n"

    await all_at_once(loop, sessions)
    text = f"{len(took)} calls, {len(took) / seconds:.0f} a second, {wrong} wrong"
    promise = Promise(f"{len(sessions)} sandboxes in a closed loop of calls", "0 wrong", text, wrong == 0, len(took))
    return [figure(f"a call, {len(sessions)} at once", took)], [promise]


async def writes(api: AsyncClient, sessions: list[str], seconds: float) -> tuple[list[Figure], list[Promise]]:
    """Append lines at a steady pace. At the end every acknowledged line must exist, once and in order."""
    took: list[float] = []
    acknowledged: dict[str, list[str]] = {session: [] for session in sessions}
    each = int(seconds * WRITES_PER_S / len(sessions))

    async def append(session: str) -> None:
        begun = anyio.current_time()
        for number in range(each):
            await anyio.sleep_until(begun + number * len(sessions) / WRITES_PER_S)
            started = time.perf_counter()
            await api.append_memo(session, "NOTES.md", f"line {number}\n")
            took.append((time.perf_counter() - started) * 1000)
            acknowledged[session].append(f"line {number}")

    begun = time.monotonic()
    await all_at_once(append, sessions)
    pace = len(took) / (time.monotonic() - begun)
    lost = 0
    for session, lines in acknowledged.items():
        stored = (await api.read_memo(session, "NOTES.md")).text.splitlines()
        shown = (await api.exec(session, ["cat", "/workspace/memo/session/NOTES.md"])).stdout.splitlines()
        lost += (stored != lines) + (shown != lines)
    text = f"{len(took)} at {pace:.0f} a second; {lost} of {2 * len(sessions)} texts differ"
    return [figure("an append", took)], [Promise(f"{WRITES_PER_S} writes a second", "none lost", text, lost == 0)]


async def one_user(api: AsyncClient, sessions: list[str], seconds: float) -> tuple[list[Figure], list[Promise]]:
    """Write ten new texts per second for one user, while a reader polls in each of the user's sandboxes."""
    last = int(seconds * TEXTS_PER_S)
    await api.write_memo(USER, "USER.md", "0\n" * 200, scope="user")
    command = ["python3", "-c", READER, "/workspace/memo/user/USER.md", str(last)]
    readers = {session: await api.start_process(session, command) for session in sessions}
    lines = {session: Lines(api, session, reader.id) for session, reader in readers.items()}
    for reading in lines.values():
        await reading.next()
    begun = anyio.current_time()
    for number in range(1, last + 1):
        await anyio.sleep_until(begun + number / TEXTS_PER_S)
        await api.write_memo(USER, "USER.md", f"{number}\n" * 200, scope="user")
    written = time.perf_counter()
    found = [json.loads(await reading.next()) for reading in lines.values()]
    torn, back = (sum(reader[name] for reader in found) for name in ("torn", "back"))
    behind = [max(reader["at"] - written, 0) * 1000 for reader in found]
    text = f"{sum(reader['looks'] for reader in found)} reads, {torn} torn, {back} back"
    late = f"{max(behind):.0f} ms after the last"
    what = f"one user's texts in {len(sessions)} sandboxes, {TEXTS_PER_S} a second"
    return [figure("last text → read inside, with other readers", behind)], [
        Promise(f"{what}: never torn, never back", "0", text, torn == back == 0, last),
        Promise(f"{what}: all at the last", f"≤ {LAST_TEXT_S:g} s", late, max(behind) <= LAST_TEXT_S * 1000, last),
    ]


async def artifacts(api: AsyncClient, store: SQLiteStore) -> tuple[list[Figure], list[Promise]]:
    """A session with very many artifacts, and more of them while its sandbox runs."""
    await api.ensure_session("many", USER)
    await fill_with_artifacts(store.write_artifact, "many", ARTIFACTS)
    started = time.perf_counter()
    await api.ensure_sandbox("many", USER, limits=LIMITS)
    created = (time.perf_counter() - started) * 1000
    took = []
    for number in range(MORE_ARTIFACTS):
        started = time.perf_counter()
        await api.write_artifact("many", f"more{number}", f"{number}\n" * 100)
        took.append((time.perf_counter() - started) * 1000)
    counted = await api.exec("many", "ls /workspace/memo/session/tool-results | wc -l")
    await api.destroy_sandbox("many")
    wanted = ARTIFACTS + MORE_ARTIFACTS
    is_kept = counted.stdout.strip() == str(wanted)
    promise = Promise(
        f"{ARTIFACTS:,} artifacts at create, {MORE_ARTIFACTS:,} more while it lives",
        f"{wanted:,} readable",
        f"{int(counted.stdout):,}",
        is_kept,
    )
    return [figure(f"create, {ARTIFACTS:,} artifacts", [created]), figure("one more, while it lives", took)], [promise]


async def measure(root: Path, seconds: float, count: int) -> tuple[dict[str, list[Figure]], list[Promise]]:
    figures: dict[str, list[Figure]] = {}
    promises: list[Promise] = []
    sessions = names(count)

    def keep(name: str, found: tuple[list[Figure], list[Promise]]) -> None:
        figures[name] = found[0]
        promises.extend(found[1])
        show(name, found[0], found[0][0].name)

    async with (
        serving(root / "daemon") as daemon,
        AsyncClient(daemon.socket, tenant="bench") as api,
        SQLiteStore(daemon.data / "memo.db") as store,
    ):
        keep("creates at once", await creates(api, sessions))
        keep("closed loop", await calls(api, sessions, seconds))
        keep("appends", await writes(api, sessions[:WRITERS], seconds))
        keep("one user", await one_user(api, sessions, seconds))
        await all_at_once(api.destroy_sandbox, sessions)
        keep("artifacts", await artifacts(api, store))
    return figures, promises


def run(seconds: float, count: int) -> None:
    with own_directory() as root:
        figures, promises = interruptible.run(measure, root, seconds, count)
    show_promises(promises)
    print(f"written to {write('load', figures, promises).name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="duration of each timed load")
    parser.add_argument("--sandboxes", type=int, default=50)
    given = parser.parse_args()
    run(given.seconds, given.sandboxes)
