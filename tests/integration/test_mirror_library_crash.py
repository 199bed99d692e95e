"""Memory killed at every named step: acknowledged writes are in the store, and mirrors are complete and current."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from memo import SQLiteStore
from memo.documents import DocumentKey
from memo.ids import SessionRef, UserId
from memo.stores import BaseStore
from memo.stores.filesystem import FilesystemStore
from sandboxd.events import EventBus
from sandboxd.failpoints import POINTS
from sandboxd.memory import Memory
from tests.long_runs import kill_pairs

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
REF, ANN = SessionRef.of("acme", "s1"), UserId("ann")
NOTES = DocumentKey.of_session(REF, "NOTES.md")
USER = DocumentKey.of_user(REF.tenant, ANN, "USER.md")
MINE = sorted(p for p in POINTS if p.startswith(("refresh.", "writeback.", "outbox.")) or p == "create.snapshot")

WRITER = """
import sys
from pathlib import Path
import anyio
from memo import SQLiteStore
from memo.errors import Unavailable
from memo.documents import Author
from memo.ids import SessionRef
from memo.stores.filesystem import FilesystemStore
from sandboxd import failpoints
from sandboxd.events import EventBus
from sandboxd.memory import Memory
from tests.integration.test_mirror_library_crash import ANN, NOTES, REF, USER

kind, directory, point = sys.argv[1], Path(sys.argv[2]), sys.argv[3]

async def main():
    opened = SQLiteStore(directory / "memo.db") if kind == "sqlite" else FilesystemStore(directory / "files")
    async with opened as store:
        commit = store.append_document
        async with Memory(directory / "data", store, events=EventBus(), outbox=True) as memory:
            if point == "create.snapshot":
                failpoints.arm(f"{point}=kill")
            await memory.create("one", REF, ANN)
            await memory.create("two", SessionRef.of("acme", "s2"), ANN)
            for number in range(100):
                if number == 3:
                    failpoints.arm(f"{point}=kill")
                if point.startswith("outbox.") and number % 10 == 4:
                    async def refuse(*args, **named):
                        store.append_document = commit
                        raise Unavailable("cannot reach the store")
                    store.append_document = refuse
                await memory.append(NOTES, f"{number}\\n", author=Author(request=f"n{number}"))
                print("notes", number, flush=True)
                await memory.append(USER, f"{number}\\n", author=Author(request=f"u{number}"))
                print("user", number, flush=True)
                await store.write_document(NOTES.__class__.of_session(REF, "other.md"), f"{number}")
                await anyio.sleep(0.01)

anyio.run(main)
"""


def open_store(kind: str, directory: Path) -> BaseStore:
    return SQLiteStore(directory / "memo.db") if kind == "sqlite" else FilesystemStore(directory / "files")


@pytest.mark.parametrize(("kind", "point"), kill_pairs(["sqlite", "filesystem"], MINE))
async def test_a_kill_at_a_named_step_loses_nothing_acknowledged(kind: str, point: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = await anyio.run_process(
        [sys.executable, "-c", WRITER, kind, str(tmp_path), point], env=environment, check=False, stderr=subprocess.PIPE
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    acknowledged = [line.split() for line in done.stdout.decode().splitlines()]
    async with (
        open_store(kind, tmp_path) as store,
        Memory(tmp_path / "data", store, events=EventBus(), outbox=True) as memory,
    ):
        data = tmp_path / "data"
        assert [p for p in data.rglob("*") if p.name.startswith(".new-") or p.parent.name == "staging"] == []
        roots = [
            await memory.adopt(name, SessionRef.of("acme", session), ANN)
            for name, session in (("one", "s1"), ("two", "s2"))
        ]
        with anyio.fail_after(30):
            while memory.waiting:
                await anyio.sleep(0.005)
        for name, key in (("notes", NOTES), ("user", USER)):
            found = await store.read_document(key)
            lines = [] if found is None else found.content.split()
            assert len(lines) == len(set(lines)), "a retry was done twice"
            assert {number for what, number in acknowledged if what == name} <= set(lines)
            shown = [roots[0] / "session" / "NOTES.md"] if key == NOTES else [r / "user" / "USER.md" for r in roots]
            with anyio.fail_after(30):
                while any(
                    (path.read_text() if path.exists() else "") != "\n".join([*lines, ""]) and lines for path in shown
                ):
                    await anyio.sleep(0.005)
        assert all(file.in_sync for file in await memory.inspect(REF))
