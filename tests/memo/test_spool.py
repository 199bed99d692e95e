"""Spools in memory, on disk and in a store: exact bytes, read by line and range, written atomically."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memo.errors import Absent, InvalidContent, InvalidKey
from memo.records import RecordScope
from memo.spool import (
    BytesReader,
    DiskSpool,
    InMemorySpool,
    MediaReader,
    SpoolReader,
    StoreSpool,
    block_reader,
    store_spool,
)
from memo.spool.block_reader import BlockReader, LineIndex
from tests.memo.turn.stores import opened

pytestmark = pytest.mark.anyio

SPOOLS = ("memory", "disk", "store in memory", "store in sqlite", "store in files")


@asynccontextmanager
async def spool_of(kind: str, path: Path) -> AsyncIterator[Any]:
    if kind == "memory":
        yield InMemorySpool()
    elif kind == "disk":
        yield DiskSpool(path / "spool")
    else:
        name = {"store in memory": "memory", "store in sqlite": "sqlite", "store in files": "filesystem"}[kind]
        async with opened(name, path) as store:
            yield StoreSpool(store)


async def pieces(*parts: Any) -> AsyncIterator[Any]:
    for part in parts:
        await anyio.lowlevel.checkpoint()
        yield part


@pytest.mark.parametrize("kind", SPOOLS)
class TestEverySpool:
    # Specification: 000.30
    @pytest.mark.parametrize(
        ("what", "data", "content"),
        [
            ("text", "grün\n", "grün\n".encode()),
            ("bytes", b"\x00\xff\xfe\r\n\r", b"\x00\xff\xfe\r\n\r"),
            ("a bytearray", bytearray(b"abc"), b"abc"),
            ("a view", memoryview(b"abc")[1:], b"bc"),
            ("nothing", b"", b""),
            ("a long one", b"0123456789" * 70_000, b"0123456789" * 70_000),
        ],
    )
    async def test_bytes_are_stored_unchanged(
        self, kind: str, what: str, data: Any, content: bytes, tmp_path: Path
    ) -> None:
        async with spool_of(kind, tmp_path) as spool:
            written = await spool.write("x", data)
            for reader in (written, await spool.read("x")):
                assert isinstance(reader, SpoolReader)
                assert isinstance(reader, MediaReader)
                assert isinstance(reader, BlockReader)
                assert await reader.read_all() == content
                assert await reader.byte_length() == len(content)
                assert b"".join([block async for block in reader.stream()]) == content
                assert await reader.read_range(1, 2) == content[1:3]
                assert await reader.read_range(len(content), 5) == b""

    async def test_a_stream_is_stored_in_order(self, kind: str, tmp_path: Path) -> None:
        async with spool_of(kind, tmp_path) as spool:
            reader = await spool.write("x", pieces(b"a" * 300_000, bytearray(b"b"), b"", b"c\n"))
            assert await reader.read_all() == b"a" * 300_000 + b"bc\n"

    async def test_a_stream_that_fails_leaves_the_previous_bytes(self, kind: str, tmp_path: Path) -> None:
        async def breaks() -> AsyncIterator[bytes]:
            yield b"x" * 2_000_000
            raise OSError("the source is gone")

        async with spool_of(kind, tmp_path) as spool:
            with pytest.raises(Exception, match="the source is gone"):
                await spool.write("x", breaks())
            assert await spool.read("x") is None
            await spool.write("x", b"old")
            with pytest.raises(Exception, match="the source is gone"):
                await spool.write("x", breaks())
            assert await (await spool.read("x")).read_all() == b"old"

    @pytest.mark.parametrize("data", [7, None, ["a"], pieces("text")])
    async def test_data_other_than_text_or_bytes_is_rejected(self, kind: str, data: Any, tmp_path: Path) -> None:
        async with spool_of(kind, tmp_path) as spool:
            with pytest.raises(InvalidContent, match="cannot spool"):
                await spool.write("x", pieces("text") if isinstance(data, AsyncIterator) else data)
            assert await spool.read("x") is None

    async def test_an_unwritten_id_reads_as_none_and_can_be_deleted(self, kind: str, tmp_path: Path) -> None:
        async with spool_of(kind, tmp_path) as spool:
            assert await spool.read("absent") is None
            await spool.delete("absent")
            await spool.write("x", b"1")
            await spool.delete("x")
            assert await spool.read("x") is None

    async def test_an_id_is_never_used_as_a_path(self, kind: str, tmp_path: Path) -> None:
        async with spool_of(kind, tmp_path) as spool:
            for id in ("../../escape", "a/b", ".", "ü"):
                await spool.write(id, id)
                assert await (await spool.read(id)).read_all() == id.encode()
            for bad in ("", "a\0b", "x" * 600):
                with pytest.raises(InvalidKey):
                    await spool.write(bad, b"")
        assert not (tmp_path.parent / "escape").exists()

    async def test_a_reader_returns_its_own_bytes_or_raises(self, kind: str, tmp_path: Path) -> None:
        old, new = b"old line\n" * 100_000, b"NEW\n" * 300_000
        async with spool_of(kind, tmp_path) as spool:
            reader = await spool.write("x", old)
            await spool.write("x", new)
            assert await (await spool.read("x")).read_all() == new
            try:
                assert await reader.read_all() == old
            except Absent as error:
                assert "replaced or deleted" in str(error)

    async def test_lines_are_numbered_from_0_and_returned_without_line_endings(self, kind: str, tmp_path: Path) -> None:
        async with spool_of(kind, tmp_path) as spool:
            reader = await spool.write("x", b"one\r\ntwo\n\nfo\xc3\xbcr\rstill four\nlast")
            assert [await reader.line(i) for i in range(6)] == ["one", "two", "", "foür\rstill four", "last", None]
            assert await reader.line(-1) is None
            assert await reader.line_count() == 5


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"\r", b"bcd", b"\xff"]), max_size=60), st.integers(1, 7))
def test_lines_equal_the_result_of_splitting_at_newlines(parts: list[bytes], block: int) -> None:
    content = b"".join(parts)
    expected = content.split(b"\n")
    if expected[-1] == b"":
        expected.pop()  # a newline ends a line and does not start another
    ended = content.count(b"\n")
    expected = [line.removesuffix(b"\r") if i < ended else line for i, line in enumerate(expected)]

    async def check() -> None:
        reader = BytesReader(content)
        assert await reader.line_count() == len(expected)
        assert [await reader.read_line(i) for i in range(len(expected))] == expected
        assert [line async for line in reader.read_lines(1, len(expected) + 3)] == expected[1:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_reader, "BLOCK_BYTES", block)
        patch.setattr(block_reader, "MAX_OFFSETS", 4)
        anyio.run(check)


def test_a_line_index_stays_small_for_any_number_of_lines() -> None:
    index = LineIndex()
    for _ in range(100):
        index.feed(b"x\n" * 10_000)
    assert index.line_count == 1_000_000
    assert len(index.offsets) <= block_reader.MAX_OFFSETS
    for line in (0, 1, 499_999, 999_999):
        number, place = index.before(line)
        assert line - index.stride < number <= line
        assert place == number * 2


async def test_a_line_index_is_built_once() -> None:
    class Counting(BytesReader):
        passes = 0

        async def stream(self) -> AsyncIterator[bytes]:
            self.passes += 1
            async for block in super().stream():
                yield block

    reader = Counting(b"a\nb\nc\n")
    async with anyio.create_task_group() as tasks:
        for index in range(3):
            tasks.start_soon(reader.line, index)
    assert await reader.line_count() == 3
    assert reader.passes == 1


async def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"x"
        raise OSError("gone")

    spool = DiskSpool(tmp_path)
    with pytest.raises(OSError, match="gone"):
        await spool.write("x", breaks())
    assert list(tmp_path.iterdir()) == []


async def test_only_the_drafts_of_killed_writers_are_swept(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".dead.draft", tmp_path / ".alive.draft"
    dead.write_bytes(b"x")
    alive.write_bytes(b"x")
    os.utime(dead, (0, 0))
    await DiskSpool(tmp_path).write("x", b"1")
    assert alive.exists()
    assert not dead.exists()


async def test_the_places_of_one_directory_do_not_mix(tmp_path: Path) -> None:
    one, two = DiskSpool(tmp_path, "a"), DiskSpool(tmp_path, "b")
    await one.write("x", b"1")
    assert await two.read("x") is None


async def test_a_store_keeps_no_unreachable_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_spool, "CHUNK_BYTES", 10)
    async with opened("sqlite", tmp_path) as store:
        spool = StoreSpool(store)

        async def count(kind: str) -> int:
            found: int = await store._database.read(
                lambda db: db.execute("SELECT COUNT(*) FROM records WHERE kind = ?", (kind,)).fetchone()[0]
            )
            return found

        async def breaks() -> AsyncIterator[bytes]:
            yield b"x" * 995
            raise OSError("gone")

        await spool.write("x", b"y" * 1000)
        await spool.write("x", b"z" * 305)
        assert (await count("spool.chunk"), await count("spool.draft")) == (31, 0)
        with pytest.raises(OSError, match="gone"):
            await spool.write("x", breaks())
        assert (await count("spool.chunk"), await count("spool.draft")) == (31 + 99, 1)
        monkeypatch.setattr(store_spool, "ABANDONED_AFTER_S", -1)
        await spool.delete("x")
        assert (await count("spool.chunk"), await count("spool.draft")) == (0, 0)
        assert await store.list_records(RecordScope.of("local", "spool", "spool")) == []
