"""The change feed of an open store: waiting, cancelling, dropping, and changes by another process."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import anyio
import pytest

from memo import SQLiteStore
from memo.documents import DocumentKey
from memo.stores import BaseStore, StoreOptions
from tests.memo.process_writer import COUNTER, LINES

pytestmark = pytest.mark.anyio

KEY = DocumentKey.of("acme", "s1", "session", "NOTES.md")
SCRIPT = Path(__file__).with_name("process_writer.py")


async def test_a_cancelled_wait_loses_nothing(store: BaseStore) -> None:
    async with store.changes() as feed:
        for number in range(5):
            with anyio.move_on_after(0.01):
                await anext(feed)
                pytest.fail("there was nothing to report")
            await store.write_document(KEY, f"text {number}")
            assert (await anext(feed)).revision == number + 1


async def test_a_feed_closed_by_another_task_ends(store: BaseStore) -> None:
    feed = store.changes()
    async with anyio.create_task_group() as tasks:

        async def read() -> None:
            assert [change async for change in feed] == []

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        await feed.aclose()


async def test_many_changes_come_in_pages_without_a_gap(store: BaseStore) -> None:
    count = 1203
    for number in range(count):
        await store.write_tool_result_artifact("acme:s1", f"call-{number}", "same")
    async with store.changes() as feed:
        assert [(await anext(feed)).cursor for _ in range(count)] == list(range(1, count + 1))


async def test_a_dropped_feed_closes_its_descriptor(tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "memo.db") as store:
        await store.last_change()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            feed = store.changes()
            with anyio.move_on_after(0.001):
                await anext(feed)
            del feed
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before + 1


async def test_a_commit_in_another_process_wakes_a_waiting_feed(tmp_path: Path) -> None:
    path = tmp_path / "memo.db"
    # The periodic check is too infrequent to help: only the other process's notification can wake the feed in time.
    async with SQLiteStore(path, StoreOptions(feed_check_s=3600)) as store:
        seen: list[tuple[DocumentKey, int]] = []
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                async with store.changes() as feed:
                    with anyio.fail_after(60):
                        while len(seen) < 20:
                            change = await anext(feed)
                            seen.append((change.key, change.revision))  # type: ignore[arg-type]

            tasks.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            await anyio.run_process([sys.executable, str(SCRIPT), str(path), "count", "1", "10"])
    assert seen == [(key, turn) for turn in range(1, 11) for key in (LINES, COUNTER)]


async def test_a_commit_without_a_notification_is_found_by_the_periodic_check(tmp_path: Path) -> None:
    path = tmp_path / "memo.db"
    async with SQLiteStore(path, StoreOptions(feed_check_s=0.05)) as store, SQLiteStore(path) as mute:
        mute._database._committed = lambda: None
        async with store.changes() as feed, anyio.create_task_group() as tasks:

            async def listen() -> None:
                with anyio.fail_after(30):
                    assert (await anext(feed)).revision == 1

            tasks.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            await mute.write_document(KEY, "text")
