"""Iterations of a turn with ten writes each: bare callbacks, no-op callbacks, and each store, interleaved.

`python -m benchmarks.turns [--rounds N]` prints tables and writes benchmarks/results/turns.json. The overhead of the
dispatch itself is its time with no-op callbacks, minus the time of calling those ten callbacks directly.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio

from benchmarks.measure import Act, Figure, interleave, show, write
from memo import InMemoryStore, SQLiteStore
from memo.stores.filesystem import FilesystemStore
from memo.turn import TurnRunner, noop_callbacks, store_callbacks
from memo.turn.conformance import sample

ITERATIONS = 20
STORES = 10
MESSAGES = [
    sample("message", f"m{n}", "a message of a usual length, which is not very long " * 4) for n in range(STORES)
]


def by_hand(callbacks: dict[str, Any]) -> Act:
    """Call the same callbacks without a turn: one write each."""

    async def act() -> None:
        for _ in range(ITERATIONS):
            for message in MESSAGES:
                await callbacks["store_message_callback"](None, message)

    return act


def in_a_turn(callbacks: dict[str, Any]) -> Act:
    async def executor(ctx: Any, helpers: Any) -> None:
        for message in MESSAGES:
            await ctx.store_message(message)
        if ctx.iteration == ITERATIONS - 1:
            ctx.ack()

    turns = TurnRunner(executor_callback=executor, **callbacks)

    async def act() -> None:
        result = await turns.run()
        if result.error is not None:
            raise result.error

    return act


async def measure(rounds: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExitStack() as stack:
            nothing = noop_callbacks()
            acts: dict[str, Act] = {"noop by hand": by_hand(nothing), "noop in a turn": in_a_turn(nothing)}
            for name, store in {
                "memory": InMemoryStore(),
                "sqlite": SQLiteStore(Path(directory) / "memo.db"),
                "filesystem": FilesystemStore(Path(directory) / "files", watch=False),
            }.items():
                callbacks = store_callbacks(await stack.enter_async_context(store))
                acts[f"{name} by hand"] = by_hand(callbacks)
                acts[f"{name} in a turn"] = in_a_turn(callbacks)
            return await interleave(acts, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    figures = anyio.run(measure, parser.parse_args().rounds, backend_options={"use_uvloop": True})
    show(f"a turn of {ITERATIONS} iterations with {STORES} stores each", figures, "noop in a turn")
    p50 = {figure.name: figure.p50_ms for figure in figures}
    overhead_us = (p50["noop in a turn"] - p50["noop by hand"]) / ITERATIONS * 1000
    print(f"overhead of the dispatch itself: {overhead_us:.0f} µs an iteration, {overhead_us / STORES:.1f} µs a store")
    for name, took_ms in p50.items():
        print(f"{name:24} {ITERATIONS / took_ms * 1000:10.0f} iterations/s")
    print(write("turns", {"turns": figures}, []))


if __name__ == "__main__":
    main()
