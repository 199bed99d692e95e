"""The daemon's own SQLite files: private, migrated from earlier versions, with errors that name the cause."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread

from memo.documents import ANY, Author, DocumentKey
from sandboxd.api.problems import STATUS_BY_CODE
from sandboxd.errors import HostBusy, HostCorrupt, HostError, HostFull, HostIO, RegistryCorrupt, SandboxdError
from sandboxd.host_database import HostDatabase
from sandboxd.idempotency import IdempotencyStore, KeptAnswer, OutcomeUnknown
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

    yield File(write, owner._database._connection)
    await owner.aclose()


@asynccontextmanager
async def answers(path: Path) -> AsyncIterator[File]:
    numbers = count()
    async with IdempotencyStore(path) as owner:

        async def write() -> None:
            key = str(next(numbers))
            await owner.begin("acme POST /", key)
            await owner.finish("acme POST /", key, KeptAnswer(b"", 200, (), b"x" * 10_000))

        yield File(write, owner._database._connection)


@asynccontextmanager
async def outbox(path: Path) -> AsyncIterator[File]:
    owner = Outbox(path)
    await owner.open()
    numbers = count()

    async def write() -> None:
        author = Author("agent", None, "", str(next(numbers)))
        await owner.keep(KEY, "write", "x" * 10_000, ANY, author, None)

    yield File(write, owner._database._connection)
    await owner.aclose()


def make(path: Path, script: str) -> None:
    db = sqlite3.connect(path)
    db.executescript(script)
    db.close()


Opener = Callable[[Path], Any]
files = pytest.mark.parametrize("open_file", [registry, answers, outbox])


@files
async def test_a_full_disk_is_reported_as_host_full(open_file: Opener, tmp_path: Path) -> None:
    async with open_file(tmp_path / "a.db") as file:
        (pages,) = file.connection.execute("PRAGMA page_count").fetchone()
        file.connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(HostFull, match=r"a\.db is full"):
            for _ in range(100):
                await file.write()


@files
async def test_a_file_that_another_process_holds_is_reported_as_busy_and_retryable(
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
async def test_a_file_that_cannot_be_written_is_reported_as_host_io(open_file: Opener, tmp_path: Path) -> None:
    async with open_file(tmp_path / "a.db") as file:
        file.connection.execute("PRAGMA query_only = 1")
        with pytest.raises(HostIO, match="look at its disk"):
            await file.write()
        file.connection.execute("PRAGMA query_only = 0")


@files
async def test_a_file_that_cannot_be_opened_is_reported_as_host_io(open_file: Opener, tmp_path: Path) -> None:
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


@files
async def test_a_file_of_a_newer_version_is_refused_and_left_as_it_is(open_file: Opener, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    make(path, "PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(
        (HostCorrupt, RegistryCorrupt), match=r"a newer sandboxd wrote it \(version 99.*; upgrade sandboxd"
    ):
        async with open_file(path):
            pass
    assert path.read_bytes() == before


@files
async def test_a_new_file_is_private_durable_and_of_the_newest_version(open_file: Opener, tmp_path: Path) -> None:
    (tmp_path / "a.new").write_bytes(b"a draft that a crash left")
    async with open_file(tmp_path / "a.db") as file:
        await file.write()
        (synchronous,) = file.connection.execute("PRAGMA synchronous").fetchone()
        (version,) = file.connection.execute("PRAGMA user_version").fetchone()
        (journal,) = file.connection.execute("PRAGMA journal_mode").fetchone()
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert (synchronous, journal) == (2, "wal")
    assert version >= 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


@files
async def test_a_file_that_others_may_read_is_tightened(open_file: Opener, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_file(path):
        pass
    path.chmod(0o644)
    async with open_file(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


OUTBOX_WITHOUT_LATER_COLUMNS = """
CREATE TABLE entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, kind TEXT NOT NULL, content BLOB NOT NULL,
    expected TEXT NOT NULL, actor TEXT NOT NULL, session TEXT, reason TEXT NOT NULL, request TEXT NOT NULL,
    at REAL NOT NULL, attempt TEXT, refusal TEXT, UNIQUE (key, request)
);
CREATE TABLE chains (key TEXT PRIMARY KEY, target TEXT NOT NULL, revision INTEGER NOT NULL);
INSERT INTO entries (key, kind, content, expected, actor, reason, request, at)
VALUES ('["session", "acme", "s1", "NOTES.md"]', 'write', CAST('queued' AS BLOB), '3', 'agent', '', 'r1', 1.0);
"""


async def test_the_outbox_of_an_earlier_version_is_migrated_with_its_writes(tmp_path: Path) -> None:
    make(tmp_path / "a.db", OUTBOX_WITHOUT_LATER_COLUMNS)
    for _ in range(2):  # the second time it already has this version
        owner = Outbox(tmp_path / "a.db")
        await owner.open()
        (number,) = await owner.heads()
        entry, _ = await owner.entry(number)
        assert (entry.key, entry.content, entry.expected, entry.based_on) == (KEY, "queued", 3, None)
        await owner.aclose()


ANSWERS_WITHOUT_A_VERSION = """
CREATE TABLE answers (
    scope TEXT NOT NULL, key TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('running', 'done', 'unknown')),
    at REAL NOT NULL, digest BLOB, status INTEGER, headers TEXT, body BLOB, PRIMARY KEY (scope, key)
);
CREATE INDEX answers_by_age ON answers (at);
CREATE TABLE clock (id INTEGER PRIMARY KEY CHECK (id = 0), observed_s REAL NOT NULL);
INSERT INTO clock VALUES (0, 50.0);
INSERT INTO answers VALUES ('scope', 'done', 'done', 1.0, CAST('d' AS BLOB), 201, '[["a", "b"]]', CAST('ok' AS BLOB));
INSERT INTO answers VALUES ('scope', 'cut', 'running', 1.0, NULL, NULL, NULL, NULL);
"""


async def test_the_answers_of_an_earlier_version_are_migrated(tmp_path: Path) -> None:
    make(tmp_path / "a.db", ANSWERS_WITHOUT_A_VERSION)
    for _ in range(2):
        async with IdempotencyStore(tmp_path / "a.db") as owner:
            assert await owner.begin("scope", "done") == KeptAnswer(b"d", 201, (("a", "b"),), b"ok")
            with pytest.raises(OutcomeUnknown):
                await owner.begin("scope", "cut")


async def test_closing_waits_for_the_commit_under_way_and_later_work_is_refused(tmp_path: Path) -> None:
    database = HostDatabase(tmp_path / "a.db", "the file", [["CREATE TABLE t (n INTEGER)"]], advice="move it")
    await database.open()
    has_begun, may_commit = Event(), Event()

    def work(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO t VALUES (1)")
        has_begun.set()
        may_commit.wait(30)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.run, work)
        await to_thread.run_sync(has_begun.wait, 30)
        tasks.start_soon(database.aclose)
        await anyio.lowlevel.checkpoint()
        may_commit.set()
    with pytest.raises(HostIO, match=r"cannot use the file: a\.db is not open"):
        await database.run(work)
    await database.open()
    assert await database.run(lambda db: db.execute("SELECT n FROM t").fetchall()) == [(1,)]
    await database.aclose()


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    def fail(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO t VALUES (2)")
        raise HostCorrupt("cannot migrate")

    first = HostDatabase(tmp_path / "a.db", "the file", [["CREATE TABLE t (n INTEGER)"]], advice="move it")
    await first.open()
    await first.aclose()
    path = tmp_path / "a.db"
    with pytest.raises(HostCorrupt, match="cannot migrate"):
        await HostDatabase(path, "the file", [["CREATE TABLE t (n INTEGER)"], fail], advice="move it").open()
    await first.open()
    assert await first.run(lambda db: db.execute("SELECT n FROM t").fetchall()) == []
    await first.aclose()


async def test_every_error_of_the_host_has_a_status() -> None:
    def codes(kind: type[SandboxdError]) -> set[str]:
        return {kind.code}.union(*map(codes, kind.__subclasses__()))

    assert codes(HostError) <= set(STATUS_BY_CODE)
