"""Many processes on one directory: no lost update, a complete history and feed; and kill -9 at any moment."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from memo.documents import ArtifactKey, DocumentKey, DocumentName
from memo.errors import ProviderError, Redacted
from memo.stores.filesystem import FilesystemStore
from memo.stores.filesystem.change_log import ChangeLog
from tests.memo.filesystem_writer import BATCH, COUNTER, LINES, PLAN, TEXT, VERBS, prepare

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).with_name("filesystem_writer.py")
PROCESSES = 8
TURNS = int(os.environ.get("MEMO_TEST_TURNS", "25"))
DEATHS = int(os.environ.get("MEMO_TEST_DEATHS", "40"))
NOTES = DocumentKey.of("acme", "s1", "session", "NOTES.md")


def command(path: Path, *words: object) -> list[str]:
    return [sys.executable, str(SCRIPT), str(path), *map(str, words)]


async def changes_of(store: FilesystemStore) -> list[tuple[object, int]]:
    """Return every change in the feed so far."""
    last = await store.last_change()
    told: list[tuple[object, int]] = []
    async with store.changes() as feed:
        while len(told) < last:
            change = await anext(feed)
            assert change.cursor == len(told) + 1
            told.append((change.key, change.revision))
    return told


@pytest.mark.timeout(900)
async def test_eight_processes_lose_no_update_and_the_feed_reports_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "memo"
    async with FilesystemStore(path) as store, anyio.create_task_group() as tasks:
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

    async with FilesystemStore(path) as store:
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
            history = await store.document_history(key)
            assert [r.revision for r in reversed(history)] == expected
            assert {r.actor for r in history} == {f"writer-{n}" for n in range(PROCESSES)}, "counted as an outside edit"


@pytest.mark.timeout(900)
async def test_everything_acknowledged_survives_kill_9_and_nothing_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "memo"
    async with FilesystemStore(path) as store:
        await store.get_or_create("acme", "ann", "a", "s1")
    finished = await anyio.run_process(command(path, "die", DEATHS, 7))
    told = [json.loads(line) for line in finished.stdout.splitlines()]
    assert {kind for kind, *_ in told} == {"open", "document", "batch", "artifact", "compaction"}

    async with FilesystemStore(path) as store:
        history = {r.revision: r.sha256 for r in await store.document_history(TEXT)}
        messages = [m["content"] for m in await store.load_full_history("acme", "s1")]
        artifacts = set(await store.list_tool_result_artifact_ids("acme:s1"))
        notes = await store.read_memory_document("acme", "s1", "session", "NOTES.md") or ""
        batches = {message.rpartition(".")[0] for message in messages}
        for kind, *what in told:
            if kind == "document":
                assert history[what[0]] == what[1]
            elif kind == "batch":
                assert what[0] in batches
            elif kind == "compaction":
                assert f"summary {what[0]}\n" in notes
            elif kind == "artifact":
                assert what[0] in artifacts
        assert sorted(history) == list(range(1, len(history) + 1))
        for revision, sha256 in history.items():
            document = await store.read_document(TEXT, revision)
            assert document is not None
            assert document.sha256 == sha256
            assert is_whole(document.content)
        for artifact in artifacts:
            assert is_whole(await store.read_tool_result_artifact("acme:s1", artifact) or "")
        in_order = dict.fromkeys(message.rpartition(".")[0] for message in messages)
        assert messages == [f"{batch}.{n}" for batch in in_order for n in range(BATCH)], "a batch is torn"
        session = await store.get_session("acme", "s1")
        assert session is not None
        assert session.turns == len(batches)
        assert session.message_count == len(await store.load_all_messages("acme", "s1"))
        assert {r.actor for r in await store.document_history(TEXT)} == {"host"}
        assert {r.actor for r in await store.document_history(NOTES)} <= {"compaction"}
        changes = await changes_of(store)
        assert [revision for key, revision in changes if key == TEXT] == sorted(history)
        assert {key.tool_call for key, _ in changes if isinstance(key, ArtifactKey)} == artifacts
        assert len(changes) == len(set(changes)), "a change was reported twice"
    assert not left_behind(path)


def is_whole(text: str) -> bool:
    return text == f"{text.split(' ', 1)[0]} " * 2000


def left_behind(path: Path) -> list[str]:
    names = ("staged", ".staged", "messages.next", "removed")
    empty = [str(p) for p in path.rglob("memories*") if p.is_dir() and ".memo" not in p.parts and not any(p.iterdir())]
    return empty + [str(p) for p in path.rglob("*") if p.name.startswith(names)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_writer_killed_at_any_step_leaves_the_old_state_or_the_new(tmp_path: Path, verb: str) -> None:
    async with FilesystemStore(tmp_path / verb) as store:
        await prepare(store)
        old = await state_of(store)
    finished = await anyio.run_process(command(tmp_path, "step", verb, 100))
    steps = int(finished.stdout)
    assert steps > 4
    async with FilesystemStore(tmp_path / f"{verb}-{steps}", watch=False) as store:
        new = await state_of(store)
    assert old != new
    seen = []
    for number in range(1, steps):
        path = tmp_path / f"{verb}-{number}"
        async with FilesystemStore(path, watch=False) as store:
            state = await state_of(store)
            assert state in (old, new), f"killed at step {number} of {steps}"
            seen.append(state)
            await VERBS["append_turn"](store)  # and the store still works
            await VERBS["write_artifact"](store)
            await store.get_session("acme", "s2")
            assert not left_behind(path)
    assert seen == sorted(seen, key=lambda state: state == new), "a later kill left an older state"
    assert seen[0] == old


NAMES = (PLAN.name, "archive/plan.md", "TEXT.md/part.md", "memories/new/x.md")


def visible_documents(directory: Path) -> dict[str, str]:
    files = [p for p in directory.rglob("*.md") if p.is_file() and ".memo" not in p.parts and p.name != "NOTES.md"]
    return {str(p.relative_to(directory)): p.read_text() for p in files}


async def state_of(store: FilesystemStore) -> list[object]:
    """Return everything that can be read from the store, without times."""
    texts: list[object] = []
    for revision in reversed(await store.document_history(TEXT)):
        try:
            texts.append(await store.read_document(TEXT, revision.revision))
        except Redacted:
            texts.append("redacted")
    notes = await store.read_document(NOTES)
    sessions = sorted((s.session, s.turns, s.tokens, s.message_count) for s in await store.list_sessions())
    return [
        texts,
        await store.read_document(TEXT),
        visible_documents(store.path / "tenants" / "acme" / "sessions" / "s1"),
        [
            (key.name, [(r.revision, r.deleted, r.moved) for r in await store.document_history(key)])
            for key in (TEXT, *(replace(PLAN, name=DocumentName(name)) for name in NAMES))
        ],
        [(e.key.name, e.revision) for e in await store.list_documents(PLAN.tenant, PLAN.owner, PLAN.scope)],
        None if notes is None else (notes.revision, "the summary" in notes.content),
        sessions,
        sorted(meta.session for meta in await store.list_sessions_by_user("acme", "ann")),
        await store.load_all_messages("acme", "s1"),
        await store.load_full_history("acme", "s1"),
        await store.read_tool_result_artifact("acme:s1", "call-1"),
        [(e.key, e.revision, e.sha256) for e in await store.list_artifacts(ArtifactKey.of("acme:s1", "x").session)],
        await changes_of(store),
    ]


async def test_a_change_by_another_process_wakes_the_feed(tmp_path: Path) -> None:
    async with FilesystemStore(tmp_path) as store, store.changes() as feed, anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.run_process, command(tmp_path, "count", 0, 1))
        with anyio.fail_after(60):
            assert [(await anext(feed)).key for _ in range(2)] == [LINES, COUNTER]


async def test_two_processes_commit_an_outside_edit_once(tmp_path: Path) -> None:
    async with FilesystemStore(tmp_path) as one, FilesystemStore(tmp_path) as two:
        await one.write_document(TEXT, "one")
        fresh = tmp_path / "tenants" / "acme" / "sessions" / "s1" / ".fresh"
        fresh.write_text("two")
        fresh.rename(fresh.with_name("TEXT.md"))  # in one step: both stores watch for edits
        with anyio.fail_after(30):
            for store in (one, two):
                async with store.changes(1) as feed:
                    assert (await anext(feed)).revision == 2
        assert await one.read_document(TEXT) == await two.read_document(TEXT)
        assert len(await two.document_history(TEXT)) == 2


async def test_concurrent_first_readers_of_pending_users_do_not_interfere(tmp_path: Path) -> None:
    async with FilesystemStore(tmp_path / "memo") as store:
        await store.get_or_create("acme", "ann", "a", "s1")
        await store.append_messages("acme", "s1", [{"role": "user", "content": "hello"}])
        for _ in range(50):
            (store.path / ".memo/pending/.indexed").unlink(missing_ok=True)
            async with anyio.create_task_group() as readers:
                for _ in range(4):
                    readers.start_soon(store.list_pending)


async def test_a_change_that_could_not_be_published_is_published_once_by_the_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FilesystemStore(tmp_path, watch=False) as one, FilesystemStore(tmp_path, watch=False) as two:
        await one.write_document(TEXT, "first")
        publish = ChangeLog.publish

        def fail_once(*args: object) -> None:
            monkeypatch.setattr(ChangeLog, "publish", publish)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(ChangeLog, "publish", fail_once)
        with pytest.raises(ProviderError, match="cannot finish the change") as failed:
            await one.write_document(TEXT, "second")
        assert failed.value.outcome_unknown
        assert await changes_of(two) == [(TEXT, 1)]
        for store in (two, one):
            document = await store.read_document(TEXT)
            assert document is not None
            assert (document.content, document.revision) == ("second", 2)
            assert await changes_of(store) == [(TEXT, 1), (TEXT, 2)]
