"""A write by an agent on its way through the daemon: its text is encoded and hashed once, and stores may alter it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import sandboxd.memory.agent_memory
import sandboxd.memory.text
from memo import InMemoryStore
from memo.documents import ANY as ANY_REVISION
from memo.documents import HOST, Author, Document, DocumentKey, Expected, sha256_of
from memo.ids import SessionRef
from sandboxd.events import EventBus
from sandboxd.memory import Memory
from sandboxd.memory.outcomes import Committed

pytestmark = pytest.mark.anyio

REF = SessionRef.of("acme", "s1")
NOTES = DocumentKey.of_session(REF, "NOTES.md")
AGENT = Author("agent", REF.session, "Edit")


class NormalisingStore(InMemoryStore):
    """Removes white space from the end of every document."""

    async def write_document(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY_REVISION, author: Author = HOST
    ) -> Document:
        return await super().write_document(key, content.rstrip(), expected=expected, author=author)


@pytest.fixture
async def memory(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Memory]:
    async with request.param() as store, Memory(tmp_path, store, events=EventBus()) as memory:
        yield memory


@pytest.mark.parametrize("memory", [InMemoryStore], indirect=True)
async def test_the_daemon_hashes_the_text_of_an_edit_once(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counted(content: bytes) -> str:
        hashed.append(content)
        return sha256_of(content)

    for module in (sandboxd.memory.text, sandboxd.memory.agent_memory):
        monkeypatch.setattr(module, "sha256_of", counted)
    before = await memory.agents.write(REF, NOTES, "one", AGENT)
    hashed.clear()
    document = Document("one", 1, before.outcome.sha256)
    after = await memory.agents.replace(REF, NOTES, document, "two", AGENT)
    assert (after.is_merged, after.outcome.sha256) == (False, sha256_of(b"two"))
    assert hashed == [b"two"]


@pytest.mark.parametrize("memory", [NormalisingStore], indirect=True)
async def test_a_text_that_the_store_altered_does_not_count_as_seen(memory: Memory) -> None:
    write = await memory.agents.write(REF, NOTES, "one  ", AGENT)
    assert isinstance(write.outcome, Committed)
    assert write.outcome.is_altered
    assert write.outcome.sha256 == sha256_of(b"one")
    assert await memory.agents.seen_text(REF, NOTES) is None
