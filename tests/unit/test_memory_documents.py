"""Documents with paths as names: created, moved, deleted and restored through the one writer, in every mirror."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from memo import InMemoryStore
from memo.documents import Author, DocumentKey, DocumentName
from memo.errors import Absent, NameTaken, RevisionConflict, Unavailable, Unsupported
from memo.ids import SessionRef, UserId
from sandboxd.errors import StoreUnavailable
from sandboxd.events import EventBus
from sandboxd.memory import Memory
from sandboxd.memory.merge import copy_key

pytestmark = pytest.mark.anyio

REF, ANN = SessionRef.of("acme", "s1"), UserId("ann")
PLAN = DocumentKey.of_session(REF, "memories/projects/plan.md")
FACT = DocumentKey.of_user(REF.tenant, ANN, "memories/fact.md")


class PlainProvider:
    def __init__(self) -> None:
        self.texts: dict[tuple[str, ...], str] = {}

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        return self.texts.get((tenant, owner, scope, name))

    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        self.texts[tenant, owner, scope, name] = content


class PausesAfterWriting(InMemoryStore):
    """Commits a write at once, and answers it when `answer` is set."""

    answer: anyio.Event | None = None

    async def write_document(self, key: DocumentKey, content: str, **named: Any) -> Any:
        document = await super().write_document(key, content, **named)
        if self.answer is not None:
            await self.answer.wait()
        return document


@pytest.fixture
async def store() -> AsyncIterator[PausesAfterWriting]:
    async with PausesAfterWriting() as store:
        yield store


@pytest.fixture
async def events() -> EventBus:
    return EventBus()


@pytest.fixture
async def memory(tmp_path: Path, store: InMemoryStore, events: EventBus) -> AsyncIterator[Memory]:
    async with Memory(tmp_path, store, events=events) as memory:
        yield memory


def files(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")
    )


def published(events: EventBus, kind: str) -> list[dict[str, object]]:
    return [{"what": e.fields["what"], **e.fields} for e in events.recent(0) if e.kind == kind]


async def test_a_document_appears_moves_and_vanishes_at_its_path_in_every_mirror(
    memory: Memory, store: InMemoryStore
) -> None:
    other = SessionRef.of("acme", "s2")
    roots = [await memory.create("one", REF, ANN), await memory.create("two", other, ANN)]
    await memory.write(FACT, "a fact")
    await memory.write(PLAN, "a plan")
    assert files(roots[0]) == ["session/memories/projects/plan.md", "user/memories/fact.md"]
    assert files(roots[1]) == ["user/memories/fact.md"]
    assert stat.S_IMODE(os.stat(roots[0] / "session" / "memories" / "projects").st_mode) == 0o2750
    await memory.move(FACT, DocumentName("archive/fact.md"))
    await memory.move(PLAN, DocumentName("memories/projects/plan.md/part.md"))
    assert files(roots[0]) == ["session/memories/projects/plan.md/part.md", "user/archive/fact.md"]
    assert files(roots[1]) == ["user/archive/fact.md"]
    await memory.delete(DocumentKey.of_user(REF.tenant, ANN, "archive/fact.md"))
    await memory.delete(DocumentKey.of_session(REF, "memories/projects/plan.md/part.md"))
    assert [files(root) for root in roots] == [[], []]
    assert sorted(p.name for p in (roots[0] / "session").iterdir()) == ["tool-results"]
    assert list((roots[1] / "user").iterdir()) == []
    await memory.restore(PLAN, 1)
    assert (roots[0] / "session" / PLAN.name).read_text() == "a plan"


async def test_a_mirror_follows_deletions_and_moves_made_in_the_store(memory: Memory, store: InMemoryStore) -> None:
    root = await memory.create("box", REF, ANN)
    await store.write_document(PLAN, "a plan")
    await store.move_document(PLAN, DocumentName("memories/other.md"))
    with anyio.fail_after(10):
        while files(root) != ["session/memories/other.md"]:
            await anyio.sleep(0.001)
    await store.delete_document(DocumentKey.of_session(REF, "memories/other.md"))
    with anyio.fail_after(10):
        while files(root):
            await anyio.sleep(0.001)


async def test_a_document_deleted_while_its_write_is_answered_does_not_come_back(
    memory: Memory, store: PausesAfterWriting
) -> None:
    root = await memory.create("box", REF, ANN)
    store.answer = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(memory.write, PLAN, "short-lived")
        await anyio.wait_all_tasks_blocked()
        await store.delete_document(PLAN)
        await memory.refresh(REF, "/workspace/memo/session/memories/projects/plan.md")
        store.answer.set()
    assert files(root) == []


async def test_an_adopted_mirror_loses_what_was_deleted_meanwhile_and_empty_directories(
    tmp_path: Path, store: InMemoryStore
) -> None:
    await store.write_document(PLAN, "a plan")
    async with Memory(tmp_path, store, events=EventBus()) as memory:
        root = await memory.create("box", REF, ANN)
    await store.delete_document(PLAN)
    await store.write_document(DocumentKey.of_session(REF, "memories/projects"), "a document now")
    (root / "user" / "left" / "over").mkdir(parents=True)
    async with Memory(tmp_path, store, events=EventBus()) as memory:
        await memory.adopt("box", REF, ANN)
        assert files(root) == ["session/memories/projects"]
        assert list((root / "user").iterdir()) == []


async def test_drift_in_nested_directories_is_found_and_repaired(memory: Memory) -> None:
    root = await memory.create("box", REF, ANN)
    await memory.write(PLAN, "a plan")
    directory = root / "session" / "memories"
    (directory / "projects" / "plan.md").unlink()
    (directory / "projects").rmdir()
    (directory / "projects").write_text("in the way")
    (directory / "extra.md").write_text("planted")
    (directory / ".git").mkdir()
    (directory / ".git" / "config").write_text("planted")
    (root / "user" / "link").symlink_to("/etc")
    assert await memory.verify(REF) > 0
    assert files(root) == ["session/memories/projects/plan.md"]
    assert await memory.verify(REF) == 0


async def test_a_stale_deletion_or_move_changes_nothing_and_says_what_is_there(memory: Memory) -> None:
    root = await memory.create("box", REF, ANN)
    await memory.write(PLAN, "one")
    await memory.write(PLAN, "two")
    for refused in (
        lambda: memory.delete(PLAN, expected=1),
        lambda: memory.move(PLAN, DocumentName("x.md"), expected=1),
    ):
        with pytest.raises(RevisionConflict) as caught:
            await refused()
        assert caught.value.current is not None
        assert caught.value.current.content == "two"
    await memory.delete(PLAN, expected=2)
    with pytest.raises(RevisionConflict, match=r"expected revision 2, but it was deleted in revision 3") as caught:
        await memory.write(PLAN, "three", expected=2)
    assert (caught.value.current, caught.value.deletion) == (None, 3)
    with pytest.raises(Absent, match=r"it was deleted in revision 3; an earlier revision can be restored"):
        await memory.delete(PLAN)
    assert files(root) == []


async def test_each_deletion_and_move_is_one_event_for_each_name(memory: Memory, events: EventBus) -> None:
    await memory.create("box", REF, ANN)
    await memory.write(PLAN, "a plan")
    await memory.move(PLAN, DocumentName("plan.md"), author=Author("ann", reason="tidy"))
    await memory.delete(DocumentKey.of_session(REF, "plan.md"), author=Author("bob"))
    await anyio.wait_all_tasks_blocked()
    told = [
        {k: e[k] for k in ("what", "name", "revision", "actor", "moved_to", "moved_from") if k in e}
        for e in published(events, "memo")
    ]
    assert told == [
        {"what": "written", "name": PLAN.name, "revision": 1, "actor": "host"},
        {"what": "deleted", "name": PLAN.name, "revision": 2, "actor": "ann", "moved_to": "plan.md"},
        {"what": "moved", "name": "plan.md", "revision": 1, "actor": "ann", "moved_from": PLAN.name},
        {"what": "deleted", "name": "plan.md", "revision": 2, "actor": "bob"},
    ]


async def test_a_plain_provider_takes_nested_names_and_says_that_it_cannot_delete(tmp_path: Path) -> None:
    provider = PlainProvider()
    async with Memory(tmp_path, provider, events=EventBus()) as memory:
        root = await memory.create("box", REF, ANN)
        await memory.write(PLAN, "a plan")
        assert files(root) == ["session/memories/projects/plan.md"]
        with pytest.raises(NameTaken):
            await memory.write(DocumentKey.of_session(REF, "memories"), "clash")
        with pytest.raises(Unsupported, match=r"cannot delete memories/projects/plan.md: this store cannot delete"):
            await memory.delete(PLAN)
        with pytest.raises(Unsupported, match=r"this store cannot move documents"):
            await memory.move(PLAN, DocumentName("x.md"))
        assert [e.key.name for e in await memory.list(REF.tenant, PLAN.owner, PLAN.scope)] == []


async def test_a_deletion_fails_clearly_while_the_store_is_down_or_a_write_is_queued(tmp_path: Path) -> None:
    class Down(InMemoryStore):
        is_down = False

        async def write_document(self, key: DocumentKey, content: str, **named: Any) -> Any:
            if self.is_down:
                raise Unavailable("cannot reach the store")
            return await super().write_document(key, content, **named)

        async def delete_document(self, key: DocumentKey, **named: Any) -> Any:
            if self.is_down:
                raise Unavailable("cannot reach the store")
            return await super().delete_document(key, **named)

    store = Down()
    async with Memory(tmp_path, store, events=EventBus(), outbox=True) as memory:
        root = await memory.create("box", REF, ANN)
        await memory.write(PLAN, "one")
        store.is_down = True
        with pytest.raises(StoreUnavailable):
            await memory.delete(PLAN)
        await memory.write(PLAN, "two")
        with pytest.raises(StoreUnavailable, match="a write of it is queued for the store; try again"):
            await memory.delete(PLAN)
        with pytest.raises(NameTaken):
            await memory.write(DocumentKey.of_session(REF, "memories"), "queued clash")
        assert (root / "session" / PLAN.name).read_text() == "two"


def test_the_copy_of_a_conflicting_text_lies_beside_its_document() -> None:
    assert copy_key(PLAN, 3, "abc").name == "memories/projects/plan.conflict-3-abc.md"
    long = DocumentKey.of_session(REF, "/".join(["x" * 127] * 3) + "/" + "y" * 120 + ".md")
    copy = copy_key(long, 3, "abc").name
    assert len(copy) <= 512
    assert copy.endswith(".conflict-3-abc.md")
