"""What the network of a sandbox costs: downloads through the proxy, and tool calls beside downloads and beside abuse.

`python -m benchmarks.egress [--rounds N] [--engine docker|bubblewrap] [--megabytes N]` prints tables and writes
benchmarks/results/egress.json. Every round measures everything once. The same curl on the host, and a bare process, are
the baselines. All traffic stays on loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import interruptible
from benchmarks.daemon import Running, cost_of, own_directory, serving
from benchmarks.exec import spawn
from benchmarks.file_server import HOST, FileServer, serving_files
from benchmarks.measure import Act, Figure, Promise, figure, show, show_promises, write
from sandboxd.client import AsyncClient
from sandboxd.engine.bubblewrap import BubblewrapEngine
from sandboxd.engine.protocol import LABEL_INSTANCE
from sandboxd.errors import SandboxdError
from sandboxd.image import resolve_image
from sandboxd.runner.inside.container_paths import PROXY_PORT

# Plain HTTP is forwarded by the daemon as requests; TLS passes through a CONNECT tunnel that it does not read.
DOWNLOAD, CPU, SMALL = "one download", "CPU time for 1 GB", "a request for 1 KB"
BESIDE, ABUSED = "`true` beside a download in its sandbox", "`true` beside a hostile sandbox"
PLAIN, TLS = "plain HTTP", "TLS"
TRUE, BARE, ALONE, BUSY = "`true`", "posix_spawn", "alone", "beside a download"
SESSIONS = ("busy", "calm", "hostile")
TURN = 25
WARM = 2
"""The number of calls at the start of a turn that do not count."""
SETTLE_S = 0.3
WAIT_S = 60
DOWNLOAD_S = 300
WANTED_MB_S = 200
AS_ALONE = 1.25
MB, GB, KB = 1_000_000, 1_000_000_000, 1_000

# What a hostile client does inside. Each says when it has begun, and ends by itself if it is never killed.
PRELUDE = f"""
import collections, resource, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
until = time.monotonic() + 120
def connect():
    s = socket.socket(); s.setblocking(False); s.connect_ex(("127.0.0.1", {PROXY_PORT})); return s
def send(s, data):
    try: s.send(data)
    except BlockingIOError: pass
"""
ABUSES = {
    "beside 200 slow requests": """
held = [connect() for _ in range(200)]
print("begun", flush=True)
while time.monotonic() < until:
    for place, s in enumerate(held):
        try: send(s, b"G")
        except OSError: s.close(); held[place] = connect()
    time.sleep(0.1)
""",
    "beside a flood of connections": """
held = collections.deque(connect() for _ in range(500))
opened = 500
while time.monotonic() < until:
    oldest = held.popleft()
    try: send(oldest, b"CONNECT x")
    except OSError: pass
    oldest.close(); held.append(connect()); opened += 1
    if opened == 2000: print("begun", flush=True)
""",
    "beside 30 unread downloads": """
held = [socket.create_connection(("127.0.0.1", PROXY)) for _ in range(30)]
for s in held: s.sendall(b"GET http://HOST/bytes/1000000000000 HTTP/1.1\\r\\nHost: HOST\\r\\n\\r\\n")
print("begun", flush=True)
time.sleep(120)
""".replace("PROXY", str(PROXY_PORT)),
}


@dataclass(slots=True)
class Measured:
    """The times in ms by group and name, and what else was seen."""

    times: defaultdict[str, defaultdict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    beside_mb_s: list[float] = field(default_factory=list)
    """The speed of the downloads beside which calls were measured."""
    memory_mb: dict[str, float] = field(default_factory=dict)
    """The daemon's largest memory after a turn, by kind of turn."""

    def figures(self) -> dict[str, list[Figure]]:
        return {group: [figure(name, values) for name, values in found.items()] for group, found in self.times.items()}


@dataclass(frozen=True, slots=True)
class Bench:
    """The daemon under test, its sandboxes and the server that they reach."""

    daemon: Running
    client: AsyncClient
    files: FileServer
    runner_pid: int
    size_bytes: int

    def url(self, kind: str, size_bytes: int) -> str:
        scheme, port = ("http", self.files.http) if kind == PLAIN else ("https", self.files.https)
        return f"{scheme}://{HOST}:{port}/bytes/{size_bytes}"


