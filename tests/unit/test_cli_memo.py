"""`memo`, `refresh` and `sessions` as a program: real processes against a served store, exit codes and all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

import memo
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

COMMANDS = ("ls", "cat", "put", "append", "rm", "mv", "edit", "history", "diff", "restore", "export", "import")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with memo.open_store("memory://") as store, serving(tmp_path, store=store) as world:
        yield world


def run(socket: Path, *words: str, stdin: bytes = b"", editor: str = "false") -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "SANDBOXD_SOCKET": str(socket), "COLUMNS": "120", "EDITOR": editor, "VISUAL": ""}
    return subprocess.run(
        [sys.executable, "-m", "sandboxd", *words], input=stdin, capture_output=True, env=env, timeout=60, check=False
    )


async def cli(
    world: World, *words: str, stdin: bytes = b"", editor: str = "false"
) -> subprocess.CompletedProcess[bytes]:
    return await anyio.to_thread.run_sync(partial(run, world.socket, *words, stdin=stdin, editor=editor))


@pytest.mark.parametrize("whose", [("demo",), ("--user", "alice")])
async def test_a_document_is_stored_and_printed_exactly(world: World, whose: tuple[str, ...]) -> None:
    text = "# Plän\r\nno newline at the end".encode()
    done = await cli(world, "memo", "put", *whose, "PLAN.md", "--reason", "über Nacht", stdin=text)
    assert (done.returncode, done.stdout) == (0, b"PLAN.md is at revision 1\n"), done.stderr
    assert (await cli(world, "memo", "cat", *whose, "PLAN.md")).stdout == text
    done = await cli(world, "memo", "append", *whose, "PLAN.md", "--json", stdin=b"\nmore")
    assert json.loads(done.stdout)["revision"] == 2
    document = json.loads((await cli(world, "memo", "cat", *whose, "PLAN.md", "--json", "-r", "1")).stdout)
    assert (document["revision"], document["text"].encode()) == (1, text)
    assert (await cli(world, "memo", "ls", *whose)).stdout.decode().split("\t")[:3] == [
        "PLAN.md",
        "2",
        str(len(text) + 5),
    ]
    history = json.loads((await cli(world, "memo", "history", *whose, "PLAN.md", "--json")).stdout)["items"]
    assert [(one["revision"], one["reason"]) for one in history] == [(2, ""), (1, "über Nacht")]
    assert b"+more" in (await cli(world, "memo", "diff", *whose, "PLAN.md")).stdout
    assert (await cli(world, "memo", "restore", *whose, "PLAN.md", "1")).stdout == b"PLAN.md is at revision 3\n"
    assert (await cli(world, "memo", "cat", *whose, "PLAN.md")).stdout == text


@pytest.mark.parametrize("whose", [("demo",), ("--user", "alice")])
async def test_a_document_is_moved_deleted_and_restored(world: World, whose: tuple[str, ...]) -> None:
    name, moved = "memories/plan.md", "memories/projects/plan.md"
    assert (await cli(world, "memo", "put", *whose, name, stdin=b"text")).returncode == 0
    done = await cli(world, "memo", "mv", *whose, name, moved, "--if-revision", "1", "-m", "tidy")
    assert (done.returncode, done.stdout) == (0, f"{name} is now {moved}, at revision 1\n".encode()), done.stderr
    listed = json.loads((await cli(world, "memo", "ls", *whose, "--prefix", "memories/", "--json")).stdout)
    assert [one["name"] for one in listed["items"]] == [moved]
    gone = await cli(world, "memo", "cat", *whose, name)
    assert gone.returncode == 1
    assert f"it was moved to {moved} in revision 2".encode() in gone.stderr
    done = await cli(world, "memo", "rm", *whose, moved)
    assert (done.returncode, done.stdout) == (
        0,
        f"{moved} is deleted; `memo restore` with revision 1 brings it back\n".encode(),
    )
    history = (await cli(world, "memo", "history", *whose, moved)).stdout.decode().splitlines()
    assert [line.split("\t")[-1] for line in history] == ["deleted", f"moved from {name}; tidy"]
    assert (await cli(world, "memo", "rm", *whose, moved)).returncode == 1
    assert (await cli(world, "memo", "restore", *whose, moved, "1")).stdout == f"{moved} is at revision 3\n".encode()
    assert (await cli(world, "memo", "cat", *whose, moved)).stdout == b"text"


async def test_an_export_and_an_import_keep_paths(world: World, tmp_path: Path) -> None:
    names = ("NOTES.md", "memories/a.md", "memories/projects/b.md")
    assert (await cli(world, "create", "demo", "--user", "alice")).returncode == 0
    for name in names:
        assert (await cli(world, "memo", "put", "demo", name, stdin=name.encode())).returncode == 0
    directory = tmp_path / "exported"
    done = await cli(world, "memo", "export", "demo", str(directory))
    assert done.stdout.decode().split() == list(names), done.stderr
    assert (directory / "memories" / "projects" / "b.md").read_text() == "memories/projects/b.md"
    (directory / "memories" / ".hidden").write_text("left alone")
    done = await cli(world, "memo", "import", "--user", "alice", str(directory))
    assert done.stdout.decode().split() == list(names), done.stderr
    assert (await cli(world, "memo", "cat", "--user", "alice", names[2])).stdout == b"memories/projects/b.md"
    (directory / "trace").mkdir()
    (directory / "trace" / "x.md").write_text("reserved")
    refused = await cli(world, "memo", "import", "--user", "bob", str(directory))
    assert refused.returncode == 2
    assert b"rename trace/x.md, or move it away" in refused.stderr
    assert json.loads((await cli(world, "memo", "ls", "--user", "bob", "--json")).stdout)["items"] == []


async def test_a_put_can_require_a_revision(world: World) -> None:
    assert (await cli(world, "memo", "put", "demo", "A.md", "--if-revision", "0", stdin=b"one")).returncode == 0
    lost = await cli(world, "memo", "put", "demo", "A.md", "--if-revision", "0", stdin=b"two")
    assert lost.returncode == 1
    assert b"--merge" in lost.stderr
    assert (await cli(world, "memo", "cat", "demo", "A.md")).stdout == b"one"


async def test_an_edit_is_written_back(world: World, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "typed\\n" >> "$1"\n')
    editor.chmod(0o755)
    done = await cli(world, "memo", "edit", "demo", "NOTES.md", editor=str(editor))
    assert (done.returncode, done.stdout) == (0, b"NOTES.md is at revision 1\n"), done.stderr
    assert (await cli(world, "memo", "edit", "demo", "NOTES.md", editor=str(editor))).returncode == 0
    assert (await cli(world, "memo", "cat", "demo", "NOTES.md")).stdout == b"typed\ntyped\n"
    done = await cli(world, "memo", "edit", "demo", "NOTES.md", editor="true")
    assert (done.returncode, done.stdout) == (0, b"NOTES.md is unchanged\n")


async def test_an_edit_that_lost_the_race_shows_the_difference_and_keeps_what_was_typed(
    world: World, tmp_path: Path
) -> None:
    await cli(world, "memo", "put", "demo", "NOTES.md", stdin=b"one\n")
    editor = tmp_path / "editor"
    put = f"printf 'newer\\n' | {sys.executable} -m sandboxd memo put demo NOTES.md >/dev/null"
    editor.write_text(f'#!/bin/sh\n{put}\nprintf "typed\\n" >> "$1"\n')
    editor.chmod(0o755)
    done = await cli(world, "memo", "edit", "demo", "NOTES.md", editor=str(editor))
    said = done.stderr.decode()
    assert done.returncode == 1
    assert "-newer" in said
    assert "+typed" in said
    kept = Path(next(line for line in said.splitlines() if "kept in" in line).rpartition(" ")[2])
    assert kept.read_text() == "one\ntyped\n"
    kept.unlink()
    assert (await cli(world, "memo", "cat", "demo", "NOTES.md")).stdout == b"newer\n"


async def test_an_editor_that_fails_writes_nothing(world: World) -> None:
    done = await cli(world, "memo", "edit", "demo", "NOTES.md", editor="false")
    assert done.returncode == 1
    Path(done.stderr.decode().rpartition("; ")[2].partition(" contains")[0]).unlink()
    assert (await cli(world, "memo", "edit", "demo", "NOTES.md", editor="/no/such/editor")).returncode == 1
    assert (await cli(world, "memo", "cat", "demo", "NOTES.md")).returncode == 1


async def test_an_export_can_be_imported(world: World, tmp_path: Path) -> None:
    await cli(world, "memo", "put", "demo", "A.md", stdin=b"a")
    await cli(world, "memo", "put", "demo", "B.md", stdin="ä\n".encode())
    await world.memory.client.store.write_tool_result_artifact("default:demo", "call-1", "full")
    out = tmp_path / "out"
    done = await cli(world, "memo", "export", "demo", str(out))
    assert done.stdout.decode().split() == ["A.md", "B.md", "tool-results/call-1.txt"]
    assert (out / "B.md").read_text() == "ä\n"
    done = await cli(world, "memo", "import", "copy", str(out), "--json")
    assert json.loads(done.stdout)["items"] == ["A.md", "B.md", "tool-results/call-1.txt"]
    assert (await cli(world, "memo", "cat", "copy", "B.md")).stdout == "ä\n".encode()
    assert await world.memory.client.store.read_tool_result_artifact("default:copy", "call-1") == "full"
    (out / "C.md").write_bytes(b"\xff")
    assert (await cli(world, "memo", "import", "half", str(out))).returncode == 2
    assert (
        await cli(world, "memo", "cat", "half", "A.md")
    ).returncode == 1  # nothing was written: one file is not text
    assert (await cli(world, "memo", "import", "--user", "alice", str(out))).returncode == 2


async def test_refresh_and_sessions(world: World) -> None:
    await cli(world, "create", "demo", "--user", "alice")
    await cli(world, "memo", "put", "demo", "NOTES.md", stdin=b"a")
    await cli(world, "memo", "put", "--user", "alice", "USER.md", stdin=b"b")
    assert (await cli(world, "refresh", "demo")).stdout == b"refreshed 2 files\n"
    done = await cli(world, "refresh", "demo", "/workspace/memo/session/NOTES.md", "--json")
    assert json.loads(done.stdout) == {"refreshed": 1, "refused": []}
    assert (await cli(world, "refresh", "--user", "alice", "USER.md")).stdout == b"refreshed 1 file\n"
    assert (await cli(world, "refresh", "nobody")).stdout == b"refreshed 0 files\n"
    assert (await cli(world, "refresh", "demo", "/etc/passwd")).returncode == 2
    assert (await cli(world, "sessions")).stdout.decode().split("\t")[:3] == ["demo", "alice", "default"]
    assert json.loads((await cli(world, "sessions", "--user", "bob", "--json")).stdout) == {"items": []}


@pytest.mark.parametrize(
    "words",
    [
        ("memo", "cat"),
        ("memo", "cat", "NOTES.md"),
        ("memo", "cat", "--user", "alice", "demo", "NOTES.md"),
        ("memo", "ls"),
        ("memo", "ls", "--user", "alice", "demo"),
        ("memo", "nope"),
        ("memo", "restore", "demo", "NOTES.md", "x"),
        ("memo", "restore", "demo", "NOTES.md", "0"),
        ("memo", "put", "demo", "NOTES.md", "--file", "/no/such/file"),
        ("memo", "import", "demo", "/no/such/directory"),
        ("refresh",),
        ("refresh", "--user", "alice"),
    ],
)
def test_wrong_usage_exits_with_code_2(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path / "none", *words)
    assert done.returncode == 2, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [("memo", "ls", "s"), ("memo", "cat", "s", "A"), ("memo", "edit", "s", "A"), ("refresh", "s"), ("sessions",)],
)
def test_without_a_daemon_the_exit_code_is_3(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path / "none", *words)
    assert done.returncode == 3, done.stderr
    assert b"Traceback" not in done.stderr


async def test_an_illegal_name_is_wrong_usage_and_a_missing_document_a_failure(world: World) -> None:
    assert (await cli(world, "memo", "cat", "demo", "a b")).returncode == 2
    missing = await cli(world, "memo", "cat", "demo", "NONE.md")
    assert (missing.returncode, missing.stdout) == (1, b"")
    assert missing.stderr.decode().startswith("cannot find NONE.md")


@pytest.mark.parametrize("words", [*(("memo", name) for name in COMMANDS), ("refresh",), ("sessions",)])
def test_every_command_has_help_with_an_example_and_json(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path / "none", *words, "--help")
    assert done.returncode == 0
    assert b"Example: " in done.stdout
    assert b"--json" in done.stdout
