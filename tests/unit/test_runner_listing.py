"""Pages of directories, read from real ones: order, bounds, and names of any bytes."""

from __future__ import annotations

import os
import random
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.models.files import decode_path
from sandboxd.runner import protocol
from sandboxd.runner.inside import wire
from sandboxd.runner.inside.failure import Failure
from sandboxd.runner.inside.listing import MAX_PATHS_BYTES, Page, list_directory

NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
MANY = 200_000


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # one of the roots that the runner accepts
        yield Path(path)


def read_pages(path: str, limit: int) -> list[list[bytes]]:
    pages = []
    after = ""
    for _ in range(1_000):
        head, data = list_directory(path, after, limit, lambda: False)
        pages.append(
            [os.fsencode(decode_path(entry.path).rpartition("/")[2]) for entry in protocol.read_entries(path, data)]
        )
        after = head["next"]
        if not after:
            return pages
    raise AssertionError("the pages do not end")


@settings(deadline=None)
@given(st.sets(NAMES, max_size=30), st.integers(1, 12))
def test_the_pages_are_the_whole_directory_in_order(names: set[bytes], limit: int) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        for name in names:
            os.close(os.open(os.fsencode(path) + b"/" + name, os.O_CREAT, 0o600))
        pages = read_pages(path, limit)
    assert [name for page in pages for name in page] == sorted(names)
    assert all(len(page) == limit for page in pages[:-1])


def test_a_page_holds_no_more_memory_than_its_own_entries() -> None:
    numbers = list(range(MANY))
    random.Random(0).shuffle(numbers)
    page = Page(b"", 1_000, 10)
    tracemalloc.start()
    try:
        for number in numbers:
            page.add(b"%09d" % number)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert page.close() == [b"%09d" % number for number in range(1_000)]
    assert page.has_more
    assert peak < 1_000_000


def test_a_page_of_long_names_fits_into_one_frame(place: Path) -> None:
    names = [b"%05d" % number + b"x" * 250 for number in range(2_000)]
    for name in names:
        os.close(os.open(os.fsencode(place) + b"/" + name, os.O_CREAT, 0o600))
    _, data = list_directory(str(place), "", wire.MAX_PAGE_ENTRIES, lambda: False)
    assert wire.MAX_DATA_BYTES - 300 < len(data) <= wire.MAX_DATA_BYTES
    assert [name for page in read_pages(str(place), wire.MAX_PAGE_ENTRIES) for name in page] == names


def test_a_page_below_a_long_path_is_bounded_too() -> None:
    page = Page(b"", wire.MAX_PAGE_ENTRIES, 4_000)
    for number in range(1_000):
        page.add(b"%09d" % number)
    assert 4_000 * len(page.close()) <= MAX_PATHS_BYTES
    assert page.has_more


def test_a_cancelled_listing_ends(place: Path) -> None:
    (place / "file").touch()
    with pytest.raises(Failure):
        list_directory(str(place), "", 10, lambda: True)


def test_an_entry_that_is_removed_during_a_listing_is_left_out(place: Path) -> None:
    for name in "abc":
        (place / name).touch()

    def remove_b() -> bool:
        (place / "b").unlink(missing_ok=True)
        return False

    _, data = list_directory(str(place), "", 10, remove_b)
    entries = protocol.read_entries(str(place), data)
    assert [entry.path for entry in entries] == [f"{place}/a", f"{place}/c"]
