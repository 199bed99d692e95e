"""Hours of everything at once, bounded: does the daemon grow? Memory, fds, threads, tasks, containers and mounts.

`python -m benchmarks.soak --minutes N` runs creates, commands, tools, memory writes, refreshes and destroys, takes a
sample every few seconds, fits a line through each figure and says flat or not. It writes benchmarks/results/soak.json.
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
"""Samples from one line of progress to the next."""
WARM_UP = 0.2
"""The first part of the samples does not count: caches fill and the allocator finds its size."""
LEAST_MINUTES = 10.0
AGENTS = 4
PAUSE_S = 0.02
CALLS_EACH = 40
# What a figure may grow by in an hour and still be called flat.
ALLOWED_PER_HOUR = {"rss_mb": 10.0, "fds": 5.0, "threads": 2.0, "tasks": 5.0, "containers": 3.0, "mounts": 3.0}


@dataclass(slots=True)
class Seen:
    samples: list[Mapping[str, float]] = field(default_factory=list)
    calls: int = 0
    cycles: int = 0


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
    """One agent after another in the same place: each makes a sandbox, works in it, and leaves."""
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
    """One call of a kind that agents, host jobs and impatient clients make."""
    path = f"/workspace/part{call % 10}.txt"
    match dice.randrange(16):
        case 0 | 1 | 2:
            await api.exec(session, ["true"])
        case 3:
            await api.exec(session, "seq 200; ls -la /workspace")
        case 4:
            await api.exec(session, "sleep 5 & yes | head -c 100000; sleep 5", timeout_s=0.1)
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


async def leave_in_the_middle(api: AsyncClient, session: str) -> None:
    async with aclosing(api.exec_stream(session, "echo begun; sleep 60")) as output:
        async for _ in output:
            return


async def ask_for_what_is_not_there(api: AsyncClient, session: str) -> None:
    try:
        await api.read_file(session, "/workspace/never-written")
    except SandboxdError:
        return
    raise RuntimeError("a file that nobody wrote was read")


async def soak(root: Path, minutes: float) -> Seen:
    seen = Seen()
    async with serving(root / "daemon", pool=2) as daemon, AsyncClient(daemon.socket, tenant="bench") as api:
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
    return seen


def tell(seen: Seen) -> None:
    passed = seen.samples[-1]["minutes"] - seen.samples[0]["minutes"]
    figures = ", ".join(f"{name} {seen.samples[-1][name]:.0f}" for name in ALLOWED_PER_HOUR if name in seen.samples[-1])
    print(f"{passed:5.1f} min: {seen.calls} calls, {seen.cycles} sandboxes; {figures}", file=sys.stderr, flush=True)


def judge(samples: Sequence[Mapping[str, float]]) -> list[Promise]:
    """A line through each figure after the warm-up; flat if an hour of it stays within what is allowed.

    Nothing at all after a short run: a cache that fills in a minute is a steep line and no leak.
    """
    kept = samples[int(len(samples) * WARM_UP) :]
    first, last = kept[0]["minutes"], kept[-1]["minutes"]
    if last - first < LEAST_MINUTES:
        return []
    promises = []
    for name, allowed in ALLOWED_PER_HOUR.items():
        points = [(item["minutes"] - first, item[name]) for item in kept if name in item]
        if not points:
            continue
        an_hour = slope(points) * 60
        text = f"{points[0][1]:.0f} → {points[-1][1]:.0f}, {an_hour:+.1f} an hour"
        is_flat = an_hour <= allowed
        promises.append(
            Promise(f"soak of {last - first:.0f} minutes: {name}", f"≤ +{allowed:g} an hour", text, is_flat)
        )
    return promises


def show_samples(seen: Seen) -> None:
    names = [name for name in ("minutes", *ALLOWED_PER_HOUR) if name in seen.samples[0]]
    table = Table(title=f"{seen.calls} calls, {seen.cycles} sandboxes made and destroyed", title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    start = seen.samples[0]["minutes"]
    for item in seen.samples[:: max(len(seen.samples) // 12, 1)]:
        table.add_row(f"{item['minutes'] - start:.1f}", *(f"{item[name]:.0f}" for name in names[1:]))
    Console().print(table)


def run(minutes: float) -> None:
    with own_directory() as root:
        seen = interruptible.run(soak, root, minutes)
    show_samples(seen)
    promises = judge(seen.samples)
    if promises:
        show_promises(promises)
        print("flat" if all(promise.is_kept for promise in promises) else "not flat")
    else:
        print(f"too short to tell: after the warm-up it takes {LEAST_MINUTES:.0f} minutes")
    start = seen.samples[0]["minutes"]
    curves = [
        Curve(
            name, "minutes", name, tuple((item["minutes"] - start, item[name]) for item in seen.samples if name in item)
        )
        for name in ALLOWED_PER_HOUR
        if name in seen.samples[0]
    ]
    print(f"written to {write('soak', {}, promises, curves=curves).name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    run(parser.parse_args().minutes)
