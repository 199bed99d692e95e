"""Texts that are written before a mirror shows them: the next mirror links them, and the cache stays within its
bound."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import pytest

from memo import InMemoryStore
from memo.documents import ArtifactKey, DocumentKey
from memo.ids import SessionRef, UserId
from sandboxd.events import EventBus
from sandboxd.memory import Memory

pytestmark = pytest.mark.anyio

REF, ANN = SessionRef.of("acme", "s1"), UserId("ann")


class Asked(InMemoryStore):
    """Records which texts were requested."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[DocumentKey | ArtifactKey] = []

    async def read_memory(self, keys: Sequence[DocumentKey | ArtifactKey]) -> list[bytes | None]:
        self.asked += keys
        return await super().read_memory(keys)


@pytest.fixture
async def store() -> AsyncIterator[Asked]:
    async with Asked() as store:
        yield store


def blobs(data: Path) -> list[Path]:
    return [path for path in (data / "blobs").rglob("*") if path.is_file()]


def kept_bytes(data: Path) -> int:
    total = 0
    for path in blobs(data):
        with contextlib.suppress(FileNotFoundError):  # it was just evicted
            total += path.stat().st_size
    return total


async def until_kept(data: Path, count: int) -> None:
    with anyio.fail_after(30):
        while len(blobs(data)) < count:
            await anyio.sleep(0.005)


async def test_a_text_written_through_the_writer_is_linked_without_a_read_from_the_store(
    tmp_path: Path, store: Asked
) -> None:
    async with Memory(tmp_path, store, events=EventBus()) as memory:
        await store.write_artifact(ArtifactKey.of(REF, "theirs"), "written by another process")
        await memory.write_artifact(ArtifactKey.of(REF, "ours"), "written here")
        await until_kept(tmp_path, 1)
        results = await memory.create("box", REF, ANN) / "session" / "tool-results"
        assert {path.name: path.read_text() for path in results.iterdir()} == {
            "ours.txt": "written here",
            "theirs.txt": "written by another process",
        }
        assert store.asked == [ArtifactKey.of(REF, "theirs")]
        assert (results / "ours.txt").stat().st_nlink == 2


async def test_texts_that_no_mirror_shows_do_not_fill_the_cache_beyond_its_bound(tmp_path: Path, store: Asked) -> None:
    async with Memory(tmp_path, store, events=EventBus(), blob_bytes=40_000) as memory:
        for number in range(100):
            await memory.write_artifact(ArtifactKey.of(REF, f"call-{number}"), f"{number} ".ljust(8000, "x"))
        with anyio.fail_after(30):
            while len(memory._warmer) or kept_bytes(tmp_path) > 40_000:
                await anyio.sleep(0.005)
        assert blobs(tmp_path)


async def test_a_very_large_text_is_not_cached_before_it_is_shown(tmp_path: Path, store: Asked) -> None:
    async with Memory(tmp_path, store, events=EventBus()) as memory:
        await memory.write_artifact(ArtifactKey.of(REF, "large"), "x" * 2_000_000)
        await memory.write_artifact(ArtifactKey.of(REF, "small"), "x")
        await until_kept(tmp_path, 1)
        assert [path.stat().st_size for path in blobs(tmp_path)] == [1]