async def measure(rounds: int, engine: str, size_bytes: int) -> Measured:
    measured = Measured()
    with own_directory() as root:
        async with serving_files() as files, starting(root, engine, files, size_bytes) as bench:
            await one_round(bench, Measured())  # fills caches
            for _ in track(range(rounds), description="interleaving", transient=True):
                await one_round(bench, measured)
    return measured


async def one_round(bench: Bench, measured: Measured) -> None:
    for kind in (PLAIN, TLS):
        await download(bench, measured, kind)
        await request_little(bench, measured, kind)
    await turn(bench, measured, BESIDE, "busy", ALONE)
    async with downloading(bench, measured):
        await turn(bench, measured, BESIDE, "busy", BUSY)
    for kind in ABUSES:
        await turn(bench, measured, ABUSED, "calm", ALONE)
        async with abusing(bench, kind):
            await turn(bench, measured, ABUSED, "calm", kind)


@asynccontextmanager
async def starting(root: Path, engine: str, files: FileServer, size_bytes: int) -> AsyncIterator[Bench]:
    """Start a daemon and the sandboxes, and remove them however the benchmark ends."""
    image = resolve_image(os.environ.get("SANDBOXD_IMAGE"), engine)
    options = json.dumps({"hosts": {HOST: ["127.0.0.1"]}})
    async with (
        serving(root / "daemon", engine=engine, image=image, network=options) as daemon,
        AsyncClient(daemon.socket) as client,
    ):
        try:
            rules = [{"host": HOST, "port": port, "private": True} for port in (files.http, files.https)]
            for session in SESSIONS:
                await client.ensure_sandbox(session, network={"allow": rules})
            yield Bench(daemon, client, files, await runner_of(client, "busy"), size_bytes)
        finally:
            with anyio.move_on_after(WAIT_S, shield=True):
                for session in SESSIONS:
                    with suppress(SandboxdError):
                        await client.destroy_sandbox(session)
                if engine == "bubblewrap":
                    await remove_processes(daemon.data)


async def remove_processes(data: Path) -> None:
    """Remove the bubblewrap sandboxes that a daemon which failed has left."""
    engine = BubblewrapEngine(data / "engine")
    for container in await engine.find({LABEL_INSTANCE: (data / "instance").read_text().strip()}):
        await engine.remove(container.id)
    await engine.aclose()


async def runner_of(client: AsyncClient, session: str) -> int:
    """Return the pid on this host of the first process of the sandbox, which is its runner."""
    namespace = (await client.exec(session, ["readlink", "/proc/self/ns/pid"])).stdout.strip()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if os.readlink(place / "ns" / "pid") == namespace:
                numbers = next(line for line in (place / "status").read_text().splitlines() if "NSpid" in line)
                if numbers.split()[-1] == "1":
                    return int(place.name)
    raise RuntimeError(f"cannot find the runner of {session}: no process here is the first of {namespace}")


async def download(bench: Bench, measured: Measured, kind: str) -> None:
    url = bench.url(kind, bench.size_bytes)
    times = measured.times[f"{DOWNLOAD}, {bench.size_bytes // MB} MB"]
    times[f"host, {kind}"].append(await fetch_here(url, bench.size_bytes))
    processes = {"daemon": bench.daemon.pid, "runner": bench.runner_pid}
    before = {name: cost_of(pid).cpu_s for name, pid in processes.items()}
    times[f"sandbox, {kind}"].append(await fetch_inside(bench, url, bench.size_bytes))
    for name, pid in processes.items():
        spent_ms = (cost_of(pid).cpu_s - before[name]) * 1000
        measured.times[CPU][f"{name}, {kind}"].append(spent_ms * GB / bench.size_bytes)


