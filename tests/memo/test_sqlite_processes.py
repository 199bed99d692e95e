"""Many processes on one SQLite file: no lost update, a complete history and feed; and kill -9 at any moment."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from memo import SQLiteStore
from tests.memo.process_writer import BATCH, COUNTER, LINES, TEXT

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).with_name("process_writer.py")
PROCESSES = 8
TURNS = int(os.environ.get("MEMO_TEST_TURNS", "40"))
DEATHS = int(os.environ.get("MEMO_TEST_DEATHS", "40"))


def command(path: Path, *words: object) -> list[str]:
    return [sys.executable, str(SCRIPT), str(path), *map(str, words)]


@pytest.mark.timeout(900)
async def test_eight_processes_lose_no_update_and_the_feed_reports_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "memo.db"
    async with SQLiteStore(path) as store, anyio.create_task_group() as tasks:
        told: list[tuple[object, int]] = []

        async def listen() -> None:
            async with store.changes() as feed:
                while len(told) < 2 * PROCESSES * TURNS:
                    change = await anext(feed)
                    told.append((change.key, change.revision))

        tasks.start_soon(listen)
        async with anyio.create_task_group() as writers:
            for number in range(PROCESSES):
                writers.start_soon(anyio.run_process, command(path, "count", number, TURNS))

    async with SQLiteStore(path) as store:
        lines = await store.read_document(LINES)
        counter = await store.read_document(COUNTER)
        assert lines is not None
        assert counter is not None
        written = lines.content.splitlines()
        assert sorted(written) == sorted(f"{n}.{t}" for n in range(PROCESSES) for t in range(TURNS))
        for number in range(PROCESSES):
            own = [line for line in written if line.startswith(f"{number}.")]
            assert own == [f"{number}.{turn}" for turn in range(TURNS)], "a writer's own order"
        assert counter.content == str(PROCESSES * TURNS)
        for key in (LINES, COUNTER):
            expected = list(range(1, PROCESSES * TURNS + 1))
            assert [revision for told_key, revision in told if told_key == key] == expected
            assert [r.revision for r in reversed(await store.document_history(key))] == expected


@pytest.mark.timeout(900)
async def test_everything_acknowledged_survives_kill_9_and_nothing_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "memo.db"
    async with SQLiteStore(path) as store:
        await store.get_or_create("acme", "ann", "a", "s1")
    finished = await anyio.run_process(command(path, "die", DEATHS, 7))
    told = [json.loads(line) for line in finished.stdout.splitlines()]
    assert len(told) > DEATHS, "the writers died before they wrote anything"

    integrity = sqlite3.connect(path)
    assert integrity.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    integrity.close()
    async with SQLiteStore(path) as store:
        history = {r.revision: r.sha256 for r in await store.document_history(TEXT)}
        messages = [m["content"] for m in await store.load_all_messages("acme", "s1")]
        artifacts = set(await store.list_tool_result_artifact_ids("acme:s1"))
        batches = {message.rpartition(".")[0] for message in messages}
        for kind, *what in told:
            if kind == "document":
                assert history[what[0]] == what[1]
            elif kind == "batch":
                assert what[0] in batches
            else:
                assert what[0] in artifacts
        assert sorted(history) == list(range(1, len(history) + 1))
        for revision, sha256 in history.items():
            document = await store.read_document(TEXT, revision)
            assert document is not None
            assert document.sha256 == sha256
            assert is_whole(document.content)
        in_order = dict.fromkeys(message.rpartition(".")[0] for message in messages)
        assert messages == [f"{batch}.{n}" for batch in in_order for n in range(BATCH)], "a batch is torn"
        session = await store.get_session("acme", "s1")
        assert session is not None
        assert (session.turns, session.message_count) == (len(batches), len(messages))
        assert await store.last_change() == len(history) + len(artifacts)


def is_whole(text: str) -> bool:
    return text == f"{text.split(' ', 1)[0]} " * 2000


async def test_a_store_opens_after_a_process_was_killed_while_creating_it(tmp_path: Path) -> None:
    """A process killed while it creates the file leaves a complete store or none."""
    for delay_ms in range(0, 60, 6):
        path = tmp_path / f"memo-{delay_ms}.db"
        code = (
            "import os, signal, sys, anyio\n"
            "from pathlib import Path\n"
            "from memo import SQLiteStore\n"
            "signal.setitimer(signal.ITIMER_REAL, (1 + int(sys.argv[2])) / 4000)\n"
            "signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))\n"
            "async def main():\n"
            "    async with SQLiteStore(Path(sys.argv[1])): await anyio.sleep_forever()\n"
            "anyio.run(main)\n"
        )
        await anyio.run_process(
            [sys.executable, "-c", code, str(path), str(delay_ms)], check=False, stderr=subprocess.DEVNULL
        )
        async with SQLiteStore(path) as store:
            assert await store.last_change() == 0
