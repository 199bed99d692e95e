"""A process swaps a directory for a link outside, thousands of times a second: no file call escapes through it.

Bounded here; `make test-all` tries more than twenty times as often.
"""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import anyio
import pytest

from sandboxd.errors import FileError, InvalidRequest, NotFound, OutsideSandbox, ReadOnly
from sandboxd.runner.calls import Exec, Grep
from sandboxd.runner.client import RunnerClient
from tests.integration.runner.box import Box
from tests.long_runs import scaled

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

TRIES = scaled(150, 3_500)
PATIENCE_S = 100
FLIPPER = """
import ctypes, os, shutil
shutil.rmtree("flip", ignore_errors=True)
shutil.rmtree("spy", ignore_errors=True)
os.makedirs("flip/inside/deep/deeper", exist_ok=True)
os.makedirs("spy/inside/deep", exist_ok=True)
for directory in ("flip/inside", "flip/inside/deep"):
    for name in ("passwd", "hostname"):
        with open(f"{directory}/{name}", "w") as file:
            file.write("nothing to see\\n")
for directory in ("spy/inside", "spy/inside/deep"):
    with open(f"{directory}/status", "w") as file:
        file.write("nothing to see\\n")
links = {"flip/outside": "/etc", "flip/inside/link": "/etc", "spy/outside": "/proc/1", "spy/inside/link": "/proc/self"}
for link, target in links.items():
    os.path.lexists(link) or os.symlink(target, link)
libc = ctypes.CDLL(None)
print("flipping", flush=True)
while True:
    for top in (b"flip", b"spy"):
        for one, other in ((b"/inside", b"/outside"), (b"/inside/deep", b"/inside/link")):
            libc.renameat2(-100, top + one, -100, top + other, 2)  # exchanges them in one step
"""


@pytest.fixture
async def flipped(box: Box) -> AsyncGenerator[RunnerClient]:
    async with box.connected() as runner:
        process = await runner.start_process(Exec(("python3", "-c", FLIPPER)))
        assert (await runner.read_process(process.id, wait_s=30)).data == b"flipping\n"
        yield runner
        assert (await runner.kill_process(process.id)).exit_code == 137


async def read_all(runner: RunnerClient, path: str) -> bytes:
    async with runner.read_file(path) as reader:
        return b"".join([piece async for piece in reader])


async def grep(runner: RunnerClient, path: str) -> bytes:
    return (await runner.grep(Grep("root|nothing", path, output_mode="content"))).text.encode()


async def read_text(runner: RunnerClient, path: str) -> bytes:
    return "\n".join((await runner.read_text(path)).lines).encode()


async def write(runner: RunnerClient, path: str) -> bytes:
    await runner.write_file(path, b"nothing to see\n", make_parents=False)
    return b"nothing"


async def make_parents(runner: RunnerClient, path: str) -> bytes:
    await runner.write_file(f"{path}-new/file", b"nothing to see\n")
    return b"nothing"


async def edit(runner: RunnerClient, path: str) -> bytes:
    return b"root" if (await runner.edit_file(path, ":", ";", replace_all=True)).replacements else b""


async def glob(runner: RunnerClient, path: str) -> bytes:
    """Return the names below its directory: only those that the flipper put there."""
    names = {found.rpartition("/")[2] for found in (await runner.glob("**/*", path.rpartition("/")[0])).paths}
    return b"nothing" if names <= {"passwd", "hostname", "link", "deep"} else b"root"


async def list_directory(runner: RunnerClient, path: str) -> bytes:
    page = await runner.list_directory(path.rpartition("/")[0])
    names = {entry.path.rpartition("/")[2] for entry in page.items}
    return b"nothing" if names <= {"passwd", "hostname", "link", "deep", "deeper"} else b"root"


async def remove(runner: RunnerClient, path: str) -> bytes:
    await runner.remove(path)
    return b"nothing"


async def remove_tree(runner: RunnerClient, path: str) -> bytes:
    await runner.remove(path.rpartition("/")[0], recursive=True)
    return b"nothing"


async def make(runner: RunnerClient, path: str) -> bytes:
    await runner.make_directory(f"{path}-new/directory", parents=True)
    return b"nothing"


async def move(runner: RunnerClient, path: str) -> bytes:
    await runner.move(path, f"{path}-moved")
    return b"nothing"


