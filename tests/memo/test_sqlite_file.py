"""The SQLite file: damaged, from another program, of a newer version, locked, and after a redaction."""

from __future__ import annotations

import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from memo import SQLiteStore, open_store
from memo.documents import DocumentKey, sha256_of
from memo.errors import Corrupt, MemoError, Unavailable, Unsupported
from memo.stores.sqlite.schema import MIGRATIONS

pytestmark = pytest.mark.anyio

KEY = DocumentKey.of("acme", "s1", "session", "NOTES.md")


_PAST = "from the past"
_HASH = sha256_of(_PAST.encode())
AS_WRITTEN_IN_THE_PAST = (
    f"INSERT INTO contents (sha256, size_bytes, body) VALUES ('{_HASH}', 13, CAST('{_PAST}' AS BLOB))",
    f"""INSERT INTO documents
        (tenant, scope, owner, name, revision, sha256, size_bytes, updated_at, summary, tokens, tokens_exact)
        VALUES ('acme', 'session', 's1', 'NOTES.md', 1, '{_HASH}', 13, 1, '{_PAST}', 3, 0)""",
    f"""INSERT INTO revisions (tenant, scope, owner, name, revision, sha256, size_bytes, at, actor, reason)
        VALUES ('acme', 'session', 's1', 'NOTES.md', 1, '{_HASH}', 13, 1, 'host', '')""",
    f"""INSERT INTO changes (kind, tenant, owner, name, revision, sha256, at)
        VALUES ('session', 'acme', 's1', 'NOTES.md', 1, '{_HASH}', 1)""",
)


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A closed store with one document."""
    path = tmp_path / "memo.db"
    async with SQLiteStore(path) as store:
        for number in range(50):
            await store.write_document(KEY, f"text {number} " * 200)
        await store.get_or_create("acme", "ann", "a", "s1")
        await store.append_messages("acme", "s1", [{"role": "user", "content": f"message {n}"} for n in range(200)])
    return path


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def bytes_of(path: Path) -> bytes:
    return path.read_bytes()


def has_bytes(directory: Path, wanted: bytes) -> bool:
    return any(wanted in path.read_bytes() for path in directory.iterdir())


def change(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


async def test_written_documents_survive_a_reopen(path: Path) -> None:
    async with SQLiteStore(path) as store:
        document = await store.read_document(KEY)
        assert document is not None
        assert document.revision == 50
        assert await store.last_change() == 50
        assert len(await store.load_all_messages("acme", "s1")) == 200


async def test_only_the_owner_can_access_the_file_and_no_draft_is_left(path: Path) -> None:
    assert mode_of(path) == 0o600
    assert names_in(path.parent) == ["memo.db", "memo.db-bell"]


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 20_000])
async def test_a_truncated_file_is_corrupt_and_left_alone(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
    before = bytes_of(path)
    with pytest.raises((Corrupt, Unsupported)) as caught:
        async with SQLiteStore(path):
            pass
    assert str(caught.value).startswith("cannot")
    assert bytes_of(path) == before


@pytest.mark.parametrize("offset", [20, 110, 5000, 30_000, 100_000])
async def test_a_damaged_file_never_looks_like_an_empty_store(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xa5" * 3000)
    try:
        async with SQLiteStore(path) as store:
            documents = [await store.read_document(KEY, revision) for revision in range(1, 51)]
            messages = await store.load_all_messages("acme", "s1")
    except MemoError:
        return
    assert [document.content for document in documents if document] == [f"text {n} " * 200 for n in range(50)]
    assert len(messages) == 200


async def test_a_changed_byte_in_a_text_is_noticed(path: Path) -> None:
    change(path, "UPDATE contents SET body = CAST(replace(CAST(body AS TEXT), 'text 49', 'test 49') AS BLOB)")
    async with SQLiteStore(path) as store:
        with pytest.raises(Corrupt, match="the stored text does not match its hash"):
            await store.read_document(KEY)
        assert await store.read_document(KEY, 49) is not None


async def test_a_text_file_is_not_a_store(tmp_path: Path) -> None:
    path = tmp_path / "memo.db"
    path.write_text("these are my notes, not a database\n" * 100)
    with pytest.raises(Corrupt, match="file is not a database"):
        async with SQLiteStore(path):
            pass
    assert path.read_text().startswith("these are my notes")


async def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    change(path, "CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(Unsupported, match="of another program"):
        async with SQLiteStore(path):
            pass


async def test_a_newer_schema_is_refused_naming_its_version(path: Path) -> None:
    change(path, "PRAGMA user_version=999")
    with pytest.raises(Unsupported, match="its schema is version 999, newer than"):
        async with SQLiteStore(path):
            pass


async def test_an_older_schema_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memo.db"
    with monkeypatch.context() as past:
        past.setattr("memo.stores.sqlite.file.MIGRATIONS", MIGRATIONS[:1])
        async with SQLiteStore(path) as store:
            await store.list_sessions()
    change(path, *AS_WRITTEN_IN_THE_PAST)
    async with SQLiteStore(path) as store:
        document = await store.read_document(KEY)
        assert document is not None
        assert (document.content, document.revision) == ("from the past", 1)
        assert [r.deleted for r in await store.document_history(KEY)] == [False]
        assert [c.deleted for c in await store._read_changes(0, 10)] == [False]
        assert (await store.delete_document(KEY, expected=1)).revision == 2
        assert await store.read_document(KEY) is None
        assert await store._database.read(lambda db: db.execute("PRAGMA user_version").fetchone()) == (len(MIGRATIONS),)


async def test_a_store_opened_concurrently_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "memo.db"

    async def work(number: int) -> None:
        async with SQLiteStore(path) as store:
            await store.append_document(KEY, f"{number}\n")

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(work, number)
    async with SQLiteStore(path) as store:
        document = await store.read_document(KEY)
        assert document is not None
        assert sorted(map(int, document.content.split())) == list(range(10))
    assert names_in(tmp_path) == ["memo.db", "memo.db-bell"]


async def test_one_unreadable_message_is_an_error_that_names_it(path: Path) -> None:
    change(path, "UPDATE messages SET body = '{\"role\":' WHERE position = 17")
    async with SQLiteStore(path) as store:
        with pytest.raises(Corrupt, match="cannot read message 17 of session acme:s1"):
            await store.load_all_messages("acme", "s1")
        assert len(await store.load_messages("acme", "s1", 50)) == 50


async def test_a_document_whose_text_is_missing_or_changed_is_corrupt_not_absent(path: Path) -> None:
    change(path, "UPDATE contents SET body = x'ff00' WHERE sha256 = (SELECT sha256 FROM documents)")
    async with SQLiteStore(path) as store:
        with pytest.raises(Corrupt, match="the stored text does not match its hash"):
            await store.read_document(KEY)
    change(path, "DELETE FROM contents")
    async with SQLiteStore(path) as store:
        with pytest.raises(Corrupt, match="its text is missing from the store"):
            await store.read_document(KEY)


async def test_a_corrupt_checkpoint_means_replay_from_the_first_event(path: Path) -> None:
    async with SQLiteStore(path) as store:
        orchestration = store.orchestration_persistence("acme:s1")
        await orchestration.append_event({"eventId": "e1"})
        await orchestration.write_checkpoint({"count": 1})
    change(path, "UPDATE slots SET body = 'not json'")
    async with SQLiteStore(path) as store:
        orchestration = store.orchestration_persistence("acme:s1")
        with pytest.raises(Corrupt, match="cannot read the checkpoint"):
            await orchestration.load_snapshot()
        state = await orchestration.recover_state()
        assert (state.snapshot, state.events, state.source) == (None, [{"eventId": "e1"}], "corrupt checkpoint")


async def test_redacted_text_remains_in_no_file(tmp_path: Path) -> None:
    path = tmp_path / "memo.db"
    secret = "hunter2-" * 2000
    async with SQLiteStore(path) as store:
        await store.write_document(KEY, secret)
        await store.write_document(KEY, "clean")
        assert has_bytes(tmp_path, b"hunter2")
        await store.redact_document(KEY, 1)
        assert not has_bytes(tmp_path, b"hunter2")
        assert (await store.read_document(KEY)).content == "clean"  # type: ignore[union-attr]


async def test_redaction_keeps_the_same_text_in_other_documents(tmp_path: Path) -> None:
    async with SQLiteStore(tmp_path / "memo.db") as store:
        other = DocumentKey.of("acme", "s2", "session", "NOTES.md")
        await store.write_document(other, "shared")
        await store.write_tool_result_artifact("acme:s1", "call", "shared")
        await store.write_document(KEY, "shared")
        await store.write_document(KEY, "clean")
        await store.redact_document(KEY, 1)
        assert (await store.read_document(other)).content == "shared"  # type: ignore[union-attr]
        assert await store.read_tool_result_artifact("acme:s1", "call") == "shared"


async def test_texts_are_stored_once_and_deleted_with_their_last_reference(tmp_path: Path) -> None:
    path = tmp_path / "memo.db"
    async with SQLiteStore(path) as store:
        for number in range(20):
            await store.write_tool_result_artifact("acme:s1", f"call-{number}", "same")
        await store.write_tool_result_artifact("acme:s1", "call-x", "first")
        await store.write_tool_result_artifact("acme:s1", "call-x", "second")
    db = sqlite3.connect(path)
    assert sorted(body for (body,) in db.execute("SELECT body FROM contents")) == [b"same", b"second"]
    db.close()


async def test_a_writer_that_cannot_get_the_lock_reports_that_nothing_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memo.stores.sqlite.file.BUSY_TIMEOUT_MS", 50)
    other = sqlite3.connect(path, isolation_level=None)
    async with SQLiteStore(path) as store:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked") as caught:
            await store.write_document(KEY, "blocked")
        assert not caught.value.outcome_unknown
        assert (await store.read_document(KEY)).revision == 50  # type: ignore[union-attr]
        other.execute("ROLLBACK")
        assert (await store.write_document(KEY, "free")).revision == 51
    other.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "memo-test", str(directory)], check=False)
    if mounted.returncode:
        pytest.skip("mounting needs privileges")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


async def test_a_write_to_a_full_disk_fails_and_loses_nothing(small_disk: Path) -> None:
    async with SQLiteStore(small_disk / "memo.db") as store:
        kept = 0
        with pytest.raises(Unavailable, match="full") as caught:
            while True:
                await store.write_document(KEY, f"text {kept} " * 2000)
                kept += 1
        assert not caught.value.outcome_unknown
        document = await store.read_document(KEY)
        assert document is not None
        assert document.content == f"text {kept - 1} " * 2000
        assert await store.last_change() == document.revision == kept
    async with SQLiteStore(small_disk / "memo.db") as store:
        assert await store.read_document(KEY) == document


async def test_a_closed_store_is_unavailable_and_opens_again(path: Path) -> None:
    store = SQLiteStore(path)
    async with store:
        stream = store.changes(since=50)
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(Unavailable, match="closed"):
                    await anext(stream)

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await store.aclose()
        await stream.aclose()
    for call in (store.read_document(KEY), store.write_document(KEY, "x"), store.last_change()):
        with pytest.raises(Unavailable, match="cannot use this store: it is closed"):
            await call
    async with store:
        assert (await store.read_document(KEY)).revision == 50  # type: ignore[union-attr]


async def test_a_deleted_file_does_not_come_back_empty(path: Path) -> None:
    async with SQLiteStore(path) as store:
        shutil.move(path, path.with_suffix(".away"))
        with pytest.raises(Unavailable, match="unable to open"):
            await store.read_document(KEY)
    assert "memo.db" not in names_in(path.parent)


async def test_a_missing_directory_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot create the store"):
        async with SQLiteStore(tmp_path / "missing" / "deep" / "memo.db"):
            pass
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "url", ["", "redis://x", "sqlite://", "sqlite:///", "sqlite:memo.db", "python:os", "python:os:nothing", "memo.db"]
)
async def test_an_unknown_url_scheme_is_refused(url: str) -> None:
    with pytest.raises(MemoError, match="cannot open this store"):
        async with open_store(url):
            pass


async def test_a_store_opens_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_store("sqlite:///relative.db") as store:
        await store.write_memory_document("acme", "ann", "user", "USER.md", "x")
    async with open_store(f"sqlite:///{tmp_path}/relative.db") as store:
        assert await store.read_memory_document("acme", "ann", "user", "USER.md") == "x"
    async with open_store("memory://") as store:
        assert await store.read_memory_document("acme", "ann", "user", "USER.md") is None
    async with open_store("python:tests.memo.test_conformance:OnlyReads") as store:
        assert await store.read_memory_document("acme", "ann", "user", "USER.md") == "# Known\n"
