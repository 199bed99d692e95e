"""Mirrors and blobs in memory or on disk: where they go, when they move, and what is never trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxd.sandboxes import cache_place
from sandboxd.sandboxes.cache_place import TMPFS, give_back, settle
from sandboxd.settings import CachePlace

GIB = 1024**3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    path = tmp_path / "memory"
    path.mkdir()
    return path


def in_memory(data: Path) -> bool:
    places = {(data / name).is_symlink() for name in ("mirrors", "blobs")}
    assert len(places) == 1, "a mirror is links to blobs: both are on one filesystem"
    return places.pop()


def test_in_memory_mirrors_and_blobs_are_links_to_a_directory_that_only_the_daemon_may_write(
    data: Path, memory: Path
) -> None:
    settle(data, "memory", GIB, tmpfs=memory)
    (place,) = memory.iterdir()
    assert place.stat().st_mode & 0o777 == 0o700
    (data / "blobs" / "blob").write_text("text")
    (data / "mirrors" / "box").mkdir()
    os.link(data / "blobs" / "blob", data / "mirrors" / "box" / "file")
    assert (place / "mirrors" / "box" / "file").read_text() == "text"


def test_a_mirror_that_a_container_may_show_is_not_moved(data: Path, memory: Path) -> None:
    settle(data, "memory", GIB, tmpfs=memory)
    (data / "mirrors" / "box").mkdir()
    settle(data, "disk", GIB, tmpfs=memory)
    assert in_memory(data)
    give_back(data)
    assert (data / "mirrors" / "box").is_dir()
    (data / "mirrors" / "box").rmdir()
    settle(data, "disk", GIB, tmpfs=memory)
    assert not in_memory(data)
    assert list(memory.iterdir()) == []
    (data / "mirrors" / "box").mkdir()
    settle(data, "memory", GIB, tmpfs=memory)
    assert not in_memory(data)


def test_on_disk_the_cache_survives_a_restart(data: Path, memory: Path) -> None:
    settle(data, "disk", GIB, tmpfs=memory)
    (data / "blobs" / "blob").write_text("text")
    settle(data, "disk", GIB, tmpfs=memory)
    give_back(data)
    assert (data / "blobs" / "blob").read_text() == "text"


def test_without_room_or_a_tmpfs_the_cache_is_on_disk(data: Path, memory: Path) -> None:
    settle(data, "auto", GIB, tmpfs=memory)  # a directory on the disk is not a tmpfs
    assert not in_memory(data)
    settle(data, "auto", 2**60, tmpfs=TMPFS)
    assert not in_memory(data)
    settle(data, "auto", GIB, tmpfs=memory / "absent")
    assert not in_memory(data)


@pytest.mark.skipif(cache_place._filesystem_at(TMPFS) != "tmpfs", reason="needs a tmpfs")
def test_with_room_the_cache_is_in_memory_and_is_removed_at_the_end(data: Path) -> None:
    settle(data, "auto", 1)
    assert in_memory(data)
    place = (data / "mirrors").readlink().parent
    assert place.parent == TMPFS
    give_back(data)
    assert not place.exists()


def test_the_cache_is_recreated_after_a_reboot_of_the_host(data: Path, memory: Path) -> None:
    settle(data, "memory", GIB, tmpfs=memory)
    for place in memory.iterdir():
        for name in ("mirrors", "blobs"):
            (place / name).rmdir()
        place.rmdir()
    settle(data, "memory", GIB, tmpfs=memory)
    assert (data / "mirrors").is_dir()
    assert (data / "blobs").is_dir()


@pytest.mark.parametrize("lost", [("mirrors",), ("blobs",), ("mirrors", "blobs")])
def test_lost_subdirectories_are_recreated(data: Path, memory: Path, lost: tuple[str, ...]) -> None:
    settle(data, "memory", GIB, tmpfs=memory)
    (place,) = memory.iterdir()
    for name in lost:
        (place / name).rmdir()
    settle(data, "memory", GIB, tmpfs=memory)
    assert in_memory(data)
    assert (data / "mirrors").is_dir()
    assert (data / "blobs").is_dir()
    assert list(memory.iterdir()) == [place]


def test_a_directory_that_cannot_be_linked_is_not_left_in_memory(data: Path, memory: Path) -> None:
    (data / "mirrors").write_text("not ours")
    with pytest.raises(FileExistsError):
        settle(data, "memory", GIB, tmpfs=memory)
    assert list(memory.iterdir()) == []
    assert (data / "mirrors").read_text() == "not ours"


@pytest.mark.parametrize("wanted", ["memory", "disk"])
def test_a_daemon_that_died_while_creating_the_links_leaves_nothing(
    data: Path, memory: Path, wanted: CachePlace
) -> None:
    settle(data, "memory", GIB, tmpfs=memory)
    (place,) = memory.iterdir()
    (data / "mirrors").unlink()
    settle(data, wanted, GIB, tmpfs=memory)
    assert in_memory(data) is (wanted == "memory")
    assert not place.exists()


def test_a_directory_that_other_users_may_write_is_not_trusted(data: Path, memory: Path) -> None:
    settle(data, "memory", GIB, tmpfs=memory)
    (theirs,) = memory.iterdir()
    theirs.chmod(0o777)
    settle(data, "memory", GIB, tmpfs=memory)
    assert (data / "mirrors").readlink().parent != theirs
    assert theirs.exists()  # it belongs to another user, so it stays
