"""How fast a fork is: from the call to the first result in it, beside a cold create and a copy of the same workspace.

`python -m benchmarks.fork [--rounds N]` prints a table and writes benchmarks/results/fork.json. The source runs, has
100 MB in 200 files, and writes a little before every fork. The daemon has no pool, so that a create is cold.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from rich.progress import track

from benchmarks import interruptible
from benchmarks.daemon import own_directory, serving
from benchmarks.measure import Figure, Promise, figure, show, show_promises, write
from sandboxd.client import AsyncClient

COLD, FORK, COPY, SNAPSHOT = "cold create", "fork", "cp --sparse=always", "snapshot"
_USER = "ada"
_FILL = "seq 200 | xargs -I{} sh -c 'head -c 524288 /dev/urandom > f{}'"
_CHANGE = "head -c 524288 /dev/urandom > f1"
_DOCUMENTS = ("NOTES.md", "TODO.md", "PLAN.md")
_WANTED = 1.5


async def measure(rounds: int) -> list[Figure]:
    took: dict[str, list[float]] = {COLD: [], FORK: [], COPY: [], SNAPSHOT: []}
    with own_directory() as root:
        async with serving(root) as daemon, AsyncClient(daemon.socket) as client:
            await _fill(client)
            image = next((daemon.data / "workspaces").glob("*/image"))
            for _ in track(range(rounds + 1), description="interleaving", transient=True):
                took[COLD].append(await _time(lambda: _create(client)))
                await client.destroy_sandbox("cold")
                await client.exec("source", _CHANGE)
                took[FORK].append(await _time(lambda: _fork(client)))
                await client.destroy_sandbox("forked")
                took[COPY].append(await _time(lambda: _copy(image, root / "copy")))
                (root / "copy").unlink()
                took[SNAPSHOT].append(await _time(lambda: client.take_snapshot("source")))
                for snapshot in await client.list_snapshots("source"):
                    await client.remove_snapshot("source", snapshot.id)
    return [figure(name, values[1:]) for name, values in took.items()]  # the first round makes templates and caches


async def _fill(client: AsyncClient) -> None:
    await client.ensure_sandbox("source", _USER)
    await client.exec("source", _FILL, timeout_s=120)
    await client.append_messages("source", [{"role": "user", "content": f"message {n}"} for n in range(20)])
    for name in _DOCUMENTS:
        await client.write_memo("source", name, f"# {name}\n")


async def _create(client: AsyncClient) -> None:
    await client.ensure_sandbox("cold", _USER)
    await client.exec("cold", ["true"])


async def _fork(client: AsyncClient) -> None:
    await client.fork("source", "forked")
    await client.exec("forked", ["true"])


async def _copy(image: Path, target: Path) -> None:
    await anyio.run_process(["cp", "--sparse=always", str(image), str(target)])


async def _time(act: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await act()
    elapsed_ms = (time.perf_counter() - started) * 1000
    await anyio.sleep(0.05)  # what follows an answer must not delay the next one
    return elapsed_ms


def promises_of(figures: list[Figure]) -> list[Promise]:
    by_name = {item.name: item for item in figures}
    allowed_ms = _WANTED * by_name[COLD].p50_ms + by_name[COPY].p50_ms
    took_ms = by_name[FORK].p50_ms
    wanted = f"≤ {_WANTED:g} × a cold create + cp --sparse = {allowed_ms:.0f} ms"
    text = "a fork of 100 MB → first result"
    return [Promise(text, wanted, f"{took_ms:.0f} ms", took_ms <= allowed_ms, by_name[FORK].n)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    figures = interruptible.run(measure, parser.parse_args().rounds)
    show("to the first result in a fork", figures, COLD)
    promises = promises_of(figures)
    show_promises(promises)
    print(f"written to {write('fork', {'to the first result in a fork': figures}, promises).name}")


if __name__ == "__main__":
    main()
