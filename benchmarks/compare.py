"""sandboxd and the peers on the same jobs in one run: first result, command, throughput, files, an afternoon, idle.

`python -m benchmarks.compare [--jobs …] [--peers …]` prints tables and writes benchmarks/results/compare.json, or
compare-part.json for a partial run. `promises_of`, which is pure, compares the figures with the promises.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks import interruptible
from benchmarks.afternoon import CALLS, CHUNK
from benchmarks.contest import Contest, contest
from benchmarks.daemon import own_directory
from benchmarks.idle import Idle, idle_cost, show_idle
from benchmarks.measure import (
    Figure,
    Missing,
    Promise,
    Rate,
    figure,
    show,
    show_missing,
    show_promises,
    show_rates,
    write,
)
from benchmarks.peers import BASELINE, Entry, pick

SANDBOXES = 8
CLIENTS = (1, 8, 32)
RATE_S = 1.0
RATE_ROUNDS = 2
WARM_UP = 2
"""The number of warm-up commands per turn, which are not measured."""
TENTH_MS = 40.0
"""A contender slower than this runs only every tenth round: ten of its commands take as long as a hundred fast ones."""


@dataclass(slots=True)
class Found:
    """The measurements so far."""

    figures: dict[str, list[Figure]] = field(default_factory=dict)
    rates: list[Rate] = field(default_factory=list)
    idle: list[Idle] = field(default_factory=list)


async def first(found: Found, ring: Contest, rounds: int) -> None:
    """From nothing to the result of the first command. Ours has 3 documents and 100 artifacts, the others none."""
    numbers = iter(range(1_000_000))

    async def ask(worker, number):  # type: ignore[no-untyped-def]
        name = f"first{next(numbers)}"
        await worker.ask("prepare", name=name)
        answer = await worker.ask("open", name=name)
        await worker.ask("close", name=name)
        await worker.ask("settle")
        return answer

    await ring.interleave("warming up", 1, ask)
    found.figures["session → first result"] = await ring.interleave("first result", max(5, rounds // 10), ask)


async def command(found: Found, ring: Contest, rounds: int) -> None:
    """A warm command, and one after a pause, when the CPU caches hold the data of other contenders."""

    async def ask(worker, number):  # type: ignore[no-untyped-def]
        answer = await worker.ask("run", name="s0", times=1)
        paused.setdefault(worker.entry.name, []).extend(answer["took_ms"])
        return await worker.ask("run", name="s0", times=1, before=WARM_UP)

    paused: dict[str, list[float]] = {}

    names = _unpooled(ring)
    slow = {name: 10 for name, p50 in (await _warm(ring, names)).items() if p50 > TENTH_MS}
    found.figures["command, `true`"] = await ring.interleave("command", rounds, ask, among=names, rarely=slow)
    found.figures["command, `true`, after a pause"] = [figure(name, took) for name, took in paused.items()]


async def rate(found: Found, ring: Contest, rounds: int) -> None:
    """Commands per second with 1, 8 and 32 clients on 8 sandboxes, in short alternating turns."""
    for clients in CLIENTS:
        # The bare call blocks, so it has one client; more clients would not give a useful figure.
        names = [name for name in _unpooled(ring) if clients == 1 or name != BASELINE]
        done: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
        for _ in range(RATE_ROUNDS):
            answers = await ring.ask_all(
                names,
                lambda worker, clients=clients: worker.ask(  # type: ignore[misc]
                    "rate", names=[f"s{n}" for n in range(SANDBOXES)], clients=clients, seconds=RATE_S
                ),
            )
            for name, answer in answers.items():
                done[name].append((answer["done"], answer["seconds"]))
        for name, turns in done.items():
            if turns:
                count = sum(n for n, _ in turns)
                found.rates.append(Rate(name, clients, count, count / sum(seconds for _, seconds in turns)))


async def files(found: Found, ring: Contest, rounds: int) -> None:
    """Write 4 KB and read them back."""
    for verb in ("write", "read"):

        async def ask(worker, number, verb=verb):  # type: ignore[no-untyped-def]
            return await worker.ask(verb, name="s0", times=1)

        names = _unpooled(ring)
        await ring.ask_all(names, lambda worker: worker.ask("write", name="s0", times=2))
        slow = {name: 5 for name, p50 in (await _warm(ring, names)).items() if p50 > TENTH_MS}
        figures = await ring.interleave(verb, max(rounds // 2, 10), ask, among=names, rarely=slow)
        found.figures[f"{verb} 4 KB"] = figures


async def afternoon(found: Found, ring: Contest, rounds: int) -> None:
    """200 mixed calls over 100 files, one chunk per contender in turn; reports the time of one call and the sum."""
    totals: dict[str, list[float]] = {}

    async def ask(worker, number):  # type: ignore[no-untyped-def]
        answer = await worker.ask("play", name="s1", chunk=number)
        totals.setdefault(worker.entry.name, []).extend(answer["took_ms"])
        return answer

    title = f"a call of an afternoon of {CALLS}"
    found.figures[title] = await ring.interleave("afternoon", CALLS // CHUNK, ask, among=_unpooled(ring))
    whole = [figure(name, [sum(took)]) for name, took in totals.items() if len(took) == CALLS]
    found.figures[f"the whole afternoon, {CALLS} calls"] = whole


async def idle(found: Found, ring: Contest, rounds: int) -> None:
    """Measure the cost of an idle sandbox."""
    containers: dict[str, list[str]] = {}
    for name in _unpooled(ring):
        ids = [held for n in range(SANDBOXES) if (held := ring.containers.get((name, f"s{n}"))) is not None]
        if ids:
            containers[name] = ids
    found.idle = await idle_cost(containers)


Job = Callable[[Found, Contest, int], Awaitable[None]]
JOBS: Mapping[str, Job] = {
    "first": first,
    "command": command,
    "rate": rate,
    "files": files,
    "afternoon": afternoon,
    "idle": idle,
}


def _unpooled(ring: Contest) -> list[str]:
    """The origin of a sandbox does not matter once it exists."""
    return [
        name for name, worker in ring.workers.items() if not worker.entry.pooled and (name, "s0") in ring.containers
    ]


async def _warm(ring: Contest, names: Sequence[str]) -> dict[str, float]:
    answers = await ring.ask_all(names, lambda worker: worker.ask("run", name="s0", times=5))
    return {name: figure(name, answer["took_ms"]).p50_ms for name, answer in answers.items()}


async def compare(entries: Sequence[Entry], jobs: Sequence[str], rounds: int) -> tuple[Found, list[Missing]]:
    found = Found()
    with own_directory() as root:
        async with contest(entries, root) as ring:
            for job in jobs:
                if job != "first" and not ring.containers:
                    await ring.open_sandboxes(
                        SANDBOXES, [name for name, w in ring.workers.items() if not w.entry.pooled]
                    )
                started, ring.job = time.monotonic(), job
                await JOBS[job](found, ring, rounds)
                print(f"{job}: {time.monotonic() - started:.0f} s", flush=True)
            return found, list(dict.fromkeys(ring.missing))


def promises_of(found: Found) -> list[Promise]:
    kept: list[Promise] = []

    def at_least(text: str, wanted: float, than: str, value: float, n: int, more: str = "") -> None:
        kept.append(Promise(text, f"≥ {wanted:g} × {than}", f"{value:.1f} ×{more}", value >= wanted, n))

    command = {item.name: item for item in found.figures.get("command, `true`", [])}
    if {"sandboxd", BASELINE} <= command.keys():
        ratio = command["sandboxd"].ratio_to(command[BASELINE])
        kept.append(
            Promise(
                "a command compared with a bare process",
                f"≤ 2.5 × {BASELINE}",
                f"{ratio:.2f} ×",
                ratio <= 2.5,
                command["sandboxd"].n,
            )
        )
    for peer, wanted in (("docker exec, SDK", 20.0), ("swe-rex", 2.0)):
        if {"sandboxd", peer} <= command.keys():
            at_least("a command is faster", wanted, peer, command[peer].ratio_to(command["sandboxd"]), command[peer].n)
    most = [item for item in found.rates if item.clients == CLIENTS[-1]]
    rates = {item.name: item.per_second for item in most}
    counts = {item.name: item.n for item in most}
    for peer, wanted in (("docker exec, CLI", 30.0), ("swe-rex", 2.5)):
        if {"sandboxd", peer} <= rates.keys():
            more = f" ({rates['sandboxd']:.0f}/s)"
            at_least("commands a second, 32 clients", wanted, peer, rates["sandboxd"] / rates[peer], counts[peer], more)
    first = {item.name: item for item in found.figures.get("session → first result", [])}
    if (pool := first.get("sandboxd, pool")) is not None:
        kept.append(
            Promise("first result from the pool, p50", "≤ 20 ms", f"{pool.p50_ms:.1f} ms", pool.p50_ms <= 20, pool.n)
        )
        for peer, wanted in (("sandboxd", 15.0), ("llm-sandbox, pool", 4.0)):
            if peer in first:
                than = "a cold create" if peer == "sandboxd" else peer
                at_least(
                    "first result from the pool is faster", wanted, than, first[peer].ratio_to(pool), first[peer].n
                )
    return kept


def show_found(found: Found, missing: Sequence[Missing]) -> None:
    for title, figures in found.figures.items():
        if figures:
            show(title, figures, "sandboxd" if title.startswith("session") else BASELINE)
    if found.rates:
        show_rates(f"commands a second, {SANDBOXES} sandboxes", found.rates, "docker exec, CLI")
    if found.idle:
        show_idle(found.idle)
    show_missing(missing)


def run(peers: Sequence[str], jobs: Sequence[str], rounds: int) -> None:
    found, missing = interruptible.run(compare, pick(peers), jobs, rounds)
    promises = promises_of(found)
    show_found(found, missing)
    show_promises(promises)
    # A partial run must not replace the results of a full run, which are published.
    name = "compare" if list(jobs) == list(JOBS) and "all" in peers else "compare-part"
    path = write(name, found.figures, promises, rates=found.rates, missing=missing, idle=found.idle)
    print(f"written to {path.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--peers", nargs="+", default=["all"])
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    run(given.peers, given.jobs, given.rounds)


if __name__ == "__main__":
    main()