async def request_little(bench: Bench, measured: Measured, kind: str) -> None:
    url = bench.url(kind, KB)
    for _ in range(WARM):
        await fetch_inside(bench, url, KB)
    for _ in range(TURN // 5):
        measured.times[SMALL][f"host, {kind}"].append(await fetch_here(url, KB))
        measured.times[SMALL][f"sandbox, {kind}"].append(await fetch_inside(bench, url, KB))


def curl(url: str, *options: str) -> list[str]:
    """Return the command that downloads to nowhere, and prints how long it took and how much came."""
    return ["curl", "-sS", "-k", "-o", "/dev/null", "-w", "%{time_total} %{size_download}", *options, url]


async def fetch_here(url: str, size_bytes: int) -> float:
    port = url.split(":")[2].partition("/")[0]
    command = curl(url, "--noproxy", "*", "--resolve", f"{HOST}:{port}:127.0.0.1")
    with anyio.fail_after(DOWNLOAD_S):
        return took_ms((await anyio.run_process(command)).stdout.decode(), size_bytes)


async def fetch_inside(bench: Bench, url: str, size_bytes: int, *, session: str = "busy") -> float:
    result = await bench.client.exec(session, curl(url), timeout_s=DOWNLOAD_S)
    if result.exit_code != 0:
        raise RuntimeError(f"cannot download inside: {result.stderr.strip() or result.stdout}")
    return took_ms(result.stdout, size_bytes)


def took_ms(printed: str, size_bytes: int) -> float:
    seconds, received = printed.split()
    if int(received) != size_bytes:
        raise RuntimeError(f"cannot measure the download: {received} of {size_bytes} bytes came")
    return float(seconds) * 1000


async def turn(bench: Bench, measured: Measured, group: str, session: str, kind: str) -> None:
    acts: dict[str, Act] = {BARE: spawn, TRUE: lambda: bench.client.exec(session, "true")}
    for number in range(WARM + TURN):
        for name, act in acts.items():
            started = time.perf_counter()
            await act()
            if number >= WARM:
                measured.times[group][f"{name}, {kind}"].append((time.perf_counter() - started) * 1000)
    seen_mb = cost_of(bench.daemon.pid).rss_mb
    measured.memory_mb[kind] = max(measured.memory_mb.get(kind, 0), seen_mb)


@asynccontextmanager
async def downloading(bench: Bench, measured: Measured) -> AsyncIterator[None]:
    """Download again and again in the sandbox of the calls."""
    url = bench.url(PLAIN, bench.size_bytes)
    loop = f"for _ in $(seq 1000); do curl -sS -o /dev/null {url} || exit; done"
    first_bytes = await bench.files.sent_bytes()
    process = await bench.client.start_process("busy", loop)
    try:
        with anyio.fail_after(WAIT_S):
            while (before := await bench.files.sent_bytes()) == first_bytes:
                await anyio.sleep(0.01)
        started = time.perf_counter()
        yield
        moved_mb = (await bench.files.sent_bytes() - before) / MB
        measured.beside_mb_s.append(moved_mb / (time.perf_counter() - started))
    finally:
        await kill(bench, "busy", process.id)


@asynccontextmanager
async def abusing(bench: Bench, kind: str) -> AsyncIterator[None]:
    code = PRELUDE + ABUSES[kind].replace("HOST", f"{HOST}:{bench.files.http}")
    process = await bench.client.start_process("hostile", ["python3", "-c", code])
    try:
        printed = await bench.client.read_process("hostile", process.id, wait_s=WAIT_S)
        if printed.data != b"begun\n":
            end = printed.data.decode("utf-8", "replace")[-500:]
            raise RuntimeError(f"cannot measure {kind}: it did not begin:\n{end}")
        await rest(bench)
        yield
        if not (await bench.client.read_process("hostile", process.id)).process.running:
            raise RuntimeError(f"cannot measure {kind}: it ended before the turn did")
    finally:
        await kill(bench, "hostile", process.id)


async def rest(bench: Bench) -> None:
    """Wait until the server has nothing to send, because every buffer on the way is full."""
    with anyio.fail_after(WAIT_S):
        sent_bytes = -1
        while sent_bytes != (sent_bytes := await bench.files.sent_bytes()):
            await anyio.sleep(SETTLE_S)


async def kill(bench: Bench, session: str, process: str) -> None:
    """Kill it, and wait until its connections are over: then another one gets a place."""
    with anyio.move_on_after(WAIT_S, shield=True), suppress(SandboxdError):
        await bench.client.kill_process(session, process)
    await fetch_inside(bench, bench.url(PLAIN, KB), KB, session=session)
    await anyio.sleep(SETTLE_S)  # what ends late belongs to no turn


def promises_of(measured: Measured, size_bytes: int) -> list[Promise]:
    figures = {item.name: item for group, found in measured.figures().items() for item in found if DOWNLOAD in group}
    promises = []
    for kind in (PLAIN, TLS):
        ours, base = figures[f"sandbox, {kind}"], figures[f"host, {kind}"]
        text = f"{mb_s(ours.p50_ms, size_bytes):.0f} MB/s (the host: {mb_s(base.p50_ms, size_bytes):.0f})"
        is_kept = mb_s(ours.p50_ms, size_bytes) >= WANTED_MB_S
        promises.append(Promise(f"one download, {kind}, p50", f"≥ {WANTED_MB_S} MB/s", text, is_kept, ours.n))
    beside = measured.figures()
    speed = figure("MB/s", measured.beside_mb_s).p50_ms
    promises += compare(beside[BESIDE], BUSY, f"; the download: {speed:.0f} MB/s")
    for kind in ABUSES:
        promises += compare(beside[ABUSED], kind)
    return promises


def compare(figures: Sequence[Figure], kind: str, also: str = "") -> list[Promise]:
    """Return what became of `true` and of a bare process, at p50 and p95."""
    by_name: Mapping[str, Figure] = {item.name: item for item in figures}
    promises = []
    for rank in ("p50", "p95"):
        ours, bare = (
            getattr(by_name[f"{name}, {kind}"], f"{rank}_ms") / getattr(by_name[f"{name}, {ALONE}"], f"{rank}_ms")
            for name in (TRUE, BARE)
        )
        text = f"{ours:.2f} × (a bare process: {bare:.2f} ×{also})"
        n = by_name[f"{TRUE}, {kind}"].n
        promises.append(Promise(f"{TRUE} {kind}, {rank}", f"≤ {AS_ALONE:g} × alone", text, ours <= AS_ALONE, n))
    return promises


def mb_s(took_ms: float, size_bytes: int) -> float:
    return size_bytes / MB / (took_ms / 1000)


def show_speeds(figures: Sequence[Figure], size_bytes: int) -> None:
    table = Table(title=f"{DOWNLOAD}, {size_bytes // MB} MB", title_justify="left")
    for heading in ("what", "p50 MB/s", "p95 MB/s", "n", "× the host"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    by_name = {item.name: item for item in figures}
    for item in figures:
        base = by_name[item.name.replace("sandbox", "host")]
        speeds = (f"{mb_s(value, size_bytes):.0f}" for value in (item.p50_ms, item.p95_ms))
        table.add_row(item.name, *speeds, str(item.n), f"{1 / item.ratio_to(base):.2f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--engine", choices=("docker", "bubblewrap"), default="docker")
    parser.add_argument("--megabytes", type=int, default=500, help="the size of one download")
    given = parser.parse_args()
    size_bytes = given.megabytes * MB
    measured = interruptible.run(measure, given.rounds, given.engine, size_bytes)
    figures = measured.figures()
    for group, found in figures.items():
        if group.startswith(DOWNLOAD):
            show_speeds(found, size_bytes)
        else:
            show(group, found, f"{TRUE}, {ALONE}")
    seen = ", ".join(f"{kind} {memory_mb:.0f}" for kind, memory_mb in measured.memory_mb.items())
    print(f"the daemon's memory in MB, at most: {seen}")
    promises = promises_of(measured, size_bytes)
    show_promises(promises)
    name = "egress" if given.engine == "docker" else f"egress-{given.engine}"
    print(f"written to {write(name, figures, promises).name}")


if __name__ == "__main__":
    main()
