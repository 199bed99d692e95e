"""The removal of trees, step by step on real directories: links, depth, and whatever changes between two steps."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxd.runner.inside import tree_removal
from sandboxd.runner.inside.failure import Failure
from sandboxd.runner.inside.tree_removal import MAX_LEVELS, MAX_PASSES, TreeRemoval

DEEP = 600
ENTRIES = 2_000


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # one of the roots that the runner accepts
        yield Path(path)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_removal, "STEP_S", -1.0)


def remove(path: Path, between: Callable[[int], None] = lambda _step: None, most: int = 100_000) -> None:
    """Remove a tree, and call `between` after every step that leaves something."""
    removal = TreeRemoval(str(path))
    try:
        for step in range(most):
            if removal.step():
                return
            between(step)
        raise AssertionError("the removal does not end")
    finally:
        removal.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def fill(top: Path) -> None:
    for part in ("a/b/c", "a/d", "e"):
        (top / part).mkdir(parents=True)
        for number in range(5):
            (top / part / f"file{number}").write_text("x")
    os.mkfifo(top / "a" / "fifo")
    (top / "dangling").symlink_to("nowhere")


def test_a_tree_is_removed_with_everything_in_it(place: Path) -> None:
    fill(place / "tree")
    remove(place / "tree")
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("one_by_one")
def test_no_link_is_followed(place: Path) -> None:
    (place / "kept").mkdir()
    (place / "kept" / "file").write_text("kept")
    fill(place / "tree")
    (place / "tree" / "a" / "link").symlink_to(place / "kept")
    (place / "tree" / "to-a-file").symlink_to(place / "kept" / "file")
    (place / "link").symlink_to(place / "kept")
    remove(place / "tree")
    remove(place / "link")
    assert (place / "kept" / "file").read_text() == "kept"
    assert list(place.iterdir()) == [place / "kept"]


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("swapped_after", range(12))
def test_a_directory_that_is_swapped_for_a_link_is_not_entered(place: Path, swapped_after: int) -> None:
    (place / "kept").mkdir()
    (place / "kept" / "file0").write_text("kept")
    fill(place / "tree")

    def swap(step: int) -> None:
        for name in ("a", "a/b", "e") if step == swapped_after else ():
            victim = place / "tree" / name
            if victim.is_dir() and not victim.is_symlink():
                victim.rename(place / f"moved-{name.replace('/', '-')}")
                victim.symlink_to(place / "kept")
                break

    remove(place / "tree", swap)
    assert (place / "kept" / "file0").read_text() == "kept"
    assert not (place / "tree").exists()


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("becomes", ["a link", "a file"])
def test_what_another_process_puts_in_its_place_is_removed_too(place: Path, becomes: str) -> None:
    (place / "kept").mkdir()
    (place / "kept" / "file0").write_text("kept")
    fill(place / "tree")

    def replace(step: int) -> None:
        if step == 3:
            (place / "tree").rename(place / "moved")
            if becomes == "a link":
                (place / "tree").symlink_to(place / "kept")
            else:
                (place / "tree").write_text("x")

    remove(place / "tree", replace)
    assert (place / "kept" / "file0").read_text() == "kept"
    assert not os.path.lexists(place / "tree")


def test_a_directory_that_is_swapped_just_before_it_is_opened_is_not_entered(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "kept").mkdir()
    (place / "kept" / "file").write_text("kept")
    (place / "tree" / "victim").mkdir(parents=True)
    (place / "tree" / "victim" / "file").write_text("x")
    rmdir = os.rmdir
    swapped = []

    def rmdir_and_swap(name: bytes, *, dir_fd: int) -> None:
        try:
            rmdir(name, dir_fd=dir_fd)
        except OSError:
            if name == b"victim":
                (place / "tree" / "victim").rename(place / "moved")
                (place / "tree" / "victim").symlink_to(place / "kept")
                swapped.append(name)
            raise

    monkeypatch.setattr(os, "rmdir", rmdir_and_swap)
    remove(place / "tree")
    assert swapped == [b"victim"]
    assert (place / "kept" / "file").read_text() == "kept"
    assert not (place / "tree").exists()


@pytest.mark.usefixtures("one_by_one")
def test_a_tree_of_any_depth_is_removed_with_few_descriptors(place: Path) -> None:
    fd = os.open(place, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("deep", dir_fd=fd)
        deeper = os.open("deep", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    before = open_descriptors()
    most = 0

    def count(_step: int) -> None:
        nonlocal most
        most = max(most, open_descriptors() - before)

    remove(place / "deep", count)
    assert list(place.iterdir()) == []
    assert MAX_LEVELS < most <= 2 * MAX_LEVELS + 2
    assert open_descriptors() == before


@pytest.mark.usefixtures("one_by_one")
def test_entries_that_are_created_during_a_removal_are_removed_too(place: Path) -> None:
    fill(place / "tree")

    def create(step: int) -> None:
        if step < 20:
            (place / "tree" / f"late{step}").write_text("x")

    remove(place / "tree", create)
    assert list(place.iterdir()) == []


def test_a_directory_that_is_constantly_refilled_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "tree").mkdir()
    (place / "tree" / "first").write_text("x")
    passes = 0
    rmdir = os.rmdir

    def rmdir_late(name: bytes, *, dir_fd: int) -> None:
        nonlocal passes
        passes += 1
        (place / "tree" / f"late{passes}").write_text("x")  # between the listing and the removal
        rmdir(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir_late)
    with pytest.raises(Failure, match="as fast as they are removed") as refused:
        remove(place / "tree")
    assert (refused.value.code, passes) == ("DirectoryNotEmpty", MAX_PASSES + 2)


@pytest.mark.usefixtures("one_by_one")
def test_a_removal_that_takes_too_long_says_so_and_can_be_continued(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(place / "tree")
    with monkeypatch.context() as patch:
        patch.setattr(tree_removal, "DEADLINE_S", -1.0)
        with pytest.raises(Failure, match="took longer") as refused:
            remove(place / "tree")
    assert refused.value.code == "ToolTimeout"
    assert (place / "tree").exists()
    remove(place / "tree")
    assert list(place.iterdir()) == []


@pytest.mark.usefixtures("one_by_one")
def test_a_removal_that_is_closed_early_leaves_the_rest_and_no_descriptor(place: Path) -> None:
    fill(place / "tree")
    before = open_descriptors()
    removal = TreeRemoval(str(place / "tree"))
    for _ in range(5):
        assert not removal.step()
    removal.close()
    removal.close()
    assert open_descriptors() == before
    assert (place / "tree").exists()


def test_a_wide_directory_takes_more_than_one_step(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_removal, "STEP_S", 0.0001)
    (place / "tree").mkdir()
    for number in range(ENTRIES):
        (place / "tree" / str(number)).touch()
    steps = 0

    def count(_step: int) -> None:
        nonlocal steps
        steps += 1

    remove(place / "tree", count)
    assert 1 < steps < ENTRIES
    assert list(place.iterdir()) == []
