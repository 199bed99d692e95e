"""A command's round trip: our API, our runner, the docker SDK and a bare process, interleaved.

`python -m benchmarks.exec [--rounds N]` prints tables and writes benchmarks/results/exec.json.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import docker
from anyio import to_thread

from benchmarks import interruptible
from benchmarks.daemon import own_directory, serving
from benchmarks.measure import (
    Act,
    Figure,
    Promise,
    Rate,
    figure,
    interleave,
    show,
    show_promises,
    show_rates,
    write,
)
from memo.ids import SessionRef, UserId
from sandboxd.client import AsyncClient
from sandboxd.engine.docker import find_socket
from sandboxd.models.sandbox import SandboxRequest
from sandboxd.runner.calls import Exec
from sandboxd.sandboxes.manager import SandboxManager
from sandboxd.settings import Settings

SANDBOXES = 8
CLIENTS = 32
TURNS = 3
TURN_S = 2.0


async def spawn() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})  # the baseline is the bare call
    os.waitpid(pid, 0)


async def latency(api: AsyncClient, manager: SandboxManager, rounds: int) -> list[Figure]:
    ref = SessionRef.of("bench", "runner")
    await manager.ensure_sandbox(ref, SandboxRequest(user=UserId("bench")))
    sandbox = await api.ensure_sandbox("api")
    engine = docker.DockerClient(base_url=find_socket(), timeout=60)
    container = engine.containers.get(str(sandbox.container))
    call = Exec(("true",))

    async def runner() -> None:
        with await manager.call(ref) as client:
            await client.exec(call)

    acts: dict[str, Act] = {
        "posix_spawn": spawn,
        "runner client": runner,
        "API": lambda: api.exec("api", ["true"]),
        "API, through bash": lambda: api.exec("api", "true"),
        "docker SDK exec_run": lambda: to_thread.run_sync(container.exec_run, ["true"]),
    }
    try:
        return await interleave(acts, rounds, rarely=frozenset({"docker SDK exec_run"}))
    finally:
        engine.close()
        await manager.destroy(ref)


async def throughput(api: AsyncClient) -> list[Rate]:
    """Commands per second with 32 clients on 8 sandboxes, alternating between our API and `docker exec`."""
    names = [f"load{number}" for number in range(SANDBOXES)]
    containers = [(await api.ensure_sandbox(name)).container for name in names]

    async def ours(number: int) -> None:
        await api.exec(names[number % SANDBOXES], ["true"])

    async def theirs(number: int) -> None:
        await anyio.run_process(["docker", "exec", str(containers[number % SANDBOXES]), "true"])

    done = {"API": 0, "docker exec": 0}
    seconds = {"API": 0.0, "docker exec": 0.0}
    for _ in range(TURNS):
        for name, act in (("API", ours), ("docker exec", theirs)):
            count, took_s = await _turn(CLIENTS, act)
            done[name] += count
            seconds[name] += took_s
    for name in names:
        await api.destroy_sandbox(name)
    return [Rate(name, CLIENTS, done[name], done[name] / seconds[name]) for name in done]


async def _turn(clients: int, act: Callable[[int], Awaitable[None]]) -> tuple[int, float]:
    done = 0

    async def work(number: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await act(number)
            done += 1

    started = time.perf_counter()
    end = started + TURN_S
    async with anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(work, number)
    return done, time.perf_counter() - started


async def beside_a_sleep(api: AsyncClient, rounds: int) -> list[Figure]:
    """`true` alone, and while `sleep 2` runs continuously in the same sandbox."""
    took: dict[str, list[float]] = {"alone": [], "during sleep 2": []}
    for _ in range(max(rounds // 50, 1)):
        for name in took:
            async with anyio.create_task_group() as tasks:
                if name == "during sleep 2":
                    tasks.start_soon(api.exec, "api", ["sleep", "2"])
                    await anyio.sleep(0.02)
                for _ in range(50):
                    started = time.perf_counter()
                    await api.exec("api", ["true"])
                    took[name].append((time.perf_counter() - started) * 1000)
    return [figure(name, values) for name, values in took.items()]


def promises_of(latencies: list[Figure], rates: list[Rate], sleeping: list[Figure]) -> list[Promise]:
    by_name = {item.name: item for item in latencies}
    bare, sdk = by_name["posix_spawn"], by_name["docker SDK exec_run"]
    api, runner = by_name["API"].ratio_to(bare), by_name["runner client"].ratio_to(bare)
    faster = sdk.p50_ms / by_name["API"].p50_ms
    ours, theirs = rates
    rate = ours.per_second / theirs.per_second
    alone, beside = sleeping
    n = by_name["API"].n
    return [
        Promise("command through the API, p50", "≤ 2.5 × posix_spawn", f"{api:.2f} ×", api <= 2.5, n),
        Promise("runner client alone, p50", "≤ 1.5 × posix_spawn", f"{runner:.2f} ×", runner <= 1.5, n),
        Promise("faster than docker SDK exec_run", "≥ 20 ×", f"{faster:.1f} ×", faster >= 20, sdk.n),
        Promise(
            "commands a second, 32 clients",
            "≥ 30 × docker exec",
            f"{rate:.1f} × ({ours.per_second:.0f}/s)",
            rate >= 30,
            ours.n,
        ),
        Promise(
            "`true` during `sleep 2`, p50",
            "as alone",
            f"{beside.ratio_to(alone):.2f} ×",
            beside.ratio_to(alone) <= 1.25,
            beside.n,
        ),
    ]


async def measure(root: Path, rounds: int) -> tuple[list[Figure], list[Figure], list[Rate]]:
    settings = Settings(data=root / "runner", socket=root / "unused.sock", pool=0)
    async with (
        serving(root / "api") as daemon,
        AsyncClient(daemon.socket, tenant="bench") as api,
        SandboxManager(settings) as manager,
    ):
        latencies = await latency(api, manager, rounds)
        sleeping = await beside_a_sleep(api, min(rounds, 200))
        rates = await throughput(api)
        await api.destroy_sandbox("api")
    return latencies, sleeping, rates


def run(rounds: int) -> None:
    with own_directory() as root:
        latencies, sleeping, rates = interruptible.run(measure, root, rounds)
    show("one command, `true`", latencies, "posix_spawn")
    show("during a slow call", sleeping, "alone")
    show_rates("commands a second", rates, "docker exec")
    promises = promises_of(latencies, rates, sleeping)
    show_promises(promises)
    path = write("exec", {"one command, `true`": latencies, "during a slow call": sleeping}, promises, rates=rates)
    print(f"written to {path.name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    run(parser.parse_args().rounds)
