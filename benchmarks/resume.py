"""How fast a sandbox comes back: from the call on a hibernated or paused one to its result, beside a cold create.

`python -m benchmarks.resume [--rounds N]` prints a table and writes benchmarks/results/resume.json. The daemon has no
pool, so that a create is cold, and every session has 3 documents and 100 artifacts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable

import anyio
from rich.progress import track

from benchmarks import interruptible
from benchmarks.daemon import own_directory, serving
from benchmarks.measure import Figure, Promise, figure, show, show_promises, write
from sandboxd.client import AsyncClient

COLD, RESUMED, UNPAUSED = "cold create", "resume after hibernation", "resume after a pause"
_USER = "ada"
_DOCUMENTS = ("NOTES.md", "TODO.md", "PLAN.md")
_ARTIFACTS = 100
_ARTIFACT = "a line of a tool's result\n" * 315
_WANTED = 1.2


async def measure(rounds: int) -> list[Figure]:
    took: dict[str, list[float]] = {COLD: [], RESUMED: [], UNPAUSED: []}
    with own_directory() as root:
        async with serving(root) as daemon, AsyncClient(daemon.socket) as client:
            for session in ("cold", "asleep"):
                await _fill(client, session)
            await client.ensure_sandbox("asleep", _USER)
            for _ in track(range(rounds + 1), description="interleaving", transient=True):
                took[COLD].append(await _time(lambda: _first(client, "cold")))
                await client.destroy_sandbox("cold")
                await client.hibernate_sandbox("asleep")
                took[RESUMED].append(await _time(lambda: client.exec("asleep", ["true"])))
                await client.pause_sandbox("asleep")
                took[UNPAUSED].append(await _time(lambda: client.exec("asleep", ["true"])))
    return [figure(name, values[1:]) for name, values in took.items()]  # the first round makes templates and caches


async def _fill(client: AsyncClient, session: str) -> None:
    await client.ensure_session(session, _USER)
    for name in _DOCUMENTS:
        await client.write_memo(session, name, f"# {name}\n")
    for number in range(_ARTIFACTS):
        await client.write_artifact(session, f"call-{number}", _ARTIFACT)


async def _first(client: AsyncClient, session: str) -> None:
    await client.ensure_sandbox(session, _USER)
    await client.exec(session, ["true"])


async def _time(act: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await act()
    elapsed_ms = (time.perf_counter() - started) * 1000
    await anyio.sleep(0.05)  # what follows an answer must not delay the next one
    return elapsed_ms


def promises_of(figures: list[Figure]) -> list[Promise]:
    by_name = {item.name: item for item in figures}
    ratio = by_name[RESUMED].ratio_to(by_name[COLD])
    wanted = f"≤ {_WANTED:g} × a cold create"
    return [
        Promise("a hibernated sandbox → first result", wanted, f"{ratio:.2f} ×", ratio <= _WANTED, by_name[RESUMED].n)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    figures = interruptible.run(measure, parser.parse_args().rounds)
    show("back to the first result", figures, COLD)
    promises = promises_of(figures)
    show_promises(promises)
    print(f"written to {write('resume', {'back to the first result': figures}, promises).name}")


if __name__ == "__main__":
    main()
