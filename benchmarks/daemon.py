"""A daemon for a benchmark, with its own data directory and socket, removed afterwards; and its resource usage.

It reads /proc and the engine's counters. It never touches a daemon that it did not start.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from sandboxd.image import default_image

_READY_S = 120
_MOST_BYTES = 65_536


def image() -> str:
    return os.environ.get("SANDBOXD_IMAGE") or default_image()


@contextmanager
def own_directory() -> Iterator[Path]:
    """A directory that the container's user can traverse, as the parent of a data directory must be."""
    with tempfile.TemporaryDirectory(prefix="sandboxd-bench-") as name:
        os.chmod(name, 0o711)
        yield Path(name)


@dataclass(frozen=True, slots=True)
class Running:
    pid: int
    socket: Path
    data: Path


@asynccontextmanager
async def serving(root: Path, *, pool: int = 0, **settings: object) -> AsyncIterator[Running]:
    """Run a daemon in its own process; on exit it is drained with SIGTERM."""
    socket, data = root / "d.sock", root / "data"
    root.mkdir(exist_ok=True)
    os.chmod(root, 0o711)
    values = {"data": data, "socket": socket, "pool": pool, "idle_timeout_s": 0, "image": image(), **settings}
    env = {**os.environ, **{f"SANDBOXD_{name.upper()}": str(value) for name, value in values.items()}}
    command = [str(Path(sys.executable).parent / "sandboxd"), "serve"]
    with (root / "daemon.log").open("wb") as log:
        async with await anyio.open_process(command, env=env, stderr=log) as process:
            assert process.stdout is not None
            lines = BufferedByteReceiveStream(process.stdout)
            try:
                try:
                    with anyio.fail_after(_READY_S):
                        ready = json.loads(await lines.receive_until(b"\n", _MOST_BYTES))
                except (anyio.IncompleteRead, TimeoutError) as error:
                    end = (root / "daemon.log").read_text()[-2000:]
                    raise RuntimeError(f"cannot start the daemon under test:\n{end}") from error
                yield Running(int(ready["pid"]), socket, data)
            finally:
                if process.returncode is None:
                    process.terminate()
                with anyio.CancelScope(shield=True):
                    await process.wait()
                    await _remove_rest(data)


async def _remove_rest(data: Path) -> None:
    """Remove the sandboxes and the pool, which a stopping daemon leaves for its successor; here there is none."""
    instance = data / "instance"
    if instance.exists():
        await remove_containers(f"sandboxd.instance={instance.read_text().strip()}")
    await unmount_rest(data)


async def unmount_rest(data: Path) -> None:
    """Release what a data directory holds outside itself: workspace mounts, and mirrors in memory."""
    with open("/proc/self/mountinfo") as lines:
        mounts = [place for line in lines if (place := line.split()[4]).startswith(f"{data}/")]
    for mount in reversed(mounts):
        await anyio.run_process(["umount", mount], check=False)
    if (data / "mirrors").is_symlink():  # they are in memory
        shutil.rmtree((data / "mirrors").readlink().parent, ignore_errors=True)


async def remove_containers(label: str) -> None:
    with anyio.CancelScope(shield=True):
        found = await anyio.run_process(["docker", "ps", "-aq", "--filter", f"label={label}"], check=False)
        if containers := found.stdout.decode().split():
            await anyio.run_process(["docker", "rm", "-f", *containers], check=False)


@dataclass(frozen=True, slots=True)
class Cost:
    """The resources that a process holds at one moment."""

    rss_mb: float
    cpu_s: float
    fds: int
    threads: int
    at: float


def cost_of(pid: int) -> Cost:
    place = Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line)
    # The second field is a name in parentheses and may contain spaces: count from its end.
    fields = (place / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return Cost(
        rss_mb=int(status["VmRSS"].split()[0]) / 1024,
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        fds=len(list((place / "fd").iterdir())),
        threads=int(status["Threads"]),
        at=time.monotonic(),
    )


def cpu_percent(before: Cost, after: Cost) -> float:
    return (after.cpu_s - before.cpu_s) / (after.at - before.at) * 100
