"""Misbehaving providers: every snapshot is complete or fails with the reason, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from memo import InMemoryStore
from memo.documents import ArtifactKey, Document, sha256_of
from memo.errors import Corrupt, TooLarge, Unavailable, Unsupported
from memo.ids import SessionRef, UserId
from memo.limits import StoreLimits
from memo.provider import SessionMemory
from sandboxd.errors import StoreUnavailable
from sandboxd.events import EventBus
from sandboxd.memory import Memory

pytestmark = pytest.mark.anyio

REF, ANN = SessionRef.of("acme", "s1"), UserId("ann")


class Plain:
    """A provider with one method, which returns `answer`."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class WithArtifacts(Plain):
    def __init__(self, ids: Any, text: Any = "text") -> None:
        super().__init__(None)
        self.ids = ids
        self.text = text

    async def list_tool_result_artifact_ids(self, session_ref: str) -> Any:
        return self.ids

    async def read_tool_result_artifact(self, session_ref: str, tool_call_id: str) -> Any:
        return self.text


class Hanging(Plain):
    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> Any:
        await anyio.sleep_forever()


class NotAsynchronous:
    def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str:
        return "text"


class StrangeLister(Plain):
    """Lists what it is given, for example documents of another owner."""

    def __init__(self, entries: Any, document: Any = None) -> None:
        super().__init__(None)
        self.entries = entries
        self.document = document

    async def list_documents(self, tenant: str, owner: str, scope: str) -> Any:
        return self.entries

    async def read_document(self, key: Any, revision: int | None = None) -> Any:
        return self.document

    async def write_document(self, key: Any, content: str, **_: Any) -> Any:
        return self.document

    async def append_document(self, key: Any, content: str, **_: Any) -> Any:
        return self.document


class StrangeSnapshots(InMemoryStore):
    """A real store with one artifact, whose answers about whole sessions are corrupted by `listed` or `texts`."""

    def __init__(self, *, listed: Any = None, texts: Any = None) -> None:
        super().__init__()
        self.listed = listed
        self.texts = texts

    async def list_memory(self, session: SessionRef, user: UserId) -> Any:
        await self.write_artifact(ArtifactKey.of(session, "a"), "text")
        return await super().list_memory(session, user) if self.listed is None else self.listed

    async def read_memory(self, keys: Any) -> Any:
        return await super().read_memory(keys) if self.texts is None else self.texts

    async def read_artifacts(self, session: SessionRef, tool_calls: Any) -> Any:
        raise Corrupt("cannot read artifact a: its text is missing from the store")


def lines(*artifacts: Any) -> SessionMemory:
    return SessionMemory([], list(artifacts))


HASH = sha256_of(b"text")

