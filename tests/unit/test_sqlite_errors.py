"""An error of SQLite is called what it is, in each of the daemon's files: full, locked, refused or damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from memo.documents import ANY, Author, DocumentKey
from sandboxd.api.problems import STATUS_BY_CODE
from sandboxd.errors import HostBusy, HostCorrupt, HostError, HostFull, HostIO, RegistryCorrupt, SandboxdError
from sandboxd.idempotency import Answer, IdempotencyStore
from sandboxd.memory.outbox import Outbox
from sandboxd.sandboxes.lifecycle import State
from sandboxd.sandboxes.registry import Registry
from tests.unit.test_lifecycle import record

pytestmark = pytest.mark.anyio

KEY = DocumentKey.of("acme", "s1", "session", "NOTES.md")


@dataclass
class File:
    """One of the daemon's files, open: a write to it, and its connection."""

    write: Callable[[], Awaitable[Any]]
    connection: sqlite3.Connection | None


@asynccontextmanager
async def registry(path: Path) -> AsyncIterator[File]:
    owner = Registry(path)
    await owner.open()
    numbers = count()

    async def write() -> None:
        await owner.save(record(State.WARM, id=f"{next(numbers):016}", owner=None, container="c" * 10_000))

    yield File(write, owner._db)
    await owner.aclose()


@asynccontextmanager
async def answers(path: Path) -> AsyncIterator[File]:
    numbers = count()
    async with IdempotencyStore(path) as owner:

        async def write() -> None:
            key = str(next(numbers))
            await owner.begin("acme POST /", key)
            await owner.finish("acme POST /", key, Answer(b"", 200, (), b"x" * 10_000))

        yield File(write, owner._connection)


@asynccontextmanager
async def outbox(path: Path) -> AsyncIterator[File]:
    owner = Outbox(path)
    await owner.open()
    numbers = count()

    async def write() -> None:
        author = Author("agent", None, "", str(next(numbers)))
        await owner.keep(KEY, "write", "x" * 10_000, ANY, author, None)

    yield File(write, owner._connection)
    await owner.aclose()


Opener = Callable[[Path], Any]
files = pytest.mark.parametrize("open_file", [registry, answers, outbox])


@files
async def test_a_full_disk_is_host_full(open_file: Opener, tmp_path: Path) -> None:
    async with open_file(tmp_path / "a.db") as file:
        (pages,) = file.connection.execute("PRAGMA page_count").fetchone()
        file.connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(HostFull, match=r"a\.db is full"):
            for _ in range(100):
                await file.write()


@files
async def test_a_file_that_another_process_holds_is_busy_and_may_be_tried_again(
    open_file: Opener, tmp_path: Path
) -> None:
    async with open_file(tmp_path / "a.db") as file:
        file.connection.execute("PRAGMA busy_timeout = 0")
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HostBusy, match=r"another process holds a\.db; try again") as refused:
            await file.write()
        assert refused.value.retryable
        other.close()
        await file.write()


@files
async def test_a_file_that_cannot_be_written_is_host_io(open_file: Opener, tmp_path: Path) -> None:
    async with open_file(tmp_path / "a.db") as file:
        file.connection.execute("PRAGMA query_only = 1")
        with pytest.raises(HostIO, match="look at its disk"):
            await file.write()
        file.connection.execute("PRAGMA query_only = 0")


@files
async def test_a_file_that_cannot_be_opened_is_host_io(open_file: Opener, tmp_path: Path) -> None:
    (tmp_path / "a.db").mkdir()
    with pytest.raises(HostIO, match="cannot be read or written"):
        async with open_file(tmp_path / "a.db"):
            pass


@files
async def test_a_damaged_file_says_what_to_do(open_file: Opener, tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"not a database" * 1000)
    with pytest.raises((HostCorrupt, RegistryCorrupt), match=r"a\.db is damaged .*; .*move (it|the file)") as refused:
        async with open_file(tmp_path / "a.db"):
            pass
    assert not refused.value.retryable
    assert isinstance(refused.value, RegistryCorrupt) == (open_file is registry)


async def test_every_error_of_the_host_has_a_status() -> None:
    def codes(kind: type[SandboxdError]) -> set[str]:
        return {kind.code}.union(*map(codes, kind.__subclasses__()))

    assert codes(HostError) <= set(STATUS_BY_CODE)
