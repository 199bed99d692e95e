"""Blobs, trees and manifests: files that are complete, read-only, shared and never left behind."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memo.content import number_of
from memo.documents import DocumentKey, sha256_of
from memo.errors import InvalidKey
from memo.ids import TenantId
from sandboxd.memory import manifest, tree
from sandboxd.memory.blobs import Blobs
from sandboxd.memory.manifest import Shown
from sandboxd.memory.merge import copy_key
from sandboxd.memory.text import prefix_of

ACME, OTHER = TenantId("acme"), TenantId("other")
TEXT = "a text with umläuts\n".encode()
SHA = sha256_of(TEXT)


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    cache = Blobs(tmp_path / "blobs")
    cache.open()
    return cache


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = tmp_path / "mirror"
    path.mkdir()
    tree.prepare(str(path))
    return str(path)


def test_a_text_is_kept_once_and_read_only(blobs: Blobs) -> None:
    first = blobs.put(ACME, SHA, TEXT)
    inode = os.stat(first).st_ino
    assert blobs.put(ACME, SHA, TEXT) == first
    assert os.stat(first).st_ino == inode
    assert stat.S_IMODE(os.stat(first).st_mode) == 0o440
    assert blobs.read(ACME, SHA) == TEXT


def test_tenants_share_no_blob_and_no_path_contains_an_id(blobs: Blobs) -> None:
    assert blobs.put(ACME, SHA, TEXT) != blobs.put(OTHER, SHA, TEXT)
    assert "acme" not in blobs.path(ACME, SHA)


def test_a_blob_damaged_by_a_crash_or_by_hand_is_never_used(blobs: Blobs, tmp_path: Path) -> None:
    path = blobs.put(ACME, SHA, TEXT)
    os.chmod(path, 0o644)
    Path(path).write_bytes(b"something else")
    os.chmod(path, 0o440)
    assert blobs.find(ACME, SHA) is None
    path = blobs.put(ACME, SHA, TEXT)
    os.truncate(path, 3)
    fresh = Blobs(tmp_path / "blobs")
    fresh.open()
    assert fresh.find(ACME, SHA) is None


def test_threads_that_put_the_same_text_at_once_all_show_it(blobs: Blobs, root: str) -> None:
    """One thread replaces the blob while another links it, so the kernel reports the first blob as missing."""
    both = threading.Barrier(2)

    def show(directory: str) -> None:
        for number in range(3_000):
            text = f"text {number}\n".encode()
            both.wait(30)
            tree.replace(blobs.put(ACME, sha256_of(text), text), f"{root}/{directory}", "a", tree.temporary_name())

    with ThreadPoolExecutor(2) as pool:
        showing = [pool.submit(show, directory) for directory in ("user", "session")]
        for future in showing:
            future.result(60)
    assert Path(root, "user", "a").read_text() == Path(root, "session", "a").read_text() == "text 2999\n"


def test_pruning_keeps_what_mirrors_show(tmp_path: Path, root: str) -> None:
    first = Blobs(tmp_path / "blobs")
    first.open()
    texts = [f"text {number}".encode() for number in range(20)]
    paths = [first.put(ACME, sha256_of(text), text) for text in texts]
    tree.show(paths[3], root, "session/NOTES.md")
    assert first.prune(0) == 0  # they are about to be linked
    later = Blobs(tmp_path / "blobs")
    later.open()
    assert later.prune(0) == 19
    assert later.read(ACME, sha256_of(texts[3])) == texts[3]


def test_incomplete_blobs_are_removed_at_start(tmp_path: Path) -> None:
    staging = tmp_path / "blobs" / "staging"
    staging.mkdir(parents=True)
    (staging / "7").write_text("half")
    Blobs(tmp_path / "blobs").open()
    assert list(staging.iterdir()) == []


def test_replacing_keeps_the_directory_and_leaves_no_temporary_file(blobs: Blobs, root: str) -> None:
    before = os.stat(f"{root}/session").st_ino
    for number, text in enumerate((b"one", b"two", b"three")):
        blob = blobs.put(ACME, sha256_of(text), text)
        tree.replace(blob, f"{root}/session", "NOTES.md", tree.temporary_name())
        for _ in range(number):
            tree.show(blob, root, "session/NOTES.md")  # the same file again
        assert Path(root, "session", "NOTES.md").read_bytes() == text
    assert os.stat(f"{root}/session").st_ino == before
    assert sorted(os.listdir(f"{root}/session")) == ["NOTES.md", "tool-results"]


def test_files_are_copied_if_links_are_refused(blobs: Blobs) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or os.stat(shared).st_dev == os.stat(blobs.put(ACME, SHA, TEXT)).st_dev:
        pytest.skip("needs a second filesystem")
    target = shared / f"sandboxd-mirror-test-{os.getpid()}"
    target.mkdir()
    try:
        tree.prepare(str(target))
        for text in (b"before", TEXT):
            tree.show(blobs.put(ACME, sha256_of(text), text), str(target), "user/USER.md")
        tree.replace(blobs.put(ACME, SHA, TEXT), f"{target}/user", "USER.md", tree.temporary_name())
        assert (target / "user" / "USER.md").read_bytes() == TEXT
        assert [path.name for path in (target / "user").iterdir()] == ["USER.md"]
    finally:
        shutil.rmtree(target)


def test_a_scan_reports_foreign_files_and_removes_temporary_files(blobs: Blobs, root: str) -> None:
    tree.show(blobs.put(ACME, SHA, TEXT), root, "user/USER.md")
    Path(root, "session", f"{tree.TEMPORARY}x").write_text("left over")
    os.symlink("/etc/passwd", f"{root}/session/link")
    os.mkfifo(f"{root}/session/pipe")
    Path(root, "directory").mkdir()
    found = tree.scan(root, is_quiet=True)
    assert found == {"user/USER.md": SHA, "session/link": None, "session/pipe": None, "directory": None}
    assert not Path(root, "session", f"{tree.TEMPORARY}x").exists()


def test_a_scan_keeps_the_temporary_file_of_a_running_refresh(root: str) -> None:
    draft = tree.MirrorDraft(root, "user/USER.md")
    draft.write(TEXT)
    assert tree.scan(root, is_quiet=True) == {}  # by the last mirror of the same sandbox
    draft.finish()
    assert tree.scan(root, is_quiet=True) == {"user/USER.md": SHA}


def test_a_start_sweeps_every_mirror(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        tree.prepare(str(tmp_path / name))
        (tmp_path / name / "user" / f"{tree.TEMPORARY}1").write_text("left over")
    assert tree.sweep(tmp_path) == 2


def test_a_manifest_survives_a_round_trip_and_a_damaged_one_lists_nothing() -> None:
    shown = {"session/NOTES.md": Shown(3, SHA, 20, 1_700_000_000.5), "user/USER.md": Shown(-1, SHA, 20, 1.0, True)}
    assert manifest.decode(manifest.encode(shown)) == shown
    for damaged in (None, b"", b"{", b"[]", b'{"files": 3}', b'{"files": {"a": {}}}', b"[" * 100_000):
        assert manifest.decode(damaged) == {}


def test_the_name_of_a_conflict_copy_is_always_legal() -> None:
    for name in ("NOTES.md", "n", "a" * 128, "a" * 120 + ".md", "x.y.z", "a." + "b" * 126, "a" * 64 + "." + "b" * 63):
        copy = copy_key(DocumentKey.of("acme", "s1", "session", name), 2**52, "abcdef12")
        assert ".conflict-" in copy.name
        assert len(copy.name) <= 128
    with pytest.raises(InvalidKey):
        DocumentKey.of("acme", "s1", "session", "../x")


def test_the_number_of_a_text_leads_back_to_its_hash() -> None:
    assert SHA.startswith(prefix_of(number_of(SHA)))
    assert number_of(SHA) < 2**53
