"""Memory over minimal providers: ten lines are enough to be mirrored, and missing features raise clear errors."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from memo.documents import ABSENT, ArtifactKey, DocumentKey
from memo.errors import Unavailable, Unsupported
from memo.ids import OwnerId, SessionRef, UserId
from sandboxd.errors import StoreUnavailable
from sandboxd.events import EventBus
from sandboxd.memory import Committed, Memory, Queued, WriteConflict, WriteOutcomeUnknown

pytestmark = pytest.mark.anyio

REF, ANN = SessionRef.of("acme", "s1"), UserId("ann")
NOTES = DocumentKey.of_session(REF, "NOTES.md")
NOTES_PATH = "/workspace/memo/session/NOTES.md"


class ReadOnly:
    def __init__(self) -> None:
        self.texts: dict[tuple[str, str, str, str], str] = {}
        self.is_down = False

    def check(self) -> None:
        if self.is_down:
            raise Unavailable("cannot reach the store")

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        self.check()
        return self.texts.get((tenant, owner, scope, name))


class Writable(ReadOnly):
    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        self.check()
        await anyio.lowlevel.checkpoint()
        self.texts[tenant, owner, scope, name] = content


class Neat(Writable):
    """Stores texts without trailing spaces."""

    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        await super().write_memory_document(tenant, owner, scope, name, content.rstrip() + "\n")


class HangsAfterCommit(Writable):
    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        await super().write_memory_document(tenant, owner, scope, name, content)
        await anyio.sleep_forever()


AT_NOTES, AT_USER = ("acme", "s1", "session", "NOTES.md"), ("acme", "ann", "user", "USER.md")


# Specification: 001.27, 001.63
async def test_a_provider_with_one_method_is_mirrored_and_read_only(tmp_path: Path) -> None:
    store = ReadOnly()
    store.texts[AT_NOTES] = "notes"
    store.texts[AT_USER] = "user"
    async with Memory(tmp_path, store, events=EventBus()) as memory:
        root = await memory.create("box", REF, ANN)
        assert (root / "session" / "NOTES.md").read_text() == "notes"
        assert not (root / "session" / "TODO.md").exists()
        store.texts[AT_USER] = "new"
        assert await memory.refresh_user(REF.tenant, ANN, "USER.md", "new") == 1
        assert (root / "user" / "USER.md").read_text() == "new"
        for call in (
            memory.write(NOTES, "x"),
            memory.append(NOTES, "x"),
            memory.write_artifact(ArtifactKey.of(REF, "c"), "x"),
        ):
            with pytest.raises(Unsupported, match="this store is read-only"):
                await call
        entries = await memory.list(REF.tenant, OwnerId("s1"), NOTES.scope)
        assert [(entry.key.name, entry.size_bytes) for entry in entries] == [("NOTES.md", 5)]


async def test_without_revisions_the_content_is_compared(tmp_path: Path) -> None:
    store = Writable()
    async with Memory(tmp_path, store, events=EventBus()) as memory:
        root = await memory.create("box", REF, ANN)
        first = await memory.write(NOTES, "one\ntwo\nthree\n", expected=await memory.shown(REF, NOTES_PATH))
        assert isinstance(first, Committed)
        assert await memory.shown(REF, NOTES_PATH) == first.revision
        store.texts[AT_NOTES] = "ONE\ntwo\nthree\n"
        with pytest.raises(WriteConflict) as caught:
            await memory.write(NOTES, "mine", expected=first.revision)
        assert caught.value.current is not None
        assert caught.value.current.content == "ONE\ntwo\nthree\n"
        with pytest.raises(WriteConflict):
            await memory.write(NOTES, "mine", expected=ABSENT)
        merged = await memory.write(NOTES, "one\ntwo\nthree\nfour\n", expected=first.revision, merge=True)
        assert isinstance(merged, Committed)
        assert store.texts[AT_NOTES] == (root / "session" / "NOTES.md").read_text() == "ONE\ntwo\nthree\nfour\n"


# Specification: 001.23
async def test_concurrent_appends_are_all_stored_although_the_provider_cannot_append(tmp_path: Path) -> None:
    store = Writable()
    async with Memory(tmp_path, store, events=EventBus()) as memory:
        root = await memory.create("box", REF, ANN)
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(memory.append, NOTES, f"{number}\n")
        assert sorted(map(int, store.texts[AT_NOTES].split())) == list(range(20))
        assert (root / "session" / "NOTES.md").read_text() == store.texts[AT_NOTES]


async def test_the_mirror_shows_the_text_as_the_provider_stored_it(tmp_path: Path) -> None:
    async with Memory(tmp_path, Neat(), events=EventBus()) as memory:
        root = await memory.create("box", REF, ANN)
        await memory.write(NOTES, "text   ")
        assert (root / "session" / "NOTES.md").read_text() == "text\n"
        again = await memory.write(NOTES, "more", expected=await memory.shown(REF, NOTES_PATH))
        assert isinstance(again, Committed)


async def test_an_artifact_that_cannot_be_read_back_is_shown_as_given(tmp_path: Path) -> None:
    async with Memory(tmp_path, ReadOnly(), events=EventBus()) as memory:
        root = await memory.create("box", REF, ANN)
        assert await memory.refresh(REF, "/workspace/memo/session/tool-results/call.txt", "result") == 1
        assert (root / "session" / "tool-results" / "call.txt").read_text() == "result"


async def test_a_write_without_an_answer_is_reported_as_unknown(tmp_path: Path) -> None:
    async with Memory(tmp_path, HangsAfterCommit(), events=EventBus(), outbox=True, store_timeout_s=0.1) as memory:
        with pytest.raises(WriteOutcomeUnknown, match="may or may not"):
            await memory.write(NOTES, "text")


async def test_an_outage_never_looks_like_an_empty_document(tmp_path: Path) -> None:
    store = Writable()
    store.texts[AT_NOTES] = "notes"
    async with Memory(tmp_path, store, events=EventBus()) as memory:
        root = await memory.create("box", REF, ANN)
        store.is_down = True
        for call in (memory.refresh(REF), memory.refresh(REF, NOTES_PATH), memory.read(NOTES), memory.inspect(REF)):
            with pytest.raises(StoreUnavailable):
                await call
        with pytest.raises(StoreUnavailable):
            await memory.create("other", SessionRef.of("acme", "s2"), ANN)
        assert (root / "session" / "NOTES.md").read_text() == "notes"
        assert await memory.adopt("box", REF, ANN) == root
        assert (root / "session" / "NOTES.md").read_text() == "notes"
        store.texts[AT_NOTES] = "newer"
        store.is_down = False
        with anyio.fail_after(30):  # the adoption finishes without a trigger
            while (root / "session" / "NOTES.md").read_text() != "newer":
                await anyio.sleep(0.01)


async def test_queued_writes_of_a_plain_provider_are_delivered_once_and_in_order(tmp_path: Path) -> None:
    store = Writable()
    store.texts[AT_NOTES] = "base\n"
    async with Memory(tmp_path, store, events=EventBus(), outbox=True) as memory:
        root = await memory.create("box", REF, ANN)
        store.is_down = True
        for number in range(5):
            assert isinstance(await memory.append(NOTES, f"{number}\n"), Queued)
        assert (root / "session" / "NOTES.md").read_text() == "base\n0\n1\n2\n3\n4\n"
        store.is_down = False
        with anyio.fail_after(30):
            while memory.waiting:
                await anyio.sleep(0.01)
        assert store.texts[AT_NOTES] == "base\n0\n1\n2\n3\n4\n"
