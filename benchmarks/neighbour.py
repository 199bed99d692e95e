"""`true` in one sandbox while three others misbehave: one spins, one floods output, one forks without end.

`python -m benchmarks.neighbour [--rounds N]` prints a table and writes benchmarks/results/neighbour.json. Quiet and
noisy turns alternate; a bare process on the host is measured in both, because no sandbox can avoid the slowdown that it
sees.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from benchmarks import interruptible
from benchmarks.daemon import own_directory, serving
from benchmarks.exec import spawn
from benchmarks.measure import Act, Figure, Promise, figure, show, show_promises, write
from sandboxd.client import AsyncClient

TURN = 50
FLOOD_BYTES = 16_000_000
"""The output of one call, after which the flooder calls again."""
NOISE = {
    "spinner": ["bash", "-c", "while :; do :; done"],
    "flooder": ["bash", "-c", f"yes flood | head -c {FLOOD_BYTES}"],
    # The process limit stops it, but it never stops trying.
    "bomber": ["bash", "-c", "bomb() { bomb | bomb & bomb; }; while :; do bomb 2>/dev/null; done"],
}


@asynccontextmanager
async def noise(socket: Path) -> AsyncIterator[None]:
    """Run all three from a separate process, so that reading the flood does not affect our figures."""
    command = [sys.executable, "-m", "benchmarks.neighbour", "--noise", str(socket)]
    async with await anyio.open_process(command, stderr=None) as process:
        assert process.stdout is not None
        await process.stdout.receive()  # it prints a line when it begins
        await anyio.sleep(0.3)
        try:
            yield
        finally:
            process.kill()


async def make_noise(socket: str) -> None:
    """Misbehave until killed. The flood is read, so that it goes through the daemon instead of filling a pipe."""
    async with AsyncClient(socket, tenant="noise") as api, anyio.create_task_group() as tasks:

        async def misbehave(name: str) -> None:
            while True:
                async for _ in api.exec_stream(name, NOISE[name], max_output_bytes=FLOOD_BYTES):
                    pass

        for name in NOISE:
            tasks.start_soon(misbehave, name)
        print("noise", flush=True)


async def measure(root: Path, rounds: int) -> list[Figure]:
    took: dict[str, list[float]] = {}
    async with (
        serving(root / "daemon") as daemon,
        AsyncClient(daemon.socket, tenant="bench") as api,
        AsyncClient(daemon.socket, tenant="noise") as noisy,
    ):
        await api.ensure_sandbox("calm", "bench")
        for name in NOISE:
            await noisy.ensure_sandbox(name, "noise")
        acts: dict[str, Act] = {"posix_spawn": spawn, "`true`": lambda: api.exec("calm", ["true"])}
        for act in acts.values():
            await act()

        async def turn(kind: str) -> None:
            for name, act in acts.items():
                for _ in range(TURN):
                    started = time.perf_counter()
                    await act()
                    took.setdefault(f"{name}, {kind}", []).append((time.perf_counter() - started) * 1000)

        for _ in range(max(rounds // TURN, 2)):
            await turn("undisturbed")
            async with noise(daemon.socket):
                await turn("with noise")
            await anyio.sleep(2)  # processes that the noise left behind are killed; that belongs to neither turn
        for name in NOISE:
            await noisy.destroy_sandbox(name)
        await api.destroy_sandbox("calm")
    return [figure(name, values) for name, values in took.items()]


def promises_of(figures: list[Figure]) -> list[Promise]:
    p95 = {item.name: item.p95_ms for item in figures}
    ours, bare = (p95[f"{name}, with noise"] / p95[f"{name}, undisturbed"] for name in ("`true`", "posix_spawn"))
    text = f"{ours:.2f} × (a bare process: {bare:.2f} ×)"
    return [Promise("`true` with noisy neighbours, p95", "≤ 3 × undisturbed", text, ours <= 3, figures[-1].n)]


def run(rounds: int) -> None:
    with own_directory() as root:
        figures = interruptible.run(measure, root, rounds)
    show("noisy neighbours", figures, "`true`, undisturbed")
    promises = promises_of(figures)
    show_promises(promises)
    print(f"written to {write('neighbour', {'noisy neighbours': figures}, promises).name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--noise", metavar="SOCKET", help="only make the noise")
    options = parser.parse_args()
    if options.noise:
        anyio.run(make_noise, options.noise, backend_options={"use_uvloop": True})
    else:
        run(options.rounds)
