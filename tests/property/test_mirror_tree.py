"""After any operations on documents, every mirror is the tree that the store holds: no file more, no file less."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memo import InMemoryStore
from memo.documents import DocumentKey, DocumentName
from memo.errors import MemoError
from memo.ids import SessionRef, UserId
from sandboxd.events import EventBus
from sandboxd.memory import Memory
from tests.long_runs import scaled

REF, ANN = SessionRef.of("acme", "s1"), UserId("ann")
OTHER = SessionRef.of("acme", "s2")
NAMES = [DocumentName(n) for n in ("NOTES.md", "a", "a/b", "a/b/c.md", "a/d.md", "e/f/g/h.md")]

names = st.sampled_from(NAMES)
steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "append", "delete", "move", "store write", "store delete", "store move"])
        | st.sampled_from(["refresh", "verify", "restore"]),
        st.booleans(),
        names,
        names,
    ),
    min_size=1,
    max_size=30,
)


@settings(deadline=None, max_examples=scaled(40, 400), suppress_health_check=list(HealthCheck))
@given(steps=steps, at_once=st.booleans())
def test_a_mirror_is_the_tree_of_the_store_after_any_operations(
    steps: list[tuple[str, bool, DocumentName, DocumentName]], at_once: bool
) -> None:
    anyio.run(_play, steps, at_once, backend_options={"use_uvloop": True})


async def _play(steps: list[tuple[str, bool, DocumentName, DocumentName]], at_once: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with InMemoryStore() as store:
            async with Memory(Path(directory), store, events=EventBus()) as memory:
                roots = {ref: await memory.create(f"box-{ref.session}", ref, ANN) for ref in (REF, OTHER)}

                async def take(number: int, step: tuple[str, bool, DocumentName, DocumentName]) -> None:
                    verb, is_user, name, to = step
                    key = DocumentKey.of_user(REF.tenant, ANN, name) if is_user else DocumentKey.of_session(REF, name)
                    with suppress(MemoError):  # refused: a clash, or nothing there
                        await _take(memory, store, verb, key, to, f"text {number}")

                if at_once:
                    async with anyio.create_task_group() as tasks:
                        for number, step in enumerate(steps):
                            tasks.start_soon(take, number, step)
                else:
                    for number, step in enumerate(steps):
                        await take(number, step)
                for ref, root in roots.items():
                    await _settle(store, ref, root)
                    assert await memory.verify(ref) == 0, "a mirror drifted by the daemon's own work"
            async with Memory(Path(directory), store, events=EventBus()) as memory:
                for ref, root in roots.items():
                    await memory.adopt(f"box-{ref.session}", ref, ANN)
                    assert _shown(root) == await _held(store, ref)


async def _take(memory: Memory, store: InMemoryStore, verb: str, key: DocumentKey, to: DocumentName, text: str) -> None:
    calls: dict[str, Any] = {
        "write": lambda: memory.write(key, text),
        "append": lambda: memory.append(key, text),
        "delete": lambda: memory.delete(key),
        "move": lambda: memory.move(key, to),
        "store write": lambda: store.write_document(key, text),
        "store delete": lambda: store.delete_document(key),
        "store move": lambda: store.move_document(key, to),
        "refresh": lambda: memory.refresh(REF),
        "verify": lambda: memory.verify(REF),
        "restore": lambda: memory.restore(key, 1),
    }
    await calls[verb]()


async def _held(store: InMemoryStore, ref: SessionRef) -> dict[str, str]:
    memory = await store.list_memory(ref, ANN)
    found = {}
    for entry in memory.documents:
        document = await store.read_document(entry.key)
        assert document is not None
        found[f"{entry.key.scope}/{entry.key.name}"] = document.content
    return found


def _shown(root: Path) -> dict[str, str]:
    files = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(root)): path.read_text() for path in files}


async def _settle(store: InMemoryStore, ref: SessionRef, root: Path) -> None:
    held = await _held(store, ref)
    revisions = {f"{e.key.scope}/{e.key.name}": e.revision for e in (await store.list_memory(ref, ANN)).documents}
    with anyio.fail_after(30):
        while True:
            with suppress(FileNotFoundError):  # a file vanished while it was read
                files = json.loads((root / ".manifest.json").read_bytes())["files"]
                if _shown(root) == held and {path: f["revision"] for path, f in files.items()} == revisions:
                    break
            await anyio.sleep(0.001)
    fixed = {"session", "session/tool-results", "user"}
    directories = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}
    needed = {str(parent) for path in held for parent in Path(path).parents if str(parent) != "."}
    assert directories == fixed | needed, "a directory was left behind"
