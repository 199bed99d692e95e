"""A mirror before it is filled and after it is dropped: changes are recorded, and no directory is recreated."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from memo import InMemoryStore
from memo.documents import ArtifactEntry, ArtifactKey, DocumentKey
from memo.errors import Unavailable
from memo.ids import SessionRef, UserId
from sandboxd.errors import StoreUnavailable
from sandboxd.events import EventBus
from sandboxd.memory import Memory
from sandboxd.memory.text import Text

pytestmark = pytest.mark.anyio

REF, ANN = SessionRef.of("acme", "s1"), UserId("ann")
NOTES = DocumentKey.of_session(REF, "NOTES.md")
USER = DocumentKey.of_user(REF.tenant, ANN, "USER.md")


class FailingReads(InMemoryStore):
    """Fails to read artifacts while `is_failing`, and writes NOTES.md at that moment."""

    is_failing = False

    async def read_artifacts(self, session: SessionRef, tool_calls: Any) -> Any:
        if self.is_failing:
            await self.write_document(NOTES, "written while a snapshot was read")
            raise Unavailable("cannot read artifacts now")
        return await super().read_artifacts(session, tool_calls)


@pytest.fixture
async def store() -> AsyncIterator[FailingReads]:
    async with FailingReads() as store:
        yield store


@pytest.fixture
async def memory(tmp_path: Path, store: FailingReads) -> AsyncIterator[Memory]:
    async with Memory(tmp_path, store, events=EventBus()) as memory:
        yield memory


async def test_a_change_before_the_snapshot_is_recorded_and_touches_no_file(memory: Memory) -> None:
    mirror = memory._mirrors.track("box", REF, ANN)
    await memory._mirrors.install(USER, Text.of(b"text", 1), revisioned=True)
    assert mirror.missed == {USER}
    assert not Path(mirror.root).exists()


@pytest.mark.parametrize("staged", [None, "refresh.staged"])
async def test_a_write_after_the_drop_does_not_recreate_the_directory(memory: Memory, staged: str | None) -> None:
    root = await memory.create("box", REF, ANN)
    mirror = memory._mirrors.of_session(REF)
    assert mirror is not None
    memory.drop("box")
    shutil.rmtree(root)
    await memory._mirrors._write(mirror, "session/NOTES.md", Text.of(b"late", 1), staged)
    await memory._mirrors.write_manifest(mirror)
    assert not root.exists()


async def test_a_change_announced_during_a_failed_snapshot_is_still_shown(memory: Memory, store: FailingReads) -> None:
    await memory.write(NOTES, "first")
    root = await memory.create("box", REF, ANN)
    await store.write_artifact(ArtifactKey.of(REF, "call-1"), "a result")
    (root / "session" / "tool-results" / "call-1.txt").unlink(missing_ok=True)
    shutil.rmtree(memory._blobs._root)
    memory._blobs.open()
    store.is_failing = True
    with pytest.raises(StoreUnavailable):
        await memory.refresh(REF)
    store.is_failing = False
    notes = root / "session" / "NOTES.md"
    while notes.read_text() != "written while a snapshot was read":
        await memory._refresher.refresh(ArtifactKey.of(REF, "call-1"))  # lets the workers run


async def test_a_hash_that_is_a_path_is_refused_and_removes_nothing(tmp_path: Path) -> None:
    """The hash becomes a name on disk, so an invalid hash must never get there."""
    victim = tmp_path / "victim"
    victim.write_text("precious")

    class Lying(InMemoryStore):
        async def list_artifacts(self, session: SessionRef) -> list[ArtifactEntry]:
            key = ArtifactKey.of(session, "call-1")
            return [ArtifactEntry(key, 1, f"../../../{victim.name}", 8, self.options.clock())]

    async with Lying() as store, Memory(tmp_path / "data", store, events=EventBus()) as memory:
        with pytest.raises(StoreUnavailable, match="hash"):
            await memory.create("box", REF, ANN)
    assert victim.read_text() == "precious"