BAD = {
    "a number": Plain(42),
    "bytes": Plain(b"text"),
    "half a surrogate pair": Plain("\ud800"),
    "too much": Plain("x" * 3000),
    "its own exception": Plain(KeyError("secret text")),
    "an outage": Plain(Unavailable("cannot reach the store")),
    "damage": Plain(Corrupt("cannot read row 7")),
    "a refusal": Plain(TooLarge("cannot store this")),
    "hanging": Hanging(None),
    "not asynchronous": NotAsynchronous(),
    "ids that are not a list": WithArtifacts("abc"),
    "ids that are not text": WithArtifacts([1, 2]),
    "an id that is a path": WithArtifacts(["fine", "../../x"]),
    "an id twice": WithArtifacts(["a", "a"]),
    "a million ids": WithArtifacts([f"id{number}" for number in range(1_000_000)]),
    "an artifact that is listed but missing": WithArtifacts(["a"], None),
    "an artifact of the wrong type": WithArtifacts(["a"], 3),
    "an artifact that is too large": WithArtifacts(["a"], "x" * 5000),
    "a list that is not a list": StrangeLister({"NOTES.md": 1}),
    "invalid entries": StrangeLister(["NOTES.md"]),
    "an invalid snapshot": StrangeSnapshots(listed=([], [])),
    "a snapshot without a list": StrangeSnapshots(listed=SessionMemory([], "ab")),  # type: ignore[arg-type]
    "an invalid document": StrangeSnapshots(listed=SessionMemory(["NOTES.md"], [])),  # type: ignore[list-item]
    "an invalid line": StrangeSnapshots(listed=lines("abcd")),
    "a line that is too short": StrangeSnapshots(listed=lines(("a", 1, HASH))),
    "an invalid revision": StrangeSnapshots(listed=lines(("a", "1", HASH, 4))),
    "an invalid size": StrangeSnapshots(listed=lines(("a", 1, HASH, True))),
    "a hash that is a path": StrangeSnapshots(listed=lines(("a", 1, "../" * 21 + "x", 4))),
    "a hash with a blank": StrangeSnapshots(listed=lines(("a", 1, HASH[:-1] + " ", 4))),
    "a hash that is too short": StrangeSnapshots(listed=lines(("a", 1, HASH[:-2], 4))),
    "a line whose id is a path": StrangeSnapshots(listed=lines(("../a", 1, HASH, 4))),
    "a line whose id is two": StrangeSnapshots(listed=lines(("a\nb", 1, HASH, 4))),
    "a line whose id is not text": StrangeSnapshots(listed=lines((7, 1, HASH, 4))),
    "a line twice": StrangeSnapshots(listed=lines(("a", 1, HASH, 4), ("a", 2, HASH, 4))),
    "a line of nothing": StrangeSnapshots(listed=lines(("b", 1, HASH, 4))),
    "texts that are not a list": StrangeSnapshots(texts="text"),
    "too few texts": StrangeSnapshots(texts=[]),
    "another text than was listed": StrangeSnapshots(texts=[b"other"]),
    "a text that was lost": StrangeSnapshots(texts=[None]),
    "a text that is a number": StrangeSnapshots(texts=[4]),
    "a text that is not UTF-8": StrangeSnapshots(texts=[b"\xff"]),
    "a text that is too large": StrangeSnapshots(texts=[b"x" * 5000]),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_snapshot_of_a_bad_answer_fails_clearly_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    limits = StoreLimits(document_bytes=2000, artifact_bytes=4000)
    async with Memory(tmp_path, BAD[name], events=EventBus(), limits=limits, store_timeout_s=0.2) as memory:
        with anyio.fail_after(60), pytest.raises(StoreUnavailable, match=r"^cannot ") as caught:
            await memory.create("box", REF, ANN)
    assert "secret text" not in str(caught.value)
    assert [path for path in (tmp_path / "mirrors" / "box").rglob("*") if not path.is_dir()] == []


async def test_a_text_that_changed_since_it_was_listed_is_read_again(tmp_path: Path) -> None:
    class Changing(InMemoryStore):
        async def read_memory(self, keys: Any) -> Any:
            await self.write_artifact(ArtifactKey.of(REF, "a"), "new")
            return await super().read_memory(keys)

    async with Changing() as store, Memory(tmp_path, store, events=EventBus()) as memory:
        await store.write_artifact(ArtifactKey.of(REF, "a"), "old")
        path = await memory.create("box", REF, ANN)
        assert (path / "session" / "tool-results" / "a.txt").read_text() == "new"


async def test_a_document_without_its_hash_is_refused(tmp_path: Path) -> None:
    liar = StrangeLister([], Document("text", 1, "0" * 64))
    async with Memory(tmp_path, liar, events=EventBus()) as memory:
        path = await memory.create("box", REF, ANN)
        with pytest.raises(StoreUnavailable, match="hash"):
            await memory.refresh(REF, "/workspace/memo/session/NOTES.md")
        assert not (path / "session" / "NOTES.md").exists()


async def test_a_provider_without_a_read_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported):
        Memory(tmp_path, object(), events=EventBus())
