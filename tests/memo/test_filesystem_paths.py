"""Documents in nested directories: edited, made and removed by other programs, and what the store refuses to follow."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from memo import DocumentKey, StoreLimits, StoreOptions
from memo.changes import Change
from memo.documents import DocumentName
from memo.errors import Corrupt, NameTaken
from memo.stores.filesystem import FilesystemStore, home
from tests.memo.test_filesystem_outside_edits import HANG_S, edit, file_of, save

pytestmark = pytest.mark.anyio

NOTES = DocumentKey.of("acme", "s1", "session", "NOTES.md")
PLAN = DocumentKey.of("acme", "s1", "session", "memories/projects/plan.md")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FilesystemStore]:
    async with FilesystemStore(tmp_path, rescan_s=3600) as opened:
        await opened.write_document(NOTES, "so that the directory exists")
        yield opened


@pytest.fixture
async def unwatched(tmp_path: Path) -> AsyncIterator[FilesystemStore]:
    async with FilesystemStore(tmp_path, watch=False, settle_s=0) as opened:
        await opened.write_document(NOTES, "so that the directory exists")
        yield opened


async def names(store: FilesystemStore) -> list[str]:
    return [str(e.key.name) for e in await store.list_documents(PLAN.tenant, PLAN.owner, PLAN.scope)]


async def next_changes(store: FilesystemStore, since: int, count: int) -> list[Change]:
    with anyio.fail_after(HANG_S):
        async with aclosing(store.changes(since)) as feed:
            return [await anext(feed) for _ in range(count)]


async def test_files_made_and_removed_in_directories_become_revisions_that_the_feed_reports(
    store: FilesystemStore, tmp_path: Path
) -> None:
    since = await store.last_change()
    await edit("mkdir -p memories/projects; echo plan > memories/projects/plan.md", tmp_path)
    (found,) = await next_changes(store, since, 1)
    assert (found.key, found.revision, found.deleted) == (PLAN, 1, False)
    await edit("mv memories/projects/plan.md memories/other.md", tmp_path)
    moved = await next_changes(store, found.cursor, 2)
    assert {(c.key.name, c.deleted) for c in moved if isinstance(c.key, DocumentKey)} == {
        (PLAN.name, True),
        ("memories/other.md", False),
    }
    await edit("rm -r memories", tmp_path)
    (gone,) = await next_changes(store, moved[-1].cursor, 1)
    assert gone.deleted
    assert await names(store) == ["NOTES.md"]
    restored = await store.restore_document(PLAN, 1)
    assert file_of(tmp_path, PLAN.name).read_text() == restored.content == "plan\n"


async def test_a_directory_goes_with_its_last_document_but_never_with_anothers_file(
    unwatched: FilesystemStore, tmp_path: Path
) -> None:
    await unwatched.write_document(PLAN, "plan")
    file_of(tmp_path, "memories/.keep").write_text("not ours")
    await unwatched.delete_document(PLAN)
    assert not file_of(tmp_path, "memories/projects").exists()
    assert file_of(tmp_path, "memories/.keep").read_text() == "not ours"


async def test_an_edit_between_the_stores_check_and_its_removal_is_kept(
    unwatched: FilesystemStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await unwatched.write_document(PLAN, "plan")
    take_away = home.Home._take_away

    def save_then_remove(self: Any, *args: Any) -> None:
        monkeypatch.setattr(home.Home, "_take_away", take_away)
        save(file_of(tmp_path, PLAN.name), "by hand, at the last moment")
        take_away(self, *args)

    monkeypatch.setattr(home.Home, "_take_away", save_then_remove)
    deletion = await unwatched.delete_document(PLAN)
    newest = await unwatched.read_document(PLAN)
    assert newest is not None
    assert (newest.content, newest.revision) == ("by hand, at the last moment", deletion.revision + 1)
    assert not [p for p in tmp_path.rglob("*") if p.name == "removed"]


async def test_a_directory_made_by_hand_where_a_document_would_be_is_absent_until_it_is_one(
    unwatched: FilesystemStore, tmp_path: Path
) -> None:
    await unwatched.write_document(PLAN, "plan")
    memories = replace(PLAN, name=DocumentName("memories"))
    assert await unwatched.read_document(memories) is None
    with pytest.raises(NameTaken):
        await unwatched.write_document(memories, "clash")
    below = replace(NOTES, name=DocumentName("other.md/x.md"))
    await unwatched.write_document(replace(NOTES, name=DocumentName("other.md")), "text")
    assert await unwatched.read_document(below) is None
    with pytest.raises(NameTaken):
        await unwatched.write_document(below, "clash")
    file_of(tmp_path, "other.md").unlink()
    await unwatched.write_document(below, "now it can be")
    assert await names(unwatched) == ["NOTES.md", PLAN.name, "other.md/x.md"]


async def test_a_linked_directory_is_never_followed(unwatched: FilesystemStore, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (away / "secret.md").write_text("not memory")
    os.symlink(away, file_of(tmp_path, "memories"))
    secret = replace(PLAN, name=DocumentName("memories/secret.md"))
    assert await names(unwatched) == ["NOTES.md"]
    for call in (unwatched.read_document(secret), unwatched.write_document(secret, "x")):
        with pytest.raises(Corrupt):
            await call
    assert (away / "secret.md").read_text() == "not memory"


async def test_files_with_reserved_hidden_or_illegal_names_are_never_documents(
    unwatched: FilesystemStore, tmp_path: Path
) -> None:
    for name in (
        "trace/x.md",
        "orchestration/x.md",
        "memories/.git/x.md",
        "memories/a b.md",
        "memories/x.md.swp",
        "memories/4913",
        "a/b/c/d/e/f/g/h/i.md",
    ):
        file_of(tmp_path, name).parent.mkdir(parents=True, exist_ok=True)
        file_of(tmp_path, name).write_text("text")
    assert await names(unwatched) == ["NOTES.md"]


async def test_another_program_cannot_make_more_documents_than_the_limit(tmp_path: Path) -> None:
    options = StoreOptions(StoreLimits(documents=3))
    async with FilesystemStore(tmp_path, options, watch=False, settle_s=0) as store:
        await store.write_document(NOTES, "notes")
        for number in range(5):
            file_of(tmp_path, f"{number}.md").write_text("text")
        assert await names(store) == ["0.md", "1.md", "2.md", "NOTES.md"]
        await store.delete_document(replace(NOTES, name=DocumentName("0.md")))
        assert await names(store) == ["1.md", "2.md", "3.md", "NOTES.md"]


async def test_a_directory_of_an_older_version_is_read_as_it_is(tmp_path: Path) -> None:
    async with FilesystemStore(tmp_path, watch=False, settle_s=0) as store:
        await store.write_document(NOTES, "notes")
        await store.write_document(replace(NOTES, name=DocumentName("gone.md")), "text")
        empty = await store.write_document(replace(NOTES, name=DocumentName("gone.md")), "")
    file_of(tmp_path, "gone.md").unlink()  # an older version committed an empty revision for a removed file
    async with FilesystemStore(tmp_path, watch=False, settle_s=0) as store:
        assert await names(store) == ["NOTES.md"]
        history = await store.document_history(replace(NOTES, name=DocumentName("gone.md")))
        assert [(r.revision, r.deleted) for r in history] == [(empty.revision + 1, True), (2, False), (1, False)]
