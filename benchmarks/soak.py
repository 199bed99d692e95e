"""A soak test: hours of mixed load, to check whether the daemon's memory, fds, threads, tasks or mounts grow.

`python -m benchmarks.soak --minutes N` runs creates, commands, tools, memory writes, refreshes and destroys, takes a
sample every few seconds, fits a line through each figure and reports whether it is flat; a wrong answer ends the test.
Then it checks for leftovers of all those sandboxes. It writes benchmarks/results/soak.json.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio import to_thread
from rich.console import Console
from rich.table import Table

from benchmarks import interruptible
from benchmarks.daemon import Running, cost_of, own_directory, serving
from benchmarks.measure import Curve, Promise, show_promises, slope, write
from benchmarks.unix_http import metrics
from sandboxd.client import AsyncClient
from sandboxd.errors import SandboxdError

EVERY_S = 5.0
LINES_EVERY = 12
"""The number of samples between two lines of progress."""
WARM_UP = 0.2
"""The share of samples at the start that do not count, while caches fill and the allocator reaches its size."""
LEAST_MINUTES = 10.0
TEXTS_FIRST = 20_000
"""More than any bounded cache of the daemon holds, so that all are full before measuring starts."""
AGENTS = 4
PAUSE_S = 0.02
POOL = 2
ROWS = 12
SETTLE_S = 60.0
LOOSE = 4
LEFT = ("containers", "mounts", "directories", "fds", "threads")
CALLS_EACH = 40
# How much a figure may grow per hour and still count as flat.
ALLOWED_PER_HOUR = {"rss_mb": 10.0, "fds": 5.0, "threads": 2.0, "tasks": 5.0, "containers": 3.0, "mounts": 3.0}


@dataclass(slots=True)
class Seen:
    samples: list[Mapping[str, float]] = field(default_factory=list)
    calls: int = 0
    cycles: int = 0
    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)


async def sample(daemon: Running) -> Mapping[str, float]:
    cost = cost_of(daemon.pid)
    found = await to_thread.run_sync(metrics, daemon.socket)
    label = f"label=sandboxd.instance={(daemon.data / 'instance').read_text().strip()}"
    listed = await anyio.run_process(["docker", "ps", "-aq", "--filter", label])
    mounts = Path("/proc/self/mountinfo").read_text()
    taken = {
        "minutes": time.monotonic() / 60,
        "rss_mb": cost.rss_mb,
        "fds": float(cost.fds),
        "threads": float(cost.threads),
        "containers": float(len(listed.stdout.split())),
        "mounts": float(mounts.count(f" {daemon.data}/")),
    }
    tasks = next((value for name, value in found.items() if name.startswith("sandboxd_tasks")), None)
    return taken if tasks is None else {**taken, "tasks": tasks}


async def agent(api: AsyncClient, number: int, seen: Seen, until: float) -> None:
    """Run agents one after another, each of which creates a sandbox, works in it and destroys it."""
    dice = random.Random(number)
    user = f"user{number % 2}"
    while time.monotonic() < until:
        session = f"soak{number}-{dice.getrandbits(48):x}"
        await api.ensure_sandbox(session, user)
        for call in range(CALLS_EACH):
            if time.monotonic() > until:
                break
            await work(api, session, user, call, dice)
            seen.calls += 1
            await anyio.sleep(PAUSE_S)
        await api.destroy_sandbox(session)
        seen.cycles += 1


async def work(api: AsyncClient, session: str, user: str, call: int, dice: random.Random) -> None:
    """Make one call of a kind that agents, host jobs and impatient clients make."""
    path = f"/workspace/part{call % 10}.txt"
    match dice.randrange(16):
        case 0 | 1 | 2:
            check("a command's exit code", (await api.exec(session, ["true"])).exit_code, 0)
        case 3:
            found = await api.exec(session, "seq 200; ls -la /workspace")
            check("a command's first lines", found.stdout.split()[:200], [str(line) for line in range(1, 201)])
        case 4:
            stopped = await api.exec(session, "sleep 5 & yes | head -c 100000; sleep 5", timeout_s=0.1)
            check("whether it timed out", stopped.timed_out, True)
        case 5:
            await leave_in_the_middle(api, session)
        case 6:
            process = await api.start_process(session, "sleep 60")
            await api.kill_process(session, process.id)
        case 7:
            await api.tool(session, "Write", {"file_path": path, "contents": f"{call}\n" * 50})
        case 8:
            await api.tool(session, "Edit", {"file_path": path, "old_string": "4", "new_string": "5"})
        case 9:
            await api.tool(session, "Glob", {"pattern": "*.txt"})
        case 10:
            await api.tool(session, "Grep", {"pattern": "Notes", "path": "/workspace/memo"})
        case 11:
            await api.append_memo(session, "NOTES.md", f"- call {call}\n")
        case 12:
            await api.write_memo(user, "USER.md", f"call {call} {dice.random()}\n" * 20, scope="user")
        case 13:
            await api.write_artifact(session, f"result{call}.txt", f"{dice.random()}\n" * 400)
        case 14:
            await api.refresh_memo_mirror(session)
        case 15:
            await ask_for_what_is_not_there(api, session)


def check(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise RuntimeError(f"cannot continue: {what} should be {wanted!r} but is {found!r}")


async def leave_in_the_middle(api: AsyncClient, session: str) -> None:
    async with aclosing(api.exec_stream(session, "echo begun; sleep 60")) as output:
        async for _ in output:
            return


async def ask_for_what_is_not_there(api: AsyncClient, session: str) -> None:
    try:
        await api.read_file(session, "/workspace/never-written")
    except SandboxdError:
        return
    raise RuntimeError("a file that was never written was read")


async def fill_memories(api: AsyncClient) -> None:
    """Fill every bounded cache of the daemon: a text that two mirrors show adds a blob, an event and more."""

    async def write(user: str, texts: int) -> None:
        sessions = [f"fill-{user}-{number}" for number in range(2)]
        for session in sessions:
            await api.ensure_sandbox(session, user)
        for number in range(texts):
            await api.write_memo(user, "USER.md", f"{user}, text {number}\n", scope="user")
        for session in sessions:
            await api.destroy_sandbox(session)

    async with anyio.create_task_group() as tasks:
        for number in range(AGENTS):
            tasks.start_soon(write, f"filler{number}", TEXTS_FIRST // AGENTS)


async def leftovers(daemon: Running, api: AsyncClient) -> Mapping[str, float]:
    """Return what remains once every sandbox is destroyed and the pool is as full as it was at the start."""
    check("the remaining sandboxes", await api.list_sandboxes(), [])
    with anyio.fail_after(SETTLE_S):
        while (await sample(daemon))["containers"] != POOL:
            await anyio.sleep(0.5)
    directories = sum(len(list((daemon.data / name).iterdir())) for name in ("mirrors", "workspaces", "run"))
    return {**await sample(daemon), "directories": float(directories)}


async def soak(root: Path, minutes: float) -> Seen:
    seen = Seen()
    async with (
        serving(root / "daemon", pool=POOL, pool_max=POOL) as daemon,
        AsyncClient(daemon.socket, tenant="bench") as api,
    ):
        print("filling the bounded caches", file=sys.stderr, flush=True)
        await fill_memories(api)
        seen.before = await leftovers(daemon, api)
        until = time.monotonic() + minutes * 60

        async def watch() -> None:
            while time.monotonic() < until:
                seen.samples.append(await sample(daemon))
                if len(seen.samples) % LINES_EVERY == 1:
                    tell(seen)
                await anyio.sleep(min(EVERY_S, max(until - time.monotonic(), 0.1)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            for number in range(AGENTS):
                tasks.start_soon(agent, api, number, seen, until)
        seen.after = await leftovers(daemon, api)
    return seen


def tell(seen: Seen) -> None:
    passed = seen.samples[-1]["minutes"] - seen.samples[0]["minutes"]
    figures = ", ".join(f"{name} {seen.samples[-1][name]:.0f}" for name in ALLOWED_PER_HOUR if name in seen.samples[-1])
    print(f"{passed:5.1f} min: {seen.calls} calls, {seen.cycles} sandboxes; {figures}", file=sys.stderr, flush=True)


def judge(samples: Sequence[Mapping[str, float]]) -> list[Promise]:
    """Fit a line through each figure after the warm-up; it is flat if its growth per hour is within the allowance.

    Return nothing after a short run: a cache that fills in a minute is a steep line but not a leak.
    """
    kept = samples[int(len(samples) * WARM_UP) :]
    first, last = kept[0]["minutes"], kept[-1]["minutes"]
    if last - first < LEAST_MINUTES:
        return []
    promises = []
    for name, allowed in ALLOWED_PER_HOUR.items():
        found = points(kept, name)
        if not found:
            continue
        an_hour = slope(found) * 60
        text = f"{found[0][1]:.0f} → {found[-1][1]:.0f}, {an_hour:+.1f} an hour"
        is_flat = an_hour <= allowed
        promises.append(
            Promise(f"soak of {last - first:.0f} minutes: {name}", f"≤ +{allowed:g} an hour", text, is_flat)
        )
    return promises


def judge_leftovers(seen: Seen) -> Promise:
    """Allow for one or two threads and connections, which vary; a sandbox must leave neither behind."""
    counts = {name: (seen.before[name], seen.after[name]) for name in LEFT}
    text = ", ".join(f"{name} {before:.0f} → {after:.0f}" for name, (before, after) in counts.items())
    is_kept = all(after <= before + (name in ("fds", "threads")) * LOOSE for name, (before, after) in counts.items())
    return Promise(f"{seen.cycles} sandboxes made and destroyed leave nothing", "as before", text, is_kept)


def thinned(samples: Sequence[Mapping[str, float]]) -> Sequence[Mapping[str, float]]:
    """Return as many points as a table can show."""
    return samples[:: max(len(samples) // ROWS, 1)]


def points(samples: Sequence[Mapping[str, float]], name: str) -> list[tuple[float, float]]:
    """Return pairs of minutes since the first sample and the figure."""
    first = samples[0]["minutes"]
    return [(item["minutes"] - first, item[name]) for item in samples if name in item]


def show_samples(seen: Seen) -> None:
    names = [name for name in ("minutes", *ALLOWED_PER_HOUR) if name in seen.samples[0]]
    table = Table(title=f"{seen.calls} calls, {seen.cycles} sandboxes made and destroyed", title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    start = seen.samples[0]["minutes"]
    for item in thinned(seen.samples):
        table.add_row(f"{item['minutes'] - start:.1f}", *(f"{item[name]:.0f}" for name in names[1:]))
    Console().print(table)


def run(minutes: float) -> None:
    with own_directory() as root:
        seen = interruptible.run(soak, root, minutes)
    show_samples(seen)
    lines = judge(seen.samples)
    promises = [*lines, judge_leftovers(seen)]
    show_promises(promises)
    if lines:
        print("flat" if all(promise.is_kept for promise in lines) else "not flat")
    else:
        print(f"too short to tell whether it grows: it needs {LEAST_MINUTES:.0f} minutes after the warm-up")
    curves = [
        Curve(f"mixed load: {name}", "minutes", name, tuple(points(thinned(seen.samples), name)))
        for name in ALLOWED_PER_HOUR
        if name in seen.samples[0]
    ]
    print(f"written to {write('soak', {}, promises, curves=curves).name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    run(parser.parse_args().minutes)
