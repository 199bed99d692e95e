"""Limits of a workspace, and deleting what an agent may have built in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxd.workspace import inode_limit, is_over
from sandboxd.workspace.loop import parse_mount_points
from sandboxd.workspace.removal import delete_tree


@pytest.mark.parametrize(
    ("usage_bytes", "inodes", "expected"),
    [(0, 0, False), (8 << 20, 1024, False), ((8 << 20) + 1, 1, True), (0, 1025, True)],
)
def test_workspace_is_over_its_limit_when_bytes_or_files_exceed_it(
    usage_bytes: int, inodes: int, expected: bool
) -> None:
    assert is_over(usage_bytes, inodes, 8) is expected


def test_small_workspace_still_allows_enough_files() -> None:
    assert inode_limit(8) == 1024
    assert inode_limit(1024) == 65536


def test_deep_tree_is_deleted_with_few_descriptors(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    current = os.open(top, os.O_RDONLY)
    for _ in range(4000):
        os.mkdir("d" * 200, dir_fd=current)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = deeper
    os.close(current)
    delete_tree(top)
    assert os.listdir(tmp_path) == []


def test_links_are_deleted_and_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    outside.chmod(0o500)
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / "link").symlink_to(outside)
    (top / "sub" / "link").symlink_to(outside)
    (top / "sub" / "dangling").symlink_to("/nowhere")
    delete_tree(top)
    assert (outside / "kept").read_text() == "kept"
    assert outside.stat().st_mode & 0o777 == 0o500
    assert os.listdir(tmp_path) == ["outside"]


def test_link_in_place_of_the_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "top").symlink_to(tmp_path / "outside")
    with pytest.raises(NotADirectoryError):
        delete_tree(tmp_path / "top")
    assert (tmp_path / "outside").is_dir()


def test_odd_names_pipes_and_unreadable_directories_are_deleted(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "closed" / "inner").mkdir(parents=True)
    (top / "closed" / "inner" / "file").write_text("x")
    (top / "closed" / "inner").chmod(0)
    (top / "closed").chmod(0)
    os.mkfifo(top / "pipe")
    (Path(os.fsdecode(bytes(top) + b"/\xff\n*"))).write_text("x")
    (top / ".moved-0").mkdir()
    delete_tree(top)
    assert os.listdir(tmp_path) == []


def test_deleting_a_missing_tree_is_not_an_error(tmp_path: Path) -> None:
    delete_tree(tmp_path / "never")


def test_mount_point_with_blanks_is_decoded() -> None:
    line = "36 35 98:0 / /a\\040b/files rw - ext4 /dev/loop0 rw\n"
    assert parse_mount_points(line) == [Path("/a b/files")]
