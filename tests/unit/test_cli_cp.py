"""`sandboxd cp`: files and trees in both directions, with the rules of `cp -r` and `docker cp`."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from sandboxd.client import AsyncClient
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as world, AsyncClient(world.socket, tenant="acme") as client:
        await client.ensure_sandbox("demo", "ada")
        yield world


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The working directory of the commands, with a tree to copy."""
    home = tmp_path / "home"
    (home / "tree" / "sub").mkdir(parents=True)
    (home / "tree" / "run.sh").write_text("#!/bin/sh\n")
    (home / "tree" / "run.sh").chmod(0o755)
    (home / "tree" / "sub" / "link").symlink_to("../run.sh")
    (home / "file.txt").write_text("hello")
    return home


async def cp(world: World, home: Path, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "SANDBOXD_SOCKET": str(world.socket), "SANDBOXD_TENANT": "acme"}
    command = [sys.executable, "-m", "sandboxd", "cp", *words]
    return await anyio.to_thread.run_sync(
        lambda: subprocess.run(command, input=stdin, capture_output=True, env=env, cwd=home, timeout=60, check=False)
    )


async def copied(world: World, home: Path, *words: str, stdin: bytes = b"") -> bytes:
    done = await cp(world, home, *words, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout


def names(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*")}


TREE = {"run.sh", "sub", "sub/link"}


async def test_a_directory_goes_to_a_new_name_or_into_an_existing_directory(world: World, home: Path) -> None:
    workspace = world.workspace("demo")
    await copied(world, home, "tree", "demo:new")
    assert names(workspace / "new") == TREE
    await copied(world, home, "tree", "demo:/workspace/new")
    assert names(workspace / "new" / "tree") == TREE
    (workspace / "third").mkdir()
    await copied(world, home, "tree/.", "demo:third")
    assert names(workspace / "third") == TREE
    assert stat.S_IMODE((workspace / "third" / "run.sh").stat().st_mode) == 0o755
    assert (workspace / "third" / "sub" / "link").readlink() == Path("../run.sh")

    await copied(world, home, "demo:third", "fresh")
    assert names(home / "fresh") == TREE
    (home / "here").mkdir()
    await copied(world, home, "demo:third", "here")
    assert names(home / "here" / "third") == TREE
    await copied(world, home, "demo:third/.", "here")
    assert names(home / "here") == TREE | {"third"} | {f"third/{name}" for name in TREE}


async def test_a_file_goes_to_a_name_or_into_an_existing_directory(world: World, home: Path) -> None:
    workspace = world.workspace("demo")
    (workspace / "directory").mkdir()
    await copied(world, home, "file.txt", "demo:renamed.txt")
    await copied(world, home, "file.txt", "demo:directory")
    await copied(world, home, "file.txt", "demo:")
    await copied(world, home, "file.txt", "demo:renamed.txt")
    for path in ("renamed.txt", "directory/file.txt", "file.txt"):
        assert (workspace / path).read_text() == "hello"
    (home / "directory").mkdir()
    await copied(world, home, "demo:renamed.txt", "directory/")
    await copied(world, home, "demo:renamed.txt", "./with:colon")
    await copied(world, home, "demo:renamed.txt", "./with:colon")
    assert (home / "directory" / "renamed.txt").read_text() == "hello"
    assert (home / "with:colon").read_text() == "hello"
    assert not [name for name in os.listdir(home) if name.startswith(".")]


async def test_a_dash_is_stdin_or_stdout(world: World, home: Path) -> None:
    data = os.urandom(300_000)
    assert await copied(world, home, "-", "demo:piped", stdin=data) == b""
    assert (world.workspace("demo") / "piped").read_bytes() == data
    assert await copied(world, home, "demo:piped", "-") == data
    done = await cp(world, home, "demo:/workspace", "-")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"it is a directory" in done.stderr


async def test_json_says_what_was_copied_and_left_out(world: World, home: Path) -> None:
    done = json.loads(await copied(world, home, "tree", "demo:j", "--json"))
    assert done == {"source": "tree", "target": "demo:j", "entries": 3, "bytes": 10, "skipped": []}
    (world.workspace("demo") / "j" / "out").symlink_to("/etc/passwd")
    done = json.loads(await copied(world, home, "demo:j", "k", "--json"))
    assert (done["entries"], done["skipped"]) == (3, ["out"])
    plain = await cp(world, home, "demo:j", "l")
    assert (plain.returncode, b"left out: out" in plain.stderr) == (0, True)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("a", "b"), 2, "must be SESSION:PATH"),
        (("demo:a", "demo:b"), 2, "must be SESSION:PATH"),
        (("none", "demo:x"), 1, "cannot copy none: no such file or directory on this host"),
        (("demo:none", "x"), 1, "no such file or directory"),
        (("tree", "demo:taken"), 1, "cannot copy a directory to /workspace/taken"),
        (("file.txt", "demo:taken/"), 1, "it is not a directory"),
        (("demo:taken/", "x"), 1, "it is not a directory"),
        (("demo:taken", "missing/"), 1, "it is not a directory on this host"),
        (("demo:taken", "missing/x"), 1, "no such file or directory on this host"),
        (("demo:", "file.txt"), 1, "it exists on this host and is not a directory"),
        (("demo:", "missing/x"), 1, "its directory does not exist on this host"),
        (("file.txt", "demo:memo/NOTES.md"), 1, "read-only"),
        (("file.txt", "other:x"), 1, "cannot find a sandbox"),
    ],
)
async def test_a_copy_that_cannot_be_made_says_why(
    world: World, home: Path, words: tuple[str, str], code: int, says: str
) -> None:
    (world.workspace("demo") / "taken").write_text("taken")
    before = names(home)
    done = await cp(world, home, *words)
    assert (done.returncode, says in done.stderr.decode()) == (code, True), done.stderr
    assert b"Traceback" not in done.stderr
    assert names(home) == before


async def test_a_terminal_shows_progress(world: World, home: Path) -> None:
    env = {**os.environ, "SANDBOXD_SOCKET": str(world.socket), "SANDBOXD_TENANT": "acme", "TERM": "xterm"}
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sandboxd", "cp", "tree", "demo:shown"]

    def run() -> bytes:
        process = subprocess.Popen(command, stderr=theirs, env=env, cwd=home)
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # how a terminal reports that its last process is gone
            pass
        assert process.wait(60) == 0
        os.close(ours)
        return shown

    assert b"copying" in await anyio.to_thread.run_sync(run)
    assert names(world.workspace("demo") / "shown") == TREE