async def archive(runner: RunnerClient, path: str) -> bytes:
    async with runner.read_archive(path.rpartition("/")[0]) as pieces:
        return b"nothing" + b"".join([piece async for piece in pieces])


async def archive_tree(runner: RunnerClient, path: str) -> bytes:
    async with runner.read_archive("/workspace/flip") as pieces:
        return b"nothing" + b"".join([piece async for piece in pieces])


async def extract(runner: RunnerClient, path: str) -> bytes:
    await runner.write_archive(path.rpartition("/")[0], archive_of("hostname", "deep/hostname", "new/file"))
    return b"nothing"


async def extract_tree(runner: RunnerClient, path: str) -> bytes:
    await runner.write_archive("/workspace/flip", archive_of("inside/hostname", "inside/deep/hostname", "outside/new"))
    return b"nothing"


async def watch(runner: RunnerClient, path: str) -> bytes:
    """Watch a tree while it flips. It is told of names that the flipper made, never of those outside."""
    async with runner.watch_directory(path.rpartition("/")[0], recursive=True) as watch:
        found = await watch.batch()
    return b"nothing" if found[0].event == "ready" else b"root"


async def archive_of(*names: str) -> AsyncIterator[bytes]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    yield buffer.getvalue()


async def enter(runner: RunnerClient, path: str) -> bytes:
    directory, _, name = path.rpartition("/")
    return b"nothing" + (await runner.exec(Exec(("cat", name), cwd=directory))).stdout


VERBS: dict[str, Callable[[RunnerClient, str], Awaitable[bytes]]] = {
    "grep a file": grep,
    "grep a directory": lambda runner, path: grep(runner, path.rpartition("/")[0]),
    "grep the tree": lambda runner, _path: grep(runner, "/workspace/flip"),
    "read lines": read_text,
    "read": read_all,
    "write": write,
    "write into a new directory": make_parents,
    "edit": edit,
    "glob": glob,
    "list": list_directory,
    "remove": remove,
    "remove a tree": remove_tree,
    "make": make,
    "move": move,
    "archive": archive,
    "archive the tree": archive_tree,
    "extract": extract,
    "extract the tree": extract_tree,
    "watch": watch,
    "working directory": enter,
}


FLIP = ("/workspace/flip/inside/passwd", "/workspace/flip/inside/deep/passwd", "/workspace/flip/outside/passwd")
SPY = ("/workspace/spy/inside/status", "/workspace/spy/inside/deep/status", "/workspace/spy/outside/status")
READS = frozenset({"read lines", "read", "working directory"})
"""Reads may reach /etc/passwd, which every user may read, but nothing in /proc."""


@pytest.mark.parametrize("verb", VERBS)
async def test_no_call_escapes_through_a_link_that_is_swapped(flipped: RunnerClient, verb: str) -> None:
    outcomes: Counter[str] = Counter()
    paths = SPY if verb in READS else FLIP

    async def attempt(path: str) -> None:
        try:
            content = await VERBS[verb](flipped, path)
        except (OutsideSandbox, NotFound):
            outcomes["outside"] += 1
        except ReadOnly:
            outcomes["tried outside"] += 1
        except (InvalidRequest, FileError):
            outcomes["refused"] += 1
        else:
            outcomes["got out" if b"root" in content or b"Name:" in content else "stayed inside"] += 1

    with anyio.fail_after(PATIENCE_S):
        for number in range(TRIES):
            await attempt(paths[number % len(paths)])
    assert outcomes["got out"] == 0, outcomes
    assert outcomes["tried outside"] == 0, outcomes
    assert outcomes["stayed inside"] + outcomes["refused"] > 0, outcomes
    if not verb.endswith("the tree"):
        assert outcomes["outside"] > 0, outcomes


async def test_the_search_for_images_without_ripgrep_stays_inside_too(flipped: RunnerClient) -> None:
    program = ("/run/sandboxd-runner/search.py", "content", "-", "", "root|nothing", "/workspace/flip")
    found: Counter[bool] = Counter()
    with anyio.fail_after(PATIENCE_S):
        for _ in range(TRIES // 10):
            result = await flipped.exec(Exec(("python3", "-I", "-S", "-B", *program)))
            found[b"root" in result.stdout] += 1
    assert found[True] == 0
