"""The outbox: while the store is down a write is queued and shown as pending, and delivered once the store is back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from memo import SQLiteStore
from memo.documents import ABSENT, ArtifactKey, Author, DocumentKey, sha256_of
from memo.errors import Timeout, TooLarge, Unavailable
from memo.ids import OwnerId, SessionRef, UserId
from memo.paths import path_of
from sandboxd.errors import StoreUnavailable
from sandboxd.events import EventBus
from sandboxd.memory import Committed, Memory, Queued, WriteConflict, WriteOutcomeUnknown

pytestmark = pytest.mark.anyio

REF, ANN = SessionRef.of("acme", "s1"), UserId("ann")
NOTES = DocumentKey.of_session(REF, "NOTES.md")
NOTES_PATH = "/workspace/memo/session/NOTES.md"


class Switch:
    """A real store behind a switch: while down it fails every call, and `loses` loses answers after the commit.

    Calls on a key in `stuck` always fail, and a text in `unwelcome` is always refused.
    """

    def __init__(self, store: SQLiteStore) -> None:
        self.store = store
        self.is_down = False
        self.loses = False
        self.stuck: set[DocumentKey] = set()
        self.unwelcome: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name.startswith("_") or name in ("changes", "options", "session_trace_store"):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            if self.is_down or (args and isinstance(args[0], DocumentKey) and args[0] in self.stuck):
                raise Unavailable("cannot reach the store")
            if name == "write_document" and args[1] in self.unwelcome:
                raise TooLarge("cannot accept this text")
            answer = await found(*args, **named)
            if self.loses and name.startswith(("write", "append")):
                raise Timeout("cannot tell: no answer")
            return answer

        return call


@pytest.fixture
async def switch(tmp_path: Path) -> AsyncIterator[Switch]:
    async with SQLiteStore(tmp_path / "memo.db") as store:
        yield Switch(store)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def open_memory(data: Path, switch: Switch, *, outbox: bool = True) -> Memory:
    return Memory(data, switch, events=EventBus(), outbox=outbox)


async def delivered(memory: Memory) -> None:
    with anyio.fail_after(30):
        while memory.waiting:
            await anyio.sleep(0.005)


async def until_waiting(memory: Memory, count: int) -> None:
    with anyio.fail_after(30):
        while memory.waiting != count:
            await anyio.sleep(0.005)


async def until_shown(root: Path, text: str) -> None:
    with anyio.fail_after(30):
        while (root / "session" / "NOTES.md").read_text() != text:
            await anyio.sleep(0.005)


def manifest_of(root: Path) -> dict[str, Any]:
    return json.loads((root / ".manifest.json").read_bytes())["files"]  # type: ignore[no-any-return]


async def test_without_an_outbox_a_write_to_a_store_that_is_down_fails_clearly(data: Path, switch: Switch) -> None:
    async with open_memory(data, switch, outbox=False) as memory:
        root = await memory.create("box", REF, ANN)
        switch.is_down = True
        with pytest.raises(StoreUnavailable, match=r"cannot write NOTES\.md"):
            await memory.write(NOTES, "text")
        assert not (root / "session" / "NOTES.md").exists()
        switch.is_down, switch.loses = False, True
        with pytest.raises(WriteOutcomeUnknown):
            await memory.write(NOTES, "text")


async def test_a_queued_write_is_shown_as_pending_and_then_delivered(data: Path, switch: Switch) -> None:
    async with open_memory(data, switch) as memory:
        root = await memory.create("box", REF, ANN)
        await memory.write(NOTES, "one\n")
        switch.is_down = True
        base = await memory.shown(REF, NOTES_PATH)
        first = await memory.write(NOTES, "one\ntwo\n", expected=base, author=Author("agent"))
        second = await memory.write(NOTES, "one\ntwo\nthree\n", expected=await memory.shown(REF, NOTES_PATH))
        third = await memory.append(NOTES, "four\n")
        numbers = [answer.number for answer in (first, second, third) if isinstance(answer, Queued)]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 3
        assert (root / "session" / "NOTES.md").read_text() == "one\ntwo\nthree\nfour\n"
        assert manifest_of(root)["session/NOTES.md"]["pending"]
        assert isinstance(await memory.write_artifact(ArtifactKey.of(REF, "call"), "result"), Queued)
        seen = await memory.shown(REF, NOTES_PATH)
        switch.is_down = False
        await delivered(memory)
        found = await memory.read(NOTES)
        assert found is not None
        assert found.content == "one\ntwo\nthree\nfour\n"
        assert await switch.store.read_tool_result_artifact(REF, "call") == "result"
        assert [r.actor for r in await memory.history(NOTES)] == ["host", "host", "agent", "host"]
        # What an agent read while it was pending is a valid base for its next edit.
        assert isinstance(await memory.write(NOTES, "edited\n", expected=seen), Committed)
        assert "pending" not in manifest_of(root)["session/NOTES.md"]


async def test_a_write_that_is_not_based_on_the_queued_text_is_refused(data: Path, switch: Switch) -> None:
    async with open_memory(data, switch) as memory:
        await memory.create("box", REF, ANN)
        base = await memory.write(NOTES, "one")
        assert isinstance(base, Committed)
        switch.is_down = True
        await memory.write(NOTES, "two", expected=base.revision)
        with pytest.raises(WriteConflict) as caught:
            await memory.write(NOTES, "three", expected=base.revision)
        assert caught.value.current is not None
        assert caught.value.current.content == "two"


async def test_queued_writes_survive_a_restart_in_order(data: Path, switch: Switch) -> None:
    async with open_memory(data, switch) as memory:
        root = await memory.create("box", REF, ANN)
        await memory.write(NOTES, "base\n")
        switch.is_down = True
        for number in range(10):
            assert isinstance(await memory.append(NOTES, f"{number}\n"), Queued)
    expected = "base\n" + "".join(f"{number}\n" for number in range(10))
    async with open_memory(data, switch, outbox=False) as memory:  # a promise is kept even if the setting is gone
        await memory.adopt("box", REF, ANN)
        assert (root / "session" / "NOTES.md").read_text() == expected
        switch.is_down = False
        await delivered(memory)
        found = await memory.read(NOTES)
        assert found is not None
        assert found.content == expected


async def test_a_conflict_found_at_delivery_becomes_a_copy(data: Path, switch: Switch) -> None:
    async with open_memory(data, switch) as memory:
        root = await memory.create("box", REF, ANN)
        base = await memory.write(NOTES, "one")
        assert isinstance(base, Committed)
        switch.is_down = True
        await memory.write(NOTES, "mine")  # even without an expected revision: a late delivery overwrites nothing
        await memory.write(NOTES, "mine, more", expected=await memory.shown(REF, NOTES_PATH))
        await switch.store.write_document(NOTES, "theirs")
        switch.is_down = False
        await delivered(memory)
        found = await memory.read(NOTES)
        assert found is not None
        assert found.content == "theirs"
        entries = await memory.list(REF.tenant, OwnerId(REF.session), NOTES.scope)
        (copy,) = [entry.key for entry in entries if entry.key != NOTES]
        kept = await memory.read(copy)
        assert kept is not None
        assert kept.content == "mine, more"
        await until_shown(root, "theirs")


async def test_a_write_whose_answer_was_lost_is_one_revision(data: Path, switch: Switch) -> None:
    async with open_memory(data, switch) as memory:
        root = await memory.create("box", REF, ANN)
        switch.loses = True
        assert isinstance(await memory.append(NOTES, "once\n"), Queued)
        switch.loses = False
        await delivered(memory)
        found = await memory.read(NOTES)
        assert found is not None
        assert (found.content, found.revision) == ("once\n", 1)
        await until_shown(root, "once\n")


async def test_a_retry_of_a_queued_write_is_the_same_entry(data: Path, switch: Switch) -> None:
    async with open_memory(data, switch) as memory:
        switch.is_down = True
        author = Author("agent", request="r1")
        first = await memory.write(NOTES, "text", expected=ABSENT, author=author)
        assert await memory.write(NOTES, "text", expected=ABSENT, author=author) == first
        assert memory.waiting == 1


async def test_a_new_mirror_shows_queued_writes(data: Path, switch: Switch) -> None:
    async with open_memory(data, switch) as memory:
        switch.is_down = True
        user = DocumentKey.of_user(REF.tenant, ANN, "USER.md")
        await memory.write(user, "pending")
        switch.is_down = False
        root = await memory.create("box", REF, ANN)
        assert (root / "user" / "USER.md").read_text() == "pending"
        await delivered(memory)


async def test_documents_that_cannot_be_delivered_do_not_block_others(data: Path, switch: Switch) -> None:
    stuck = [DocumentKey.of("evil", f"s{number}", "session", "NOTES.md") for number in range(7)]
    async with open_memory(data, switch) as memory:
        switch.is_down = True
        for key in stuck:
            await memory.append(key, "never\n")
        await memory.append(NOTES, "one\n")
        await memory.append(NOTES, "two\n")
        switch.stuck, switch.is_down = set(stuck), False
        await until_waiting(memory, len(stuck))
        found = await memory.read(NOTES)
        assert found is not None
        assert found.content == "one\ntwo\n"
        switch.stuck = set()
        await delivered(memory)


async def test_later_writes_reach_the_document_after_a_conflict_and_a_refusal(data: Path, switch: Switch) -> None:
    async with open_memory(data, switch) as memory:
        root = await memory.create("box", REF, ANN)
        await memory.write(NOTES, "one\n")
        switch.is_down = True
        await memory.write(NOTES, "mine\n")
        await memory.write(NOTES, "unwelcome\n")
        await switch.store.write_document(NOTES, "theirs\n")
        switch.unwelcome, switch.is_down = {"unwelcome\n"}, False
        await delivered(memory)
        await until_shown(root, "theirs\n")
        switch.is_down = True
        await memory.append(NOTES, "added\n")
        await memory.write(NOTES, "theirs\nadded\nfinal\n")
        switch.is_down = False
        await delivered(memory)
        found = await memory.read(NOTES)
        assert found is not None
        assert found.content == "theirs\nadded\nfinal\n"


async def test_a_retry_of_a_refused_write_is_refused_with_the_same_error(data: Path, switch: Switch) -> None:
    author = Author("agent", request="r1")
    async with open_memory(data, switch) as memory:
        switch.unwelcome, switch.is_down = {"unwelcome"}, True
        assert isinstance(await memory.write(NOTES, "unwelcome", author=author), Queued)
        switch.is_down = False
        await delivered(memory)
        switch.is_down = True
        with pytest.raises(TooLarge, match="cannot accept this text"):
            await memory.write(NOTES, "unwelcome", author=author)
        # Even behind a queued write, a refused write is not reported as queued.
        assert isinstance(await memory.write(NOTES, "welcome"), Queued)
        with pytest.raises(TooLarge, match="cannot accept this text"):
            await memory.write(NOTES, "unwelcome", author=author)
        assert (memory.waiting, len(memory.refused())) == (1, 1)
    async with open_memory(data, switch) as memory:
        with pytest.raises(TooLarge, match="cannot accept this text"):
            await memory.repeated(NOTES, author)


async def test_a_queued_artifact_is_refused_if_the_store_has_a_newer_one(data: Path, switch: Switch) -> None:
    moved, same = ArtifactKey.of(REF, "moved"), ArtifactKey.of(REF, "same")
    for key in (moved, same):
        await switch.store.write_artifact(key, "one")
    async with open_memory(data, switch) as memory:
        await memory.create("box", REF, ANN)
        switch.is_down = True
        for key in (moved, same):
            assert isinstance(await memory.write_artifact(key, "mine", based_on=memory.shown_hash(key)), Queued)
            with pytest.raises(WriteConflict):
                await memory.write_artifact(key, "late", based_on=sha256_of(b"one"))
        await switch.store.write_artifact(moved, "theirs")
        switch.is_down = False
        await delivered(memory)
        assert [refused.path for refused in memory.refused()] == [str(path_of(moved))]
    assert await switch.store.read_tool_result_artifact(REF, "moved") == "theirs"
    assert await switch.store.read_tool_result_artifact(REF, "same") == "mine"


OLDER_SCHEMA = """
CREATE TABLE entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    content BLOB NOT NULL,
    expected TEXT NOT NULL,
    actor TEXT NOT NULL,
    session TEXT,
    reason TEXT NOT NULL,
    request TEXT NOT NULL,
    at REAL NOT NULL,
    attempt TEXT,
    refusal TEXT,
    UNIQUE (key, request)
);
CREATE TABLE chains (key TEXT PRIMARY KEY, target TEXT NOT NULL, revision INTEGER NOT NULL);
"""


async def test_writes_queued_by_an_earlier_daemon_are_delivered(data: Path, switch: Switch) -> None:
    data.mkdir()
    row = (json.dumps(["session", "acme", "s1", "NOTES.md"]), "write", b"text", "absent", "agent", "", "r1", 0.0)
    db = sqlite3.connect(data / "outbox.db")
    db.executescript(OLDER_SCHEMA)
    columns = "key, kind, content, expected, actor, reason, request, at"
    db.execute(f"INSERT INTO entries ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    db.commit()
    db.close()
    async with open_memory(data, switch) as memory:
        await delivered(memory)
        found = await memory.read(NOTES)
        assert found is not None
        assert found.content == "text"
