"""Planted and damaged files in the tree: nothing leads out of it, nothing blocks, no damage looks like absence."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from memo import DocumentKey, SessionRef
from memo.documents import ArtifactKey
from memo.errors import Corrupt, MemoError, ProviderError, Unavailable, Unsupported
from memo.stores.filesystem import FilesystemStore
from memo.stores.filesystem.change_log import Announcement, ChangeLog
from memo.stores.filesystem.directory import Directory, append_lines, end_of_lines, lines_backwards
from memo.stores.filesystem.layout import Owner

pytestmark = pytest.mark.anyio

KEY = DocumentKey.of("acme", "s1", "session", "NOTES.md")
REF = SessionRef.of("acme", "s1")
CALL = ArtifactKey.of("acme:s1", "call-1")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FilesystemStore]:
    async with FilesystemStore(tmp_path / "memo") as opened:
        await opened.get_or_create("acme", "ann", "a", "s1")
        await opened.append_messages("acme", "s1", [{"role": "user", "content": str(n)} for n in range(5)])
        await opened.write_document(KEY, "notes")
        await opened.write_artifact(CALL, "output")
        await opened.session_trace_store(REF).append_envelope({"n": 1})
        yield opened


def place(store: FilesystemStore, *parts: str) -> Path:
    return store.path.joinpath("tenants", "acme", "sessions", "s1", *parts)


def replaced_by_link(path: Path, target: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    path.symlink_to(target)


async def test_a_link_in_place_of_a_document_is_refused_and_its_target_untouched(
    store: FilesystemStore, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    replaced_by_link(place(store, "NOTES.md"), secret)
    for call in (
        lambda: store.read_document(KEY),
        lambda: store.write_document(KEY, "new"),
        lambda: store.append_document(KEY, "new"),
        lambda: store.list_documents(KEY.tenant, KEY.owner, KEY.scope),
    ):
        with pytest.raises(Corrupt, match=r"cannot open tenants/acme/sessions/s1/NOTES\.md") as refused:
            await call()
        assert "SECRET" not in str(refused.value)
    assert secret.read_text() == "SECRET"


async def test_a_directory_swapped_for_a_link_is_refused(store: FilesystemStore, tmp_path: Path) -> None:
    away = tmp_path / "away"
    shutil.copytree(place(store), away)
    (away / "NOTES.md").write_text("SECRET")
    replaced_by_link(place(store), away)
    before = sorted(str(p) for p in away.rglob("*"))
    for call in (
        lambda: store.read_document(KEY),
        lambda: store.write_document(KEY, "new"),
        lambda: store.load_all_messages("acme", "s1"),
        lambda: store.append_messages("acme", "s1", [{"role": "user", "content": "x"}]),
        lambda: store.read_tool_result_artifact(REF, "call-1"),
        lambda: store.session_trace_store(REF).append_envelope({}),
        lambda: store.orchestration_persistence(REF).write_checkpoint({}),
        lambda: store.get_or_create("acme", "ann", "a", "s1"),
    ):
        with pytest.raises(Corrupt):
            await call()
    assert sorted(str(p) for p in away.rglob("*")) == before
    assert (away / "NOTES.md").read_text() == "SECRET"


@pytest.mark.parametrize(
    ("parts", "call"),
    [
        (("tool-results",), lambda s: s.read_tool_result_artifact(REF, "call-1")),
        (("tool-results",), lambda s: s.write_tool_result_artifact(REF, "call-2", "x")),
        (("tool-results", "call-1.txt"), lambda s: s.read_tool_result_artifact(REF, "call-1")),
        (("messages.jsonl",), lambda s: s.load_all_messages("acme", "s1")),
        (("messages.jsonl",), lambda s: s.append_messages("acme", "s1", [{"role": "user"}])),
        (("session.jsonl",), lambda s: s.get_session("acme", "s1")),
        (("trace",), lambda s: s.session_trace_store(REF).append_envelope({})),
        (("trace", "events.jsonl"), lambda s: s.session_trace_store(REF).load_envelopes()),
        ((".memo",), lambda s: s.read_document(KEY)),
        ((".memo", "commits.jsonl"), lambda s: s.write_document(KEY, "x")),
        ((".memo", "lock"), lambda s: s.read_document(KEY)),
    ],
)
async def test_no_link_anywhere_is_followed(
    store: FilesystemStore, tmp_path: Path, parts: tuple[str, ...], call: Callable[[FilesystemStore], object]
) -> None:
    away = tmp_path / "away"
    original = place(store, *parts)
    shutil.copytree(original, away) if original.is_dir() else shutil.copy(original, away)
    before = {str(p): p.read_bytes() for p in [away, *away.rglob("*")] if p.is_file()}
    replaced_by_link(original, away)
    with pytest.raises(Corrupt):
        await call(store)  # type: ignore[misc]
    assert {str(p): p.read_bytes() for p in [away, *away.rglob("*")] if p.is_file()} == before


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir])
async def test_a_file_that_is_not_regular_is_an_error_and_never_blocks(
    store: FilesystemStore, plant: Callable[[Path], None]
) -> None:
    place(store, "NOTES.md").unlink()
    plant(place(store, "NOTES.md"))
    with anyio.fail_after(30):
        calls: list[Callable[[], Awaitable[object]]]
        calls = [lambda: store.read_document(KEY), lambda: store.write_document(KEY, "x")]
        for call in calls:
            with pytest.raises(Corrupt):
                await call()


async def test_a_damaged_row_is_an_error_that_names_the_row(store: FilesystemStore) -> None:
    file = place(store, "messages.jsonl")
    rows = file.read_bytes().split(b"\n")
    rows[2] = b"\xff" + rows[2][1:]
    file.write_bytes(b"\n".join(rows))
    with pytest.raises(Corrupt, match="message 3 of session acme:s1"):
        await store.load_all_messages("acme", "s1")
    assert [m["content"] for m in await store.load_messages("acme", "s1", 2)] == ["3", "4"]


@pytest.mark.parametrize(
    ("name", "content", "call"),
    [
        ("messages.jsonl", b"", lambda s: s.load_all_messages("acme", "s1")),
        ("messages.jsonl", b"", lambda s: s.append_messages("acme", "s1", [{"role": "user"}])),
        ("messages.jsonl", None, lambda s: s.load_messages("acme", "s1", 1)),
        ("session.jsonl", b"{}\n", lambda s: s.load_all_messages("acme", "s1")),
        ("session.jsonl", b"", lambda s: s.get_or_create("acme", "ann", "a", "s1")),
        ("tool-results/call-1.txt", b"other", lambda s: s.read_tool_result_artifact(REF, "call-1")),
        ("tool-results/call-1.txt", None, lambda s: s.read_tool_result_artifact(REF, "call-1")),
        ("tool-results/call-1.txt", b"longer than before", lambda s: s.read_artifact_range(CALL, 0, 3)),
        (".memo/commits.jsonl", b"nonsense\n", lambda s: s.read_document(KEY)),
        (".memo/commits.jsonl", b'{"commit":7,"log":0}\n', lambda s: s.write_document(KEY, "x")),
        ("trace/events.jsonl", b"\xff\n", lambda s: s.load_trace_envelopes("acme", "s1")),
        ("trace/events.jsonl", b"nonsense\n", lambda s: s.load_trace_envelopes("acme", "s1")),
    ],
)  # fmt: skip
async def test_damage_is_an_error_and_never_looks_like_absence(
    store: FilesystemStore, name: str, content: bytes | None, call: Callable[[FilesystemStore], object]
) -> None:
    file = place(store, *name.split("/"))
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Corrupt, match=r"^cannot "):
        await call(store)  # type: ignore[misc]


async def test_a_damaged_artifact_is_repaired_by_writing_it_again(store: FilesystemStore) -> None:
    place(store, "tool-results", "call-1.txt").write_text("tampered")
    before = await store.last_change()
    await store.write_tool_result_artifact(REF, "call-1", "output")
    assert await store.read_tool_result_artifact(REF, "call-1") == "output"
    assert await store.last_change() == before, "this text was already committed, so nothing has changed"


async def test_a_damaged_old_text_is_an_error(store: FilesystemStore) -> None:
    await store.write_document(KEY, "second")
    (text,) = [p for p in place(store, ".memo", "texts", "NOTES.md").iterdir() if p.read_text() == "notes"]
    text.write_text("forged")
    with pytest.raises(Corrupt, match=r"cannot read revision 1 of NOTES.md of acme/sessions/s1"):
        await store.read_document(KEY, 1)


async def test_redacted_text_remains_nowhere_on_disk(store: FilesystemStore) -> None:
    await store.write_document(KEY, "the password is xyzzy")
    await store.write_document(KEY, "clean")
    await store.redact_document(KEY, 2)
    found = await anyio.run_process(["grep", "-r", "xyzzy", str(store.path)], check=False)
    assert found.stdout == b""


async def test_equal_artifacts_share_one_file(store: FilesystemStore) -> None:
    for number in range(5):
        await store.write_tool_result_artifact(REF, f"twin-{number}", "the same text")
    inodes = {place(store, "tool-results", f"twin-{n}.txt").stat().st_ino for n in range(5)}
    assert len(inodes) == 1
    await store.write_tool_result_artifact(REF, "twin-0", "another text")
    assert await store.read_tool_result_artifact(REF, "twin-1") == "the same text"


async def test_files_created_without_the_store_become_documents(tmp_path: Path) -> None:
    home = tmp_path / "tenants" / "acme" / "sessions" / "s9"
    (home / "tool-results").mkdir(parents=True)
    (home / "NOTES.md").write_text("from before")
    (home / "tool-results" / "call-7.txt").write_text("old output")
    key = DocumentKey.of("acme", "s9", "session", "NOTES.md")
    async with FilesystemStore(tmp_path) as store:
        document = await store.read_document(key)
        assert document is not None
        assert (document.content, document.revision) == ("from before", 1)
        assert await store.list_tool_result_artifact_ids("acme:s9") == ["call-7"]
        assert await store.read_tool_result_artifact("acme:s9", "call-7") == "old output"


async def test_reading_what_was_never_written_leaves_no_trace(tmp_path: Path) -> None:
    async with FilesystemStore(tmp_path, watch=False) as store:
        before = sorted(tmp_path.rglob("*"))
        assert await store.read_document(KEY) is None
        assert await store.load_all_messages("acme", "s1") == []
        assert await store.list_artifacts(REF) == []
        assert await store.load_orchestration_state("acme", "s1") is None
        assert await store.list_sessions_by_user("acme", "ann") == []
        with pytest.raises(MemoError):
            await store.append_messages("acme", "s1", [{"role": "user"}])
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("content", "kind"), [('{"version": 2}', Unsupported), ("{", Corrupt), ("", Corrupt)])
async def test_a_directory_with_a_newer_or_damaged_format_is_refused(
    tmp_path: Path, content: str, kind: type[MemoError]
) -> None:
    async with FilesystemStore(tmp_path):
        pass
    (tmp_path / ".memo" / "format").write_text(content)
    with pytest.raises(kind, match="cannot open this store"):
        await FilesystemStore(tmp_path).open()


@pytest.mark.parametrize("name", [".memo", ".memo/bell", ".memo/changes.jsonl", ".memo/format", "tenants"])
async def test_no_link_at_the_root_is_followed(tmp_path: Path, name: str) -> None:
    root, away = tmp_path / "memo", tmp_path / "away"
    async with FilesystemStore(root) as store:
        await store.write_document(KEY, "notes")
    original = root / name
    shutil.copytree(original, away) if original.is_dir() else shutil.copy(original, away)
    before = {str(p): p.read_bytes() for p in [away, *away.rglob("*")] if p.is_file()}
    replaced_by_link(original, away)
    gc.collect()  # so that leftovers of earlier tests are not closed during this one
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Corrupt):
        await FilesystemStore(root).open()
    assert {str(p): p.read_bytes() for p in [away, *away.rglob("*")] if p.is_file()} == before
    assert len(os.listdir("/proc/self/fd")) <= descriptors


async def test_a_path_that_is_not_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot open the store"):
        await FilesystemStore(tmp_path / "file").open()


async def test_opening_and_closing_leaves_no_descriptor_and_no_thread(tmp_path: Path) -> None:
    async with FilesystemStore(tmp_path) as store:
        await store.write_document(KEY, "x")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        async with FilesystemStore(tmp_path) as store:
            async with store.changes() as feed:
                await anext(feed)
            await store.read_document(KEY)
    with anyio.fail_after(10):  # the watcher's thread closes its descriptors when it ends
        while len(os.listdir("/proc/self/fd")) > before:
            await anyio.sleep(0.01)
    assert not [
        t for t in os.listdir("/proc/self/task") if "memo-outside" in Path(f"/proc/self/task/{t}/comm").read_text()
    ]


async def test_waiting_for_a_lock_held_by_a_stopped_process_times_out(
    tmp_path: Path,
) -> None:
    store = FilesystemStore(tmp_path, lock_timeout_s=0.05)
    await store.open()
    await store.write_document(KEY, "notes")
    holder = subprocess.Popen(
        [
            "flock",
            "--exclusive",
            "--no-fork",
            str(place(store, ".memo", "lock")),
            "sh",
            "-c",
            "echo held; exec sleep 600",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        await anyio.to_thread.run_sync(holder.stdout.readline)
        with pytest.raises(Unavailable, match=r"cannot lock .*: another process has held it for 0.05 s"):
            await store.write_document(KEY, "x")
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()  # type: ignore[union-attr]
    assert (await store.read_document(KEY)).content == "notes"  # type: ignore[union-attr]
    await store.aclose()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
async def test_writes_to_a_full_disk_fail_and_lose_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        async with FilesystemStore(disk / "memo") as store:
            await store.get_or_create("acme", "ann", "a", "s1")
            kept, refused, unknown = 0, 0, 0
            for number in range(60):
                try:
                    await store.write_document(KEY, f"{number} " * 10_000)
                    kept = number
                except Unavailable:
                    refused += 1
                except ProviderError as error:
                    assert error.outcome_unknown
                    unknown += 1
            assert refused > 0
            document = await store.read_document(KEY)
            assert document is not None
            last = int(document.content.split(" ", 1)[0])
            assert last >= kept if unknown else last == kept
            assert document.content == f"{last} " * 10_000
            for revision in await store.document_history(KEY):
                old = await store.read_document(KEY, revision.revision)
                assert old is not None
                assert old.sha256 == revision.sha256
            (disk / "memo" / "filler").unlink(missing_ok=True)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def test_the_feed_finds_any_cursor_in_a_long_log(tmp_path: Path) -> None:
    with Directory.open(str(tmp_path)) as directory:
        log = ChangeLog(directory, lambda: None)
        owner = Owner.of(KEY)
        for commit in range(1, 11):
            changes = [Announcement(f"{commit}-{n}-{'x' * (n % 90)}.md", 1, "0" * 64, 0) for n in range(300)]
            log.publish(owner, commit, changes)
            log.publish(owner, 1000 + commit, [])
        assert log.last() == 3000
        assert (tmp_path / "changes.jsonl").stat().st_size > 500_000
        for since in (*range(2990, 3001), *range(0, 2990, 97), 0, 1, 2999, 5000, 2**70):
            expected = list(range(since + 1, min(since + 3, 3000) + 1)) if since < 3000 else []
            assert [change.cursor for change in log.read(since, 3)] == expected
        assert log.is_published(owner, 1010, 0)
        assert not log.is_published(owner, 11, 0)
        log.close()


async def test_a_torn_line_at_the_end_of_a_log_is_ignored_and_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\ntwo\nthr")
    fd = os.open(file, os.O_RDWR)
    try:
        assert end_of_lines(fd) == 8
        assert list(lines_backwards(fd, 8)) == [b"two", b"one"]
        append_lines(fd, b"x\n", 8)
        assert file.read_bytes() == b"one\ntwo\nx\n"
    finally:
        os.close(fd)


async def test_lines_are_read_backwards_however_long_they_are(tmp_path: Path) -> None:
    lines = [b"", b"a" * 65_535, b"b" * 65_536, b"c", b"d" * 200_000, b"", b"e"]
    (tmp_path / "log").write_bytes(b"".join(line + b"\n" for line in lines))
    fd = os.open(tmp_path / "log", os.O_RDONLY)
    try:
        assert list(lines_backwards(fd, os.fstat(fd).st_size)) == lines[::-1]
    finally:
        os.close(fd)


async def test_the_layout_is_the_documented_one(store: FilesystemStore) -> None:
    await store.compact_if_needed("acme", "s1", lambda _: "summary", force=True)
    persistence = store.orchestration_persistence(REF)
    await persistence.append_event({"id": "e1"})
    await persistence.write_checkpoint({"lastEventId": "e1"})
    await store.write_memory_document("acme", "ann", "user", "USER.md", "profile")
    tenant = store.path / "tenants" / "acme"
    seen = sorted(str(p.relative_to(tenant)) for p in tenant.rglob("*") if p.is_file() and ".memo" not in p.parts)
    assert seen == [
        "sessions/s1/NOTES.md",
        "sessions/s1/messages.compactions/0001.jsonl",
        "sessions/s1/messages.jsonl",
        "sessions/s1/orchestration/checkpoint.json",
        "sessions/s1/orchestration/events.jsonl",
        "sessions/s1/session.jsonl",
        "sessions/s1/tool-results/call-1.txt",
        "sessions/s1/trace/events.jsonl",
        "users/ann/USER.md",
    ]
    archived = place(store, "messages.compactions", "0001.jsonl").read_text().splitlines()
    assert [json.loads(line)["content"] for line in archived] == ["0", "1"]
