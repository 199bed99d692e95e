"""Memory over every store: snapshots, refreshes, write-back and repair, seen in real directories."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import pytest

from memo import InMemoryStore, SQLiteStore
from memo.documents import ABSENT, ArtifactKey, Author, DocumentKey
from memo.errors import InvalidKey, TooLarge, Unsupported
from memo.ids import OwnerId, SessionRef, UserId
from memo.stores.filesystem import FilesystemStore
from sandboxd import failpoints
from sandboxd.events import EventBus
from sandboxd.memory import Committed, Memory, WriteConflict

pytestmark = pytest.mark.anyio

REF, ANN = SessionRef.of("acme", "s1"), UserId("ann")
NOTES = DocumentKey.of_session(REF, "NOTES.md")
USER = DocumentKey.of_user(REF.tenant, ANN, "USER.md")
NOTES_PATH, USER_PATH = "/workspace/memo/session/NOTES.md", "/workspace/memo/user/USER.md"
AGENT = Author("agent", REF.session, "a test")

OpenStore = Callable[[], AbstractAsyncContextManager[Any]]


@pytest.fixture(params=["memory", "sqlite", "filesystem"])
def open_another(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Open the same store, again if necessary; the one in memory is opened only once."""
    in_memory = InMemoryStore()
    return {
        "memory": lambda: in_memory,
        "sqlite": lambda: SQLiteStore(tmp_path / "memo.db"),
        "filesystem": lambda: FilesystemStore(tmp_path / "files"),
    }[request.param]


@pytest.fixture
async def store(open_another: OpenStore) -> AsyncIterator[Any]:
    async with open_another() as opened:
        yield opened


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


@pytest.fixture
async def memory(store: Any, data: Path, bus: EventBus) -> AsyncIterator[Memory]:
    async with Memory(data, store, events=bus, verify_s=3600) as opened:
        yield opened


async def until(is_true: Callable[[], object]) -> None:
    """Wait for another task or process."""
    with anyio.fail_after(30):
        while not is_true():
            await anyio.sleep(0.002)


def text_of(root: Path, path: str) -> str | None:
    file = root / path.removeprefix("/workspace/memo/")
    return file.read_text() if file.exists() else None


def manifest_of(root: Path) -> dict[str, Any]:
    return json.loads((root / ".manifest.json").read_bytes())["files"]  # type: ignore[no-any-return]


def leftovers(data: Path) -> list[Path]:
    return [path for path in data.rglob("*") if path.name.startswith(".new-") or path.parent.name == "staging"]


