"""Stored bytes that are not UTF-8, in every kind of text: an error that names the place, never "absent".

The files are damaged from outside, with the store closed; in some cases the hash is forged to match.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from memo import SQLiteStore
from memo.documents import ArtifactKey, DocumentKey
from memo.errors import Corrupt
from memo.ids import SessionRef
from memo.records import Put, RecordScope
from memo.stores import BaseStore
from memo.stores.filesystem import FilesystemStore

pytestmark = pytest.mark.anyio

KEY = DocumentKey.of("acme", "s1", "session", "NOTES.md")
REF = SessionRef.of("acme", "s1")
FACTS = RecordScope.of("acme", "fact", "p")
BAD = b"caf\xe9 \xff"

Ask = Callable[[BaseStore], Awaitable[object]]

ASK: dict[str, Ask] = {
    "document": lambda s: s.read_document(KEY),
    "append": lambda s: s.append_document(KEY, "more"),
    "old revision": lambda s: s.read_document(KEY, 1),
    "artifact": lambda s: s.read_tool_result_artifact(REF, "call-1"),
    "messages": lambda s: s.load_all_messages("acme", "s1"),
    "budget": lambda s: s.load_messages_with_budget("acme", "s1", 100),
    "traces": lambda s: s.load_trace_envelopes("acme", "s1"),
    "events": lambda s: s.load_orchestration_events("acme", "s1"),
    "checkpoint": lambda s: s.orchestration_persistence(REF).load_snapshot(),
    "record": lambda s: s.read_record(FACTS.key("r1")),  # type: ignore[attr-defined]
    "records": lambda s: s.list_records(FACTS),  # type: ignore[attr-defined]
}


async def furnish(store: SQLiteStore | FilesystemStore) -> None:
    await store.get_or_create("acme", "ann", "a", "s1")
    await store.append_messages("acme", "s1", [{"role": "user", "content": n} for n in ("one", "two", "three")])
    await store.write_document(KEY, "first")
    await store.write_document(KEY, "second")
    await store.write_artifact(ArtifactKey.of(REF, "call-1"), "output")
    await store.session_trace_store(REF).append_envelope({"n": 1})
    await store.orchestration_persistence(REF).append_event({"n": 1})
    await store.orchestration_persistence(REF).write_checkpoint({"n": 1})
    await store.apply_records([Put(FACTS.key("r1"), {"n": 1})])


# What is damaged, the statements that do it, and how the error names it. `:bad` and `:hash` are the bytes and their
# hash.
IN_SQLITE: dict[str, tuple[list[str], str]] = {
    "document": (
        ["UPDATE contents SET body = :bad WHERE sha256 = (SELECT sha256 FROM documents)"],
        r"revision 2 of NOTES\.md: the stored text does not match its hash",
    ),
    "append": (
        ["UPDATE contents SET body = :bad WHERE sha256 = (SELECT sha256 FROM documents)"],
        r"revision 2 of NOTES\.md: the stored text does not match its hash",
    ),
    "artifact": (
        ["UPDATE contents SET body = :bad WHERE sha256 = (SELECT sha256 FROM artifacts)"],
        "artifact call-1 of session acme:s1: the stored text does not match its hash",
    ),
    "messages": (
        ["UPDATE messages SET body = CAST(:bad AS TEXT) WHERE position = 2"],
        "message 2 of session acme:s1: the stored text is not UTF-8 at byte 3",
    ),
    "budget": (
        ["UPDATE messages SET body = CAST(:bad AS TEXT) WHERE position = 3"],
        "message 3 of session acme:s1: the stored text is not UTF-8 at byte 3",
    ),
    "traces": (
        ["UPDATE logs SET body = CAST(:bad AS TEXT) WHERE log = 'trace'"],
        "trace 1 of session acme:s1: the stored text is not UTF-8 at byte 3",
    ),
    "events": (
        ["UPDATE logs SET body = CAST(:bad AS TEXT) WHERE log = 'event'"],
        "event 1 of session acme:s1: the stored text is not UTF-8 at byte 3",
    ),
    "checkpoint": (
        ["UPDATE slots SET body = CAST(:bad AS TEXT)"],
        "the checkpoint of session acme:s1: the stored text is not UTF-8 at byte 3",
    ),
    "record": (["UPDATE records SET body = CAST(:bad AS TEXT)"], "fact r1: the stored text is not UTF-8 at byte 3"),
    "records": (["UPDATE records SET body = CAST(:bad AS TEXT)"], "fact r1: the stored text is not UTF-8 at byte 3"),
}  # fmt: skip

FORGED: dict[str, tuple[list[str], str]] = {
    "document": (
        [
            "UPDATE contents SET body = :bad, sha256 = :hash WHERE sha256 = (SELECT sha256 FROM documents)",
            "UPDATE documents SET sha256 = :hash",
        ],
        r"revision 2 of NOTES\.md: the stored text is not UTF-8 at byte 3",
    ),
    "old revision": (
        [
            """UPDATE contents SET body = :bad, sha256 = :hash
               WHERE sha256 = (SELECT sha256 FROM revisions WHERE revision = 1)""",
            "UPDATE revisions SET sha256 = :hash WHERE revision = 1",
        ],
        r"revision 1 of NOTES\.md: the stored text is not UTF-8 at byte 3",
    ),
    "artifact": (
        [
            "UPDATE contents SET body = :bad, sha256 = :hash WHERE sha256 = (SELECT sha256 FROM artifacts)",
            "UPDATE artifacts SET sha256 = :hash",
        ],
        "artifact call-1 of session acme:s1: the stored text is not UTF-8 at byte 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("place", "statements", "complaint"),
    [(place, *how) for place, how in (*IN_SQLITE.items(), *FORGED.items())],
    ids=[*IN_SQLITE, *(f"forged {place}" for place in FORGED)],
)
async def test_an_error_names_the_row_of_an_sqlite_file_that_is_not_utf8(
    tmp_path: Path, place: str, statements: list[str], complaint: str
) -> None:
    path = tmp_path / "memo.db"
    async with SQLiteStore(path) as store:
        await furnish(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement, {"bad": BAD, "hash": hashlib.sha256(BAD).hexdigest()})
    async with SQLiteStore(path) as store:
        before = await store.last_change()
        with pytest.raises(Corrupt, match=f"^cannot read {complaint}$") as found:
            await ASK[place](store)
        assert not found.value.retryable, "a retry does not repair a damaged row"
        assert await store.last_change() == before


@pytest.mark.parametrize(
    ("table", "column", "ask"),
    [
        ("documents", "name", lambda s: s.list_documents(KEY.tenant, KEY.owner, KEY.scope)),
        ("documents", "summary", lambda s: s.list_documents(KEY.tenant, KEY.owner, KEY.scope)),
        ("revisions", "actor", lambda s: s.document_history(KEY)),
        ("artifacts", "tool_call", lambda s: s.list_artifacts(REF)),
        ("sessions", "agent", lambda s: s.get_session("acme", "s1")),
        ("changes", "name", lambda s: anext(s.changes())),
    ],
)
async def test_a_name_in_an_sqlite_file_that_is_not_utf8_is_corrupt_and_never_shown(
    tmp_path: Path, table: str, column: str, ask: Callable[[SQLiteStore], Awaitable[object]]
) -> None:
    path = tmp_path / "memo.db"
    async with SQLiteStore(path) as store:
        await furnish(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE rowid = 1", (BAD,))
    async with SQLiteStore(path) as store:
        with pytest.raises(
            Corrupt, match=r"^cannot read the store: a name in it is not UTF-8; restore a backup$"
        ) as found:
            await ask(store)
        assert found.value.__cause__ is None, "the cause would show the text in a log"


IN_A_DIRECTORY: dict[str, tuple[str, str]] = {
    "document": ("NOTES.md", r"NOTES\.md"),
    "append": ("NOTES.md", r"NOTES\.md"),
    "artifact": ("tool-results/call-1.txt", "artifact call-1 of session acme:s1"),
    "messages": ("messages.jsonl", "message 1 of session acme:s1"),
    "traces": ("trace/events.jsonl", "trace"),
    "events": ("orchestration/events.jsonl", "event"),
    "checkpoint": ("orchestration/checkpoint.json", "checkpoint"),
}


@pytest.mark.parametrize("place", IN_A_DIRECTORY)
async def test_an_error_names_the_file_that_is_not_utf8_and_leaves_it_unchanged(tmp_path: Path, place: str) -> None:
    name, complaint = IN_A_DIRECTORY[place]
    async with FilesystemStore(tmp_path, watch=False) as store:
        await furnish(store)
        file = tmp_path / "tenants" / "acme" / "sessions" / "s1" / name
        content = file.read_bytes()
        damaged = BAD[:4] + content[4:]  # with its newline: a last line without one counts as never written
        file.write_bytes(damaged)
        before = await store.last_change()
        with pytest.raises(Corrupt, match=f"^cannot read .*{complaint}") as found:
            await ASK[place](store)
        assert not found.value.retryable
        assert file.read_bytes() == damaged
        assert await store.last_change() == before


async def test_an_outside_artifact_that_is_not_utf8_is_named_and_not_committed(tmp_path: Path) -> None:
    async with FilesystemStore(tmp_path, watch=False) as store:
        await furnish(store)
        file = tmp_path / "tenants" / "acme" / "sessions" / "s1" / "tool-results" / "call-9.txt"
        file.write_bytes(BAD)
        before = await store.last_change()
        with pytest.raises(Corrupt, match=r"^cannot read .*call-9.*: it is not UTF-8 at byte 3"):
            await store.read_tool_result_artifact(REF, "call-9")
        assert file.read_bytes() == BAD
        assert await store.last_change() == before
        assert await store.read_tool_result_artifact(REF, "call-1") == "output"
