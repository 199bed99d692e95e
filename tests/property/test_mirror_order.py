"""Any order of hints, writes and checks ends at the newest revision, and no reader sees an older or a torn text."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from memo import InMemoryStore
from memo.changes import Change
from memo.documents import DocumentKey, sha256_of
from memo.ids import SessionRef, UserId
from sandboxd.events import EventBus
from sandboxd.memory import Memory
from sandboxd.memory.manifest import Shown
from sandboxd.memory.mirror import is_due
from sandboxd.memory.text import Text

REF, ANN = SessionRef.of("acme", "s1"), UserId("ann")
NOTES = DocumentKey.of_session(REF, "NOTES.md")
USER = DocumentKey.of_user(REF.tenant, ANN, "USER.md")

STEPS = st.lists(
    st.sampled_from(["write", "append", "store", "hint", "old hint", "refresh", "refresh all", "verify", "create"]),
    min_size=1,
    max_size=25,
)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@example(steps=["write", "refresh all", "store", "refresh all", "write", "verify", "refresh all"], at_once=True)
@given(steps=STEPS, at_once=st.booleans())
def test_any_order_of_hints_and_writes_ends_at_the_newest_revision(steps: list[str], at_once: bool) -> None:
    anyio.run(_play, steps, at_once, backend_options={"use_uvloop": True})


async def _play(steps: list[str], at_once: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with InMemoryStore() as store, Memory(Path(directory), store, events=EventBus()) as memory:
            root = await memory.create("box", REF, ANN)
            seen: list[int] = []

            async def take(number: int, step: str) -> None:
                match step:
                    case "write":
                        await memory.write(NOTES, f"text {number}")
                    case "append":
                        await memory.append(USER, f"{number}\n")
                    case "store":
                        await store.write_document(NOTES, f"text {number} of somebody else")
                    case "hint":
                        await memory._refresher.hint(NOTES)
                    case "old hint":
                        found = await store.read_document(NOTES, 1)
                        if found is not None:
                            late = Change(1, NOTES, 1, found.sha256, store.options.clock())
                            await memory._refresher.refresh(NOTES, late)
                    case "refresh":
                        await memory.refresh(REF, "/workspace/memo/session/NOTES.md", "an old text")
                    case "refresh all":
                        await memory.refresh(REF)
                    case "verify":
                        assert await memory.verify(REF) == 0
                    case "create":
                        await memory.create(f"box{number}", SessionRef.of("acme", f"other{number}"), ANN)
                shown = await memory.shown(REF, "/workspace/memo/session/NOTES.md")
                seen.append(shown if isinstance(shown, int) else 0)

            if at_once:
                async with anyio.create_task_group() as tasks:
                    for number, step in enumerate(steps):
                        tasks.start_soon(take, number, step)
            else:
                for number, step in enumerate(steps):
                    await take(number, step)
            await _settle(memory, store, root)
            assert seen == sorted(seen)  # I3: a revision only grows
        assert list(root.rglob(".new-*")) == []  # by now no write is in progress


async def _settle(memory: Memory, store: InMemoryStore, root: Path) -> None:
    with anyio.fail_after(30):
        for key, path in ((NOTES, root / "session" / "NOTES.md"), (USER, root / "user" / "USER.md")):
            newest = await store.read_document(key)
            while newest is not None and (not path.exists() or path.read_text() != newest.content):
                await anyio.sleep(0.001)
        while True:
            await anyio.sleep(0.001)
            files = json.loads((root / ".manifest.json").read_bytes())["files"]
            newest = await store.read_document(NOTES)
            if newest is None or files.get("session/NOTES.md", {}).get("revision") == newest.revision:
                return


@given(revisions=st.permutations(range(1, 8)))
def test_the_newest_revision_wins_whatever_arrives_last(revisions: list[int]) -> None:
    shown: Shown | None = None
    for revision in revisions:
        text = Text.of(f"text {revision}".encode(), revision)
        if is_due(text, shown, revisioned=True):
            assert shown is None or revision > shown.revision
            shown = Shown(revision, text.sha256, len(text.encoded), 0.0)
    assert shown is not None
    assert shown.revision == 7


READER = """
import os, sys
path, end = sys.argv[1], sys.argv[2]
last, reads = -1, 0
print("reading", flush=True)
while not os.path.exists(end):
    text = open(path, encoding="utf-8").read()
    number = int(text[:8])
    assert text == f"{number:08}" * (1 + number % 3000), f"torn: {len(text)} characters of {number}"
    assert number >= last, f"{number} after {last}"
    last, reads = number, reads + 1
print(last, reads)
"""


@pytest.mark.anyio
async def test_reader_processes_never_see_half_a_document_nor_an_older_one(tmp_path: Path) -> None:
    end = tmp_path / "end"
    count = 400
    async with InMemoryStore() as store, Memory(tmp_path / "data", store, events=EventBus()) as memory:
        await memory.write(USER, f"{0:08}")
        roots = [await memory.create(f"box{n}", SessionRef.of("acme", f"s{n}"), ANN) for n in range(4)]
        command = [sys.executable, "-I", "-c", READER]
        readers = [
            subprocess.Popen([*command, str(root / "user" / "USER.md"), str(end)], stdout=subprocess.PIPE, text=True)
            for root in roots
        ]
        try:
            for reader in readers:
                assert reader.stdout is not None
                assert await anyio.to_thread.run_sync(reader.stdout.readline) == "reading\n"
            for number in range(1, count):  # alternately through the writer and directly to the store
                text = f"{number:08}" * (1 + number % 3000)
                await (memory.write(USER, text) if number % 2 else store.write_document(USER, text))
            newest = await store.read_document(USER)
            assert newest is not None
            with anyio.fail_after(30):
                while any(sha256_of((root / "user" / "USER.md").read_bytes()) != newest.sha256 for root in roots):
                    await anyio.sleep(0.001)
            end.touch()
            for reader in readers:
                output, _ = await anyio.to_thread.run_sync(partial(reader.communicate, timeout=60))
                assert reader.returncode == 0
                assert int(output.split()[1]) > 0
        finally:
            end.touch()
            for reader in readers:
                reader.wait(60)
                if reader.stdout is not None:
                    reader.stdout.close()