# Specification: 001.57
async def test_a_snapshot_shows_everything_read_only(store: Any, memory: Memory, data: Path) -> None:
    await store.write_document(NOTES, "notes")
    await store.write_document(DocumentKey.of_session(REF, "plan.txt"), "plan")
    await store.write_document(USER, "user")
    await store.write_document(DocumentKey.of("acme", "s2", "session", "NOTES.md"), "somebody else's")
    for number in range(3):
        await store.write_artifact(ArtifactKey.of(REF, f"call-{number}"), f"result {number}")
    root = await memory.create("box", REF, ANN)
    assert root == data / "mirrors" / "box"
    seen = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}
    manifest = json.loads(seen.pop(".manifest.json"))["files"]
    assert seen == {
        "session/NOTES.md": "notes",
        "session/plan.txt": "plan",
        "user/USER.md": "user",
        **{f"session/tool-results/call-{number}.txt": f"result {number}" for number in range(3)},
    }
    assert manifest.keys() == seen.keys()
    assert manifest["session/NOTES.md"]["revision"] == 1
    modes = {stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*") if path.is_file()}
    assert modes == {0o440}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*")) if path.is_dir()} == {0o2750}
    assert leftovers(data) == []


async def test_a_write_reaches_the_store_the_mirror_and_the_manifest_before_its_answer(
    store: Any, memory: Memory
) -> None:
    root = await memory.create("box", REF, ANN)
    inode = (root / "session").stat().st_ino
    assert await memory.shown(REF, NOTES_PATH) is ABSENT
    first = await memory.write(NOTES, "one", expected=ABSENT, author=AGENT)
    assert isinstance(first, Committed)
    assert await memory.shown(REF, NOTES_PATH) == first.revision
    second = await memory.append(NOTES, " two", author=AGENT)
    assert isinstance(second, Committed)
    assert (await store.read_document(NOTES)).content == text_of(root, NOTES_PATH) == "one two"
    assert manifest_of(root)["session/NOTES.md"]["revision"] == second.revision
    assert (root / "session").stat().st_ino == inode


async def test_a_stale_write_changes_nothing_and_is_answered_with_the_newer_text(store: Any, memory: Memory) -> None:
    root = await memory.create("box", REF, ANN)
    first = await memory.write(NOTES, "one")
    assert isinstance(first, Committed)
    await store.write_document(NOTES, "newer")
    with pytest.raises(WriteConflict, match="cannot write") as caught:
        await memory.write(NOTES, "mine", expected=first.revision)
    assert caught.value.current is not None
    assert caught.value.current.content == "newer"
    await until(lambda: text_of(root, NOTES_PATH) == "newer")
    assert (await store.read_document(NOTES)).content == "newer"


async def test_with_merge_both_changes_are_kept_in_one_text(store: Any, memory: Memory) -> None:
    root = await memory.create("box", REF, ANN)
    base = await memory.write(NOTES, "one\ntwo\nthree\n")
    assert isinstance(base, Committed)
    await store.write_document(NOTES, "ONE\ntwo\nthree\n")
    merged = await memory.write(NOTES, "one\ntwo\nthree\nfour\n", expected=base.revision, merge=True)
    assert isinstance(merged, Committed)
    assert merged.merged
    assert text_of(root, NOTES_PATH) == "ONE\ntwo\nthree\nfour\n"


async def test_with_merge_a_text_that_cannot_be_merged_is_kept_as_a_copy(store: Any, memory: Memory) -> None:
    root = await memory.create("box", REF, ANN)
    base = await memory.write(NOTES, "one\n")
    assert isinstance(base, Committed)
    await store.write_document(NOTES, "theirs\n")
    for _ in range(2):  # a retry keeps one copy
        with pytest.raises(WriteConflict) as caught:
            await memory.write(NOTES, "mine\n", expected=base.revision, merge=True)
    assert caught.value.copy is not None
    assert (await store.read_document(caught.value.copy)).content == "mine\n"
    assert text_of(root, f"/workspace/memo/session/{caught.value.copy.name}") == "mine\n"
    assert (await store.read_document(NOTES)).content == "theirs\n"
    entries = await memory.list(REF.tenant, OwnerId(REF.session), NOTES.scope)
    assert {entry.key.name for entry in entries} == {caught.value.copy.name, "NOTES.md"}


async def test_a_direct_change_in_the_store_reaches_every_mirror_of_the_user(
    open_another: OpenStore, memory: Memory
) -> None:
    roots = [await memory.create(f"box{n}", SessionRef.of("acme", f"s{n}"), ANN) for n in range(5)]
    other = await memory.create("other", SessionRef.of("acme", "s9"), UserId("bob"))
    async with open_another() as elsewhere:
        await elsewhere.write_document(USER, "from elsewhere")
        await elsewhere.write_artifact(ArtifactKey.of(SessionRef.of("acme", "s3"), "call"), "result")
        await until(lambda: all(text_of(root, USER_PATH) == "from elsewhere" for root in roots))
        await until(lambda: text_of(roots[3], "/workspace/memo/session/tool-results/call.txt") == "result")
        await until(lambda: "session/tool-results/call.txt" in manifest_of(roots[3]))
    assert text_of(other, USER_PATH) is None
    assert len({(root / "user" / "USER.md").stat().st_ino for root in roots}) == 1  # one file, many links


# Specification: 001.59
async def test_a_refresh_counts_the_files_that_are_now_current(store: Any, memory: Memory) -> None:
    assert await memory.refresh(REF) == 0
    assert await memory.refresh(REF, NOTES_PATH, "text") == 0
    await store.write_document(NOTES, "notes")
    await memory.create("box", REF, ANN)
    await store.write_document(USER, "user")
    assert await memory.refresh(REF, NOTES_PATH, "an old text that somebody still had") == 1
    assert await memory.refresh_user(REF.tenant, ANN, "USER.md") == 1
    assert await memory.refresh_user(REF.tenant, UserId("bob"), "USER.md") == 0
    assert await memory.refresh(REF) == 2
    assert {file.path: file.in_sync for file in await memory.inspect(REF)} == {NOTES_PATH: True, USER_PATH: True}
    with pytest.raises(InvalidKey):
        await memory.refresh(REF, "/workspace/memo/../etc/passwd")


async def test_tampering_is_found_by_hash_reported_and_repaired(
    store: Any, memory: Memory, bus: EventBus, data: Path
) -> None:
    await store.write_document(NOTES, "notes")
    await store.write_document(USER, "user")
    await store.write_artifact(ArtifactKey.of(REF, "call"), "result")
    root = await memory.create("box", REF, ANN)
    twin = await memory.create("twin", SessionRef.of("acme", "s2"), ANN)
    (root / "session" / "NOTES.md").chmod(0o644)
    (root / "session" / "NOTES.md").write_text("changed in place, and with it the blob")
    (root / "user" / "USER.md").unlink()
    (root / "session" / "tool-results" / "call.txt").chmod(0)
    (root / "session" / "extra.md").write_text("extra")
    (root / "strange").mkdir()
    assert [file.path for file in await memory.inspect(REF) if not file.in_sync]
    assert await memory.verify(REF) == 5
    assert await memory.verify(REF) == 0
    assert all(file.in_sync for file in await memory.inspect(REF))
    assert (text_of(root, NOTES_PATH), text_of(root, USER_PATH), text_of(twin, USER_PATH)) == ("notes", "user", "user")
    assert {path.name for path in root.iterdir()} == {"session", "user", ".manifest.json"}
    drift = {(e.fields["path"], e.fields["how"]) for e in bus.recent() if e.fields.get("what") == "drift"}
    assert ("session/NOTES.md", "content") in drift
    assert ("user/USER.md", "missing") in drift
    assert ("session/extra.md", "extra") in drift
    assert leftovers(data) == []


async def test_the_periodic_check_finds_drift(store: Any, data: Path) -> None:
    await store.write_document(NOTES, "notes")
    async with Memory(data, store, events=EventBus(), verify_s=0.05) as memory:
        root = await memory.create("box", REF, ANN)
        (root / "session" / "NOTES.md").unlink()
        await until(lambda: text_of(root, NOTES_PATH) == "notes")


async def test_an_adopted_mirror_is_brought_up_to_date(store: Any, data: Path, bus: EventBus) -> None:
    await store.write_document(NOTES, "one")
    await store.write_document(USER, "user")
    async with Memory(data, store, events=EventBus()) as memory:
        root = await memory.create("box", REF, ANN)
    inode = root.stat().st_ino
    await store.write_document(NOTES, "written while no daemon ran")
    (root / "user" / "USER.md").unlink()
    (root / "user" / ".new-left-over").write_text("half")
    async with Memory(data, store, events=bus) as memory:
        assert leftovers(data) == []
        assert await memory.adopt("box", REF, ANN) == root
        assert text_of(root, NOTES_PATH) == "written while no daemon ran"
        assert text_of(root, USER_PATH) == "user"
        assert root.stat().st_ino == inode
        await store.write_document(NOTES, "and followed from then on")
        await until(lambda: text_of(root, NOTES_PATH) == "and followed from then on")
    drift = [event.fields["path"] for event in bus.recent() if event.fields.get("what") == "drift"]
    assert drift == ["user/USER.md"]


async def test_a_change_during_a_snapshot_is_not_lost(
    store: Any, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.write_document(NOTES, "one")
    read = store.read_memory

    async def read_and_change(keys: Any) -> Any:
        found = await read(keys)
        monkeypatch.undo()
        await store.write_document(NOTES, "two")
        return found

    monkeypatch.setattr(store, "read_memory", read_and_change)
    root = await memory.create("box", REF, ANN)
    await until(lambda: text_of(root, NOTES_PATH) == "two")
    assert (await store.read_document(NOTES)).revision == 2


async def test_events_name_author_and_revision_once_and_never_contain_the_text(
    store: Any, memory: Memory, bus: EventBus
) -> None:
    await memory.create("box", REF, ANN)
    await memory.write(NOTES, "a secret text", author=AGENT)
    await store.write_document(NOTES, "another secret text")
    memos: list[Any] = []

    def told() -> bool:
        memos[:] = [event.fields for event in bus.recent() if event.kind == "memo"]
        return len(memos) >= 2

    await until(told)
    assert [(fields["revision"], fields.get("actor")) for fields in memos] == [(1, "agent"), (2, None)]
    assert "secret" not in str(bus.recent())


async def test_content_that_is_too_large_or_not_text_is_refused_before_any_effect(store: Any, memory: Memory) -> None:
    with pytest.raises(TooLarge):
        await memory.write(NOTES, "x" * (2 * 1024 * 1024))
    assert await memory.read(NOTES) is None


async def test_a_retry_with_the_same_request_is_one_revision(memory: Memory) -> None:
    author = Author("agent", request="request-1")
    first = await memory.write(NOTES, "one", author=author)
    await memory.write(NOTES, "two")
    again = await memory.write(NOTES, "one", author=author)
    assert isinstance(first, Committed)
    assert isinstance(again, Committed)
    assert first.revision == again.revision
    found = await memory.read(NOTES)
    assert found is not None
    assert found.content == "two"


class Watched:
    """A store that records which of its methods are called, and may lack some."""

    def __init__(self, store: Any, *lacks: str) -> None:
        self._store = store
        self._lacks = lacks
        self.used: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in self._lacks:
            raise AttributeError(name)
        found = getattr(self._store, name)

        def note(*args: Any, **named: Any) -> Any:
            self.used.append(name)
            return found(*args, **named)

        return note if callable(found) else found


@pytest.mark.parametrize("lacks", [(), ("find_request",)])
async def test_a_request_is_looked_up_by_a_read_if_the_store_supports_it(
    store: Any, data: Path, lacks: tuple[str, ...]
) -> None:
    watched = Watched(store, *lacks)
    async with Memory(data, watched, events=EventBus()) as memory:
        author = Author("agent", request="request-1")
        assert await memory.repeated(NOTES, author) is None
        first = await memory.write(NOTES, "one", author=author)
        await memory.write(NOTES, "two")
        watched.used.clear()
        found = await memory.repeated(NOTES, author)
        assert isinstance(first, Committed)
        assert isinstance(found, Committed)
        assert (found.revision, found.sha256) == (first.revision, first.sha256)
        assert ("write_document" in watched.used) == bool(lacks)
        newest = await memory.read(NOTES)
        assert newest is not None
        assert (newest.revision, newest.content) == (2, "two")


async def test_writing_the_same_text_again_makes_a_new_revision_of_the_same_file(memory: Memory, data: Path) -> None:
    root = await memory.create("box", REF, ANN)
    for _ in range(3):
        await memory.write(NOTES, "the same")
    assert manifest_of(root)["session/NOTES.md"]["revision"] == 3
    assert await memory.shown(REF, NOTES_PATH) == 3
    assert leftovers(data) == []


async def test_history_diff_and_restore_use_the_same_writer(memory: Memory) -> None:
    root = await memory.create("box", REF, ANN)
    await memory.write(NOTES, "one\n", author=AGENT)
    await memory.write(NOTES, "two\n", author=AGENT)
    assert [revision.actor for revision in await memory.history(NOTES)] == ["agent", "agent"]
    assert "-one\n+two\n" in await memory.diff(NOTES, 1, 2)
    restored = await memory.restore(NOTES, 1, AGENT)
    assert restored.revision == 3
    assert text_of(root, NOTES_PATH) == "one\n"


async def test_a_dropped_mirror_is_left_alone(store: Any, memory: Memory) -> None:
    root = await memory.create("box", REF, ANN)
    memory.drop("box")
    await memory.write(NOTES, "later")
    assert text_of(root, NOTES_PATH) is None
    assert await memory.refresh(REF) == 0


async def test_a_full_disk_leaves_the_old_text_intact_and_the_mirror_recovers(
    store: Any, memory: Memory, data: Path
) -> None:
    root = await memory.create("box", REF, ANN)
    await memory.write(NOTES, "old")
    failpoints.arm("writeback.recorded=error(ENOSPC);refresh.read=error(ENOSPC)")
    try:
        written = await memory.write(NOTES, "new")
        assert isinstance(written, Committed)
        assert written.lagging == 1
        assert text_of(root, NOTES_PATH) == "old"
    finally:
        failpoints.arm("")
    await until(lambda: text_of(root, NOTES_PATH) == "new")
    assert leftovers(data) == []


async def test_a_commit_by_another_process_appears_in_the_mirror(data: Path, tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "memo.db") as store, Memory(data, store, events=EventBus()) as memory:
        root = await memory.create("box", REF, ANN)
        program = (
            "import anyio, sys, memo\n"
            "async def main():\n"
            "    async with memo.open_store('sqlite:///' + sys.argv[1]) as store:\n"
            "        await store.write_memory_document('acme', 's1', 'session', 'NOTES.md', 'from a host job')\n"
            "anyio.run(main)\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        await anyio.run_process([sys.executable, "-c", program, str(tmp_path / "memo.db")], env=environment)
        await until(lambda: text_of(root, NOTES_PATH) == "from a host job")
        assert [file.in_sync for file in await memory.inspect(REF)] == [True]


# Specification: 001.66
async def test_ten_thousand_artifacts_and_a_thousand_later_ones_are_mirrored(tmp_path: Path, data: Path) -> None:
    async with InMemoryStore() as store, Memory(data, store, events=EventBus()) as memory:
        for number in range(10_000):
            await store.write_artifact(ArtifactKey.of(REF, f"call-{number}"), f"result {number} " * 20)
        root = await memory.create("box", REF, ANN)
        results = root / "session" / "tool-results"
        assert len(os.listdir(results)) == 10_000
        for number in range(1000):
            await store.write_artifact(ArtifactKey.of(REF, f"late-{number}"), f"late {number}")
        await until(lambda: len([name for name in os.listdir(results) if not name.startswith(".")]) == 11_000)
        await until(lambda: len(manifest_of(root)) == 11_000)
        assert all(file.in_sync for file in await memory.inspect(REF))


async def test_a_store_without_history_says_so(data: Path) -> None:
    class Plain:
        async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
            return "text"

    async with Memory(data, Plain(), events=EventBus()) as memory:
        for call in (memory.history(NOTES), memory.diff(NOTES, 1, 2), memory.restore(NOTES, 1)):
            with pytest.raises(Unsupported, match="no history"):
                await call
