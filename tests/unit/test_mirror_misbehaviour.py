"""What a provider may do wrong: every snapshot is complete, or an error that says why, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from memo.documents import Document
from memo.errors import Corrupt, TooLarge, Unavailable, Unsupported
from memo.ids import SessionRef, UserId
from memo.limits import StoreLimits
from sandboxd.errors import StoreUnavailable
from sandboxd.events import EventBus
from sandboxd.mirror import Memory

pytestmark = pytest.mark.anyio

REF, ANN = SessionRef.of("acme", "s1"), UserId("ann")


class Plain:
    """A provider with one method; `answer` decides what it says."""

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
    """Rich in what it claims to have: documents of somebody else."""

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
    "ids that are no list": WithArtifacts("abc"),
    "ids that are no text": WithArtifacts([1, 2]),
    "an id that is a path": WithArtifacts(["fine", "../../x"]),
    "an id twice": WithArtifacts(["a", "a"]),
    "a million ids": WithArtifacts([f"id{number}" for number in range(1_000_000)]),
    "an artifact that is listed and not there": WithArtifacts(["a"], None),
    "an artifact of the wrong type": WithArtifacts(["a"], 3),
    "an artifact that is too large": WithArtifacts(["a"], "x" * 5000),
    "a list that is no list": StrangeLister({"NOTES.md": 1}),
    "entries that are none": StrangeLister(["NOTES.md"]),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_snapshot_of_a_bad_answer_fails_clearly_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    limits = StoreLimits(document_bytes=2000, artifact_bytes=4000)
    async with Memory(tmp_path, BAD[name], events=EventBus(), limits=limits, read_timeout_s=0.2) as memory:
        with anyio.fail_after(60), pytest.raises(StoreUnavailable, match=r"^cannot ") as caught:
            await memory.create("box", REF, ANN)
    assert "secret text" not in str(caught.value)
    assert [path for path in (tmp_path / "mirrors" / "box").rglob("*") if not path.is_dir()] == []


async def test_a_document_without_its_hash_is_refused(tmp_path: Path) -> None:
    liar = StrangeLister([], Document("text", 1, "0" * 64))
    async with Memory(tmp_path, liar, events=EventBus()) as memory:
        path = await memory.create("box", REF, ANN)
        with pytest.raises(StoreUnavailable, match="hash"):
            await memory.refresh(REF, "/workspace/memo/session/NOTES.md")
        assert not (path / "session" / "NOTES.md").exists()


async def test_a_store_that_cannot_read_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(Unsupported):
        Memory(tmp_path, object(), events=EventBus())
