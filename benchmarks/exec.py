"""A command's round trip: our API, our runner, the docker SDK and a bare process, interleaved.

`python -m benchmarks.exec [--rounds N]` prints tables and writes benchmarks/results/exec.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import docker
from anyio import to_thread

from benchmarks.measure import Act, Figure, Promise, figure, interleave, show, show_promises, write
from memo.ids import SessionRef, UserId
from sandboxd.client import AsyncClient
from sandboxd.engine.docker import find_socket
from sandboxd.manager import SandboxManager
from sandboxd.runner.calls import Exec
from sandboxd.sandbox import SandboxRequest
from sandboxd.settings import Settings

SANDBOXES = 8
CLIENTS = 32
LOAD_S = 5.0
DOCKER_EXEC_AT_ONCE = 8

Figures = dict[str, list[Figure]]


@asynccontextmanager
async def serving(socket: Path, data: Path) -> AsyncIterator[None]:
    """A daemon of our own in a process of its own."""
    env = {**os.environ, "SANDBOXD_DATA": str(data), "SANDBOXD_SOCKET": str(socket), "SANDBOXD_POOL": "0"}
    async with await anyio.open_process([".venv/bin/sandboxd", "serve"], env=env, stderr=None) as process:
        assert process.stdout is not None
        await process.stdout.receive()
        yield
        process.terminate()
        await process.wait()


async def spawn() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})  # the baseline is the bare call
    os.waitpid(pid, 0)


async def latency(api: AsyncClient, manager: SandboxManager, rounds: int) -> list[Figure]:
    ref = SessionRef.of("bench", "runner")
    await manager.ensure_sandbox(ref, SandboxRequest(user=UserId("bench")))
    sandbox = await api.ensure_sandbox("api")
    engine = docker.DockerClient(base_url=find_socket(), timeout=60)
    container = engine.containers.get(sandbox.container)
    call = Exec(("true",))

    async def runner() -> None:
        with manager.call(ref) as client:
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


async def throughput(api: AsyncClient) -> tuple[float, float]:
    """Commands a second: 32 clients on 8 sandboxes through the API, and the same container with docker exec."""
    names = [f"load{number}" for number in range(SANDBOXES)]
    containers = [(await api.ensure_sandbox(name)).container for name in names]
    ours = await _rate(CLIENTS, lambda number: api.exec(names[number % SANDBOXES], ["true"]))

    async def docker_exec(number: int) -> None:
        await anyio.run_process(["docker", "exec", str(containers[number % SANDBOXES]), "true"])

    theirs = await _rate(DOCKER_EXEC_AT_ONCE, docker_exec)
    for name in names:
        await api.destroy_sandbox(name)
    return ours, theirs


async def _rate(workers: int, act) -> float:  # type: ignore[no-untyped-def]
    done = 0

    async def work(number: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await act(number)
            done += 1

    started = time.perf_counter()
    end = started + LOAD_S
    async with anyio.create_task_group() as tasks:
        for number in range(workers):
            tasks.start_soon(work, number)
    return done / (time.perf_counter() - started)


async def beside_a_sleep(api: AsyncClient, rounds: int) -> list[Figure]:
    """`true` alone, and while `sleep 2` runs in the same sandbox all the time."""
    took: dict[str, list[float]] = {"alone": [], "beside sleep 2": []}
    for _ in range(rounds // 50):
        for name in took:
            async with anyio.create_task_group() as tasks:
                if name == "beside sleep 2":
                    tasks.start_soon(api.exec, "api", ["sleep", "2"])
                    await anyio.sleep(0.02)
                for _ in range(50):
                    started = time.perf_counter()
                    await api.exec("api", ["true"])
                    took[name].append((time.perf_counter() - started) * 1000)
    return [figure(name, values) for name, values in took.items()]


def promises_of(latencies: list[Figure], rates: tuple[float, float], sleeping: list[Figure]) -> list[Promise]:
    by_name = {item.name: item for item in latencies}
    bare, sdk = by_name["posix_spawn"], by_name["docker SDK exec_run"]
    api, runner = by_name["API"].ratio_to(bare), by_name["runner client"].ratio_to(bare)
    faster = sdk.p50_ms / by_name["API"].p50_ms
    rate = rates[0] / rates[1]
    alone, beside = sleeping
    return [
        Promise("command through the API, p50", "≤ 2.5 × posix_spawn", f"{api:.2f} ×", api <= 2.5),
        Promise("runner client alone, p50", "≤ 1.5 × posix_spawn", f"{runner:.2f} ×", runner <= 1.5),
        Promise("faster than docker SDK exec_run", "≥ 20 ×", f"{faster:.1f} ×", faster >= 20),
        Promise("commands a second, 32 clients", "≥ 30 × docker exec", f"{rate:.1f} × ({rates[0]:.0f}/s)", rate >= 30),
        Promise(
            "`true` beside `sleep 2`, p50",
            "as alone",
            f"{beside.ratio_to(alone):.2f} ×",
            beside.ratio_to(alone) <= 1.25,
        ),
    ]


async def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="sandboxd-bench-") as directory:
        root = Path(directory)
        os.chmod(root, 0o711)
        settings = Settings(data=root / "runner", socket=root / "unused.sock", pool=0)
        async with (
            serving(root / "api.sock", root / "api"),
            AsyncClient(root / "api.sock", tenant="bench") as api,
            SandboxManager(settings) as manager,
        ):
            latencies = await latency(api, manager, rounds)
            sleeping = await beside_a_sleep(api, min(rounds, 200))
            rates = await throughput(api)
            await api.destroy_sandbox("api")
    show("one command, `true`", latencies, "posix_spawn")
    show("beside a slow call", sleeping, "alone")
    promises = promises_of(latencies, rates, sleeping)
    show_promises(promises)
    path = write("exec", {"latency": latencies, "beside a sleep": sleeping}, promises)
    print(f"written to {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    anyio.run(main, parser.parse_args().rounds, backend_options={"use_uvloop": True})
