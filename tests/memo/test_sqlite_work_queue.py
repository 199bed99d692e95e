"""Queued writes share one commit but fail individually; a cancelled call leaves nothing half done."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from memo import SQLiteStore
from memo.documents import ABSENT, DocumentKey
from memo.errors import MemoError, RevisionConflict, Unavailable
from memo.stores.sqlite.database import _Alone
from memo.stores.sqlite.work_queue import Job, WorkQueue

pytestmark = pytest.mark.anyio

KEY = DocumentKey.of("acme", "s1", "session", "NOTES.md")


async def test_a_refused_write_does_not_affect_the_others_in_its_batch(tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "memo.db") as store:
        await store.write_document(KEY, "start\n")
        refused: list[int] = []

        async def work(number: int) -> None:
            if number % 3 == 0:
                with pytest.raises(RevisionConflict):
                    await store.write_document(KEY, "stale", expected=ABSENT)
                refused.append(number)
            else:
                await store.append_document(KEY, f"{number}\n")

        async with anyio.create_task_group() as tasks:
            for number in range(60):
                tasks.start_soon(work, number)
        document = await store.read_document(KEY)
        assert document is not None
        assert sorted(map(int, document.content.split()[1:])) == [n for n in range(60) if n % 3]
        assert len(refused) == 20
        assert await store.last_change() == document.revision == 41


async def test_a_write_that_breaks_the_file_fails_alone(tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "memo.db") as store:
        outcomes: dict[int, str] = {}

        async def work(number: int) -> None:
            def commit(db: sqlite3.Connection) -> None:
                db.execute("INSERT INTO requests VALUES ('acme', 's1', ?, 0)", (str(number),))
                if number == 7:
                    db.execute("INSERT INTO no_such_table VALUES (1)")
                if number == 8:
                    raise ZeroDivisionError

            try:
                await store._database.write(commit)
            except (MemoError, ZeroDivisionError) as error:
                outcomes[number] = type(error).__name__
            else:
                outcomes[number] = "committed"

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(work, number)
        kept = await store._database.read(
            lambda db: sorted(int(request) for (request,) in db.execute("SELECT request FROM requests"))
        )
        assert kept == [n for n in range(20) if n not in (7, 8)]
        assert {n: o for n, o in outcomes.items() if o != "committed"} == {7: "Unavailable", 8: "ZeroDivisionError"}


async def perform_as_one_batch(store: SQLiteStore, works: list[Any]) -> list[BaseException | None]:
    """Queue the writes behind a running one, so that they form one batch; return what each raised."""
    lane = store._database._writes
    begun, go_on = threading.Event(), threading.Event()
    raised: list[BaseException | None] = [None] * len(works)

    def hold(_: sqlite3.Connection) -> None:
        begun.set()
        go_on.wait(30)

    async def run(number: int) -> None:
        try:
            await lane.run(works[number])
        except MemoError as error:
            raised[number] = error

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lane.run, _Alone(hold))
            await anyio.to_thread.run_sync(begun.wait)
            for number in range(len(works)):
                tasks.start_soon(run, number)
                await anyio.wait_all_tasks_blocked()  # queued in this order
            go_on.set()
    finally:
        go_on.set()
    return raised


def inserting(number: int) -> Any:
    def commit(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO requests VALUES ('acme', 's1', ?, 0)", (str(number),))

    return commit


async def inserted(store: SQLiteStore) -> list[int]:
    return await store._database.read(
        lambda db: sorted(int(request) for (request,) in db.execute("SELECT request FROM requests"))
    )


def assert_nothing_was_done(error: BaseException | None) -> None:
    assert type(error) is Unavailable
    assert "locked" in str(error)
    assert not error.outcome_unknown


async def test_writers_that_cannot_get_the_lock_wait_for_it_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memo.stores.sqlite.file.BUSY_TIMEOUT_MS", 20)
    async with SQLiteStore(tmp_path / "memo.db") as store:
        other = sqlite3.connect(store.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        statements: list[str] = []
        store._database._writer.set_trace_callback(statements.append)
        for error in await perform_as_one_batch(store, [inserting(number) for number in range(5)]):
            assert_nothing_was_done(error)
        assert statements == ["BEGIN IMMEDIATE"]
        other.execute("ROLLBACK")
        other.close()
        assert await inserted(store) == []
        await store._database.write(inserting(7))
        assert await inserted(store) == [7]


async def test_a_lock_taken_between_two_writes_fails_the_later_and_keeps_the_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memo.stores.sqlite.file.BUSY_TIMEOUT_MS", 20)
    async with SQLiteStore(tmp_path / "memo.db") as store:
        other = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
        statements: list[str] = []
        store._database._writer.set_trace_callback(statements.append)
        lock = _Alone(lambda _: other.execute("BEGIN IMMEDIATE"))
        first, second, *others = await perform_as_one_batch(store, [inserting(0), lock, *map(inserting, range(1, 5))])
        assert (first, second) == (None, None)
        for error in others:
            assert_nothing_was_done(error)
        assert statements.count("BEGIN IMMEDIATE") == 2
        other.execute("ROLLBACK")
        other.close()
        assert await inserted(store) == [0]


async def test_a_call_cancelled_before_it_starts_does_nothing_and_one_cancelled_later_waits() -> None:
    begun, go_on = threading.Event(), threading.Event()
    performed: list[str] = []

    def perform(batch: list[Job[Any]]) -> None:
        for job in batch:
            job.succeed(job.work(None))

    def slow(_: Any) -> None:
        begun.set()
        go_on.wait(30)
        performed.append("slow")

    lane = WorkQueue("test", perform, threads=1, most=1)
    lane.start()
    try:
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()

            async def give_up_late() -> None:
                with scope:
                    await lane.run(slow)
                assert performed == ["slow"], "the caller continued before the work was done"

            tasks.start_soon(give_up_late)
            await anyio.to_thread.run_sync(begun.wait)
            with anyio.move_on_after(0.01):
                await lane.run(lambda _: performed.append("never"))
            scope.cancel()
            await anyio.wait_all_tasks_blocked()
            assert performed == []
            go_on.set()
        assert await lane.run(lambda _: 42) == 42
    finally:
        go_on.set()
        await anyio.to_thread.run_sync(lane.end)
    assert performed == ["slow"]


async def test_closing_finishes_the_queued_jobs_and_leaves_no_thread(tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    path = tmp_path / "memo.db"
    async with SQLiteStore(path) as store, anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(store.append_document, KEY, f"{number}\n")
        await anyio.wait_all_tasks_blocked()
        await store.aclose()
    assert not {t.name for t in threading.enumerate() if t.name.startswith("memo-")} - before
    async with SQLiteStore(path) as store:
        document = await store.read_document(KEY)
        assert document is not None
        assert len(document.content.split()) == 30
