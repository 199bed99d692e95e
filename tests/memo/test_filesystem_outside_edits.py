"""Files edited with real tools: every edit becomes a revision that the feed reports, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from memo import DocumentKey, StoreLimits, StoreOptions
from memo.documents import Document
from memo.errors import Corrupt, RevisionConflict
from memo.ids import OwnerId, TenantId
from memo.stores.filesystem import FilesystemStore, home

pytestmark = pytest.mark.anyio

KEY = DocumentKey.of("acme", "s1", "session", "NOTES.md")
HANG_S = 30


def file_of(root: Path, name: str = "NOTES.md") -> Path:
    return root / "tenants" / "acme" / "sessions" / "s1" / name


def save(path: Path, content: str | bytes) -> None:
    """Replace a file in one step: the store could see one that was truncated and is written a moment later."""
    fresh = path.with_name(".fresh")
    fresh.write_bytes(content if isinstance(content, bytes) else content.encode())
    fresh.rename(path)


def shell(script: str, directory: Path) -> None:
    subprocess.run(["bash", "-ec", script], cwd=directory, check=True, timeout=HANG_S, stdin=subprocess.DEVNULL)


async def edit(script: str, root: Path) -> None:
    await anyio.to_thread.run_sync(shell, script, file_of(root).parent)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FilesystemStore]:
    async with FilesystemStore(tmp_path, rescan_s=3600) as opened:
        yield opened


@pytest.fixture
async def unwatched(tmp_path: Path) -> AsyncIterator[FilesystemStore]:
    async with FilesystemStore(tmp_path, watch=False) as opened:
        yield opened


EDITS = {
    "ed, which writes in place": ("ed", r"printf '1s/first/second/\nw\nq\n' | ed -s NOTES.md"),
    "ex with a swap file": ("ex", "ex -s -c '%s/first/second/' -c wq NOTES.md"),
    "vim with a backup and a rename": (
        "vim",
        "vim -N -u NONE -es -c 'set backup writebackup backupcopy=no' -c '%s/first/second/' -c wq NOTES.md",
    ),
    "vim over the old file": ("vim", "vim -N -u NONE -es -c 'set backupcopy=yes' -c '%s/first/second/' -c wq NOTES.md"),
    "sed -i": ("sed", "sed -i s/first/second/ NOTES.md"),
    "cp over it": ("cp", "echo 'the second text' > /tmp/$$.new; cp /tmp/$$.new NOTES.md; rm /tmp/$$.new"),
    "mv over it": ("mv", "echo 'the second text' > .fresh; mv .fresh NOTES.md"),
    "truncate and write": ("bash", "echo 'the second text' > NOTES.md"),
    "delete and create again": ("rm", "rm NOTES.md; echo 'the second text' > NOTES.md"),
}


@pytest.mark.parametrize("how", EDITS)
async def test_an_outside_edit_becomes_one_revision_that_the_feed_reports(
    store: FilesystemStore, tmp_path: Path, how: str
) -> None:
    tool, script = EDITS[how]
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    first = await store.write_document(KEY, "the first text\n")
    since = await store.last_change()
    await edit(script, tmp_path)
    with anyio.fail_after(HANG_S):
        async with aclosing(store.changes(since)) as feed:
            change = await anext(feed)
    assert (change.key, change.revision) == (KEY, first.revision + 1)
    document = await store.read_document(KEY)
    assert document == Document("the second text\n", change.revision, change.sha256)
    history = await store.document_history(KEY)
    assert [r.actor for r in history] == ["outside", "host"]
    listed = await store.list_documents(TenantId("acme"), OwnerId("s1"), KEY.scope)
    assert [e.key.name for e in listed] == ["NOTES.md"], "an editor's scratch file became a document"


async def test_a_read_right_after_an_edit_returns_the_edit_as_a_revision(
    unwatched: FilesystemStore, tmp_path: Path
) -> None:
    await unwatched.write_document(KEY, "one")
    save(file_of(tmp_path), "two")
    document = await unwatched.read_document(KEY)
    assert document is not None
    assert (document.content, document.revision) == ("two", 2)
    assert await unwatched.read_document(KEY) == document


async def test_a_write_that_expects_a_superseded_revision_conflicts_and_keeps_the_edit(
    unwatched: FilesystemStore, tmp_path: Path
) -> None:
    first = await unwatched.write_document(KEY, "one")
    save(file_of(tmp_path), "edited by hand")
    with pytest.raises(RevisionConflict) as refused:
        await unwatched.write_document(KEY, "two", expected=first.revision)
    assert refused.value.current is not None
    assert refused.value.current.content == "edited by hand"
    assert file_of(tmp_path).read_text() == "edited by hand"
    await unwatched.write_document(KEY, "two", expected=refused.value.current.revision)
    assert [r.actor for r in await unwatched.document_history(KEY)] == ["host", "outside", "host"]


async def test_an_append_goes_after_an_outside_edit(unwatched: FilesystemStore, tmp_path: Path) -> None:
    await unwatched.write_document(KEY, "one\n")
    save(file_of(tmp_path), "one and a half\n")
    appended = await unwatched.append_document(KEY, "two\n")
    assert (appended.content, appended.revision) == ("one and a half\ntwo\n", 3)
    assert file_of(tmp_path).read_text() == "one and a half\ntwo\n"


async def test_a_deleted_file_is_a_deletion_and_older_revisions_can_be_restored(
    store: FilesystemStore, tmp_path: Path
) -> None:
    first = await store.write_document(KEY, "precious")
    since = await store.last_change()
    file_of(tmp_path).unlink()
    with anyio.fail_after(HANG_S):
        async with aclosing(store.changes(since)) as feed:
            change = await anext(feed)
    assert (change.revision, change.deleted) == (2, True)
    assert await store.read_memory_document("acme", "s1", "session", "NOTES.md") is None
    deletion = (await store.document_history(KEY))[0]
    assert (deletion.actor, deletion.reason, deletion.deleted) == ("outside", "file deleted", True)
    restored = await store.restore_document(KEY, first.revision)
    assert restored.revision == 3
    assert file_of(tmp_path).read_text() == "precious"


async def test_a_new_file_from_outside_becomes_a_document(store: FilesystemStore, tmp_path: Path) -> None:
    await store.write_document(KEY, "notes")
    since = await store.last_change()
    save(file_of(tmp_path, "PLAN.md"), "# The plan\n")
    with anyio.fail_after(HANG_S):
        async with aclosing(store.changes(since)) as feed:
            change = await anext(feed)
    assert (change.key.name, change.revision) == ("PLAN.md", 1)  # type: ignore[union-attr]


async def test_an_edit_right_after_the_directory_was_made_is_seen(store: FilesystemStore, tmp_path: Path) -> None:
    for number in range(10):
        key = DocumentKey.of(f"tenant-{number}", "s1", "session", "NOTES.md")
        await store.write_document(key, "one")
        save(tmp_path / "tenants" / key.tenant / "sessions" / "s1" / "NOTES.md", "two")
    edited: set[str] = set()
    with anyio.fail_after(HANG_S):
        async with aclosing(store.changes()) as feed:
            while len(edited) < 10:
                change = await anext(feed)
                if change.revision == 2:
                    edited.add(str(change.key))


async def test_scratch_files_of_editors_never_become_documents(unwatched: FilesystemStore, tmp_path: Path) -> None:
    await unwatched.write_document(KEY, "notes")
    for name in (".NOTES.md.swp", "NOTES.md~", "#NOTES.md#", "4913", "sedAbCdEf", "NOTES.md.tmp", "x.bak", "a b.md"):
        file_of(tmp_path, name).write_text("scratch")
    os.symlink("nowhere", file_of(tmp_path, ".#NOTES.md"))
    os.symlink("/etc/passwd", file_of(tmp_path, "LINK.md"))
    listed = await unwatched.list_documents(TenantId("acme"), OwnerId("s1"), KEY.scope)
    assert [entry.key.name for entry in listed] == ["NOTES.md"]


async def test_edits_made_while_the_store_was_closed_are_found_at_the_next_open(tmp_path: Path) -> None:
    async with FilesystemStore(tmp_path) as store:
        await store.write_document(KEY, "one")
        since = await store.last_change()
    save(file_of(tmp_path), "meanwhile")
    async with FilesystemStore(tmp_path) as store, aclosing(store.changes(since)) as feed:
        with anyio.fail_after(HANG_S):
            change = await anext(feed)
        assert (change.key, change.revision) == (KEY, 2)


async def test_the_rescan_finds_an_edit_without_an_event(tmp_path: Path) -> None:
    # Replace the whole directory, so that inotify still watches the old one.
    async with FilesystemStore(tmp_path / "memo", rescan_s=0.2) as store:
        await store.write_document(KEY, "one")
        since = await store.last_change()
        sessions = file_of(tmp_path / "memo").parent.parent
        shutil.copytree(sessions, tmp_path / "copy")
        (tmp_path / "copy" / "s1" / "NOTES.md").write_text("two")
        sessions.rename(tmp_path / "aside")
        (tmp_path / "copy").rename(sessions)
        with anyio.fail_after(HANG_S):
            async with aclosing(store.changes(since)) as feed:
                change = await anext(feed)
        assert change.revision == 2


async def test_a_read_waits_for_a_slow_writer(tmp_path: Path) -> None:
    # A long settle time: on a busy machine the writer's pauses are longer than intended.
    async with FilesystemStore(tmp_path, watch=False, settle_s=3.0) as store:
        await store.write_document(KEY, "old")
        script = "exec 3> NOTES.md; for part in 1 2 3 4 5; do echo part $part >&3; sleep 0.03; done"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(edit, script, tmp_path)
            seen: set[str] = set()
            with anyio.fail_after(HANG_S):
                while "part 5" not in "".join(seen):
                    document = await store.read_document(KEY)
                    assert document is not None
                    seen.add(document.content)
        assert [r.actor for r in await store.document_history(KEY)] == ["outside", "host"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"caf\xe9", "not UTF-8 at byte 3"), (b"x" * 2000, "exceeds the limit of 1000 bytes")],
)
async def test_an_unreadable_file_is_an_error_and_never_absent_or_overwritten(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    options = StoreOptions(limits=StoreLimits(document_bytes=1000))
    async with FilesystemStore(tmp_path, options) as store:
        await store.write_document(KEY, "one")
        save(file_of(tmp_path), content)
        with pytest.raises(Corrupt, match=complaint):
            await store.read_document(KEY)
        with pytest.raises(Corrupt, match=complaint):
            await store.write_document(KEY, "two")
        assert file_of(tmp_path).read_bytes() == content
        save(file_of(tmp_path), "mended")
        document = await store.read_document(KEY)
        assert document is not None
        assert (document.content, document.revision) == ("mended", 2)


@pytest.mark.parametrize("existed", [True, False])
async def test_an_edit_between_the_stores_check_and_its_rename_is_kept(
    unwatched: FilesystemStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    if existed:
        await unwatched.write_document(KEY, "one")
    else:
        await unwatched.write_document(DocumentKey.of("acme", "s1", "session", "OTHER.md"), "so that it exists")
    rename = home._rename

    def save_then_rename(*args: Any) -> None:
        monkeypatch.setattr(home, "_rename", rename)
        save(file_of(tmp_path), "by hand, at the last moment")
        rename(*args)

    monkeypatch.setattr(home, "_rename", save_then_rename)
    written = await unwatched.write_document(KEY, "ours")
    newest = await unwatched.read_document(KEY)
    assert newest is not None
    assert (newest.content, newest.revision) == ("by hand, at the last moment", written.revision + 1)
    assert await unwatched.read_document(KEY, written.revision) == written
    assert file_of(tmp_path).read_text() == "by hand, at the last moment"
    assert not [p for p in tmp_path.rglob("*") if p.name == "staged"]


async def test_concurrent_saves_and_writes_never_fail_and_end_in_one_state(
    store: FilesystemStore, tmp_path: Path
) -> None:
    await store.write_document(KEY, "0")

    def save_by_hand() -> None:
        for number in range(200):
            fresh = file_of(tmp_path, ".by-hand")
            fresh.write_text(f"by hand {number}")
            os.utime(fresh, (1, 1))  # an old time, so that the store does not wait for the file to settle
            fresh.rename(file_of(tmp_path))

    is_done = False

    async def write() -> None:
        number = 0
        while not is_done:
            number += 1
            await store.write_document(KEY, f"ours {number}")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        await anyio.to_thread.run_sync(save_by_hand)
        is_done = True
    last = await store.read_document(KEY)
    history = await store.document_history(KEY)
    assert last is not None
    assert last.content == file_of(tmp_path).read_text()
    texts = [await store.read_document(KEY, r.revision) for r in history]
    # A save that the next one overwrites at once is lost, as it is without a store; the last save is not.
    assert "by hand 199" in {text.content for text in texts if text is not None}
    assert [r.revision for r in history] == list(range(len(history), 0, -1))
