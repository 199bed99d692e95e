"""Text in blocks: whatever the size of a block, lines and replacements are those of the whole text."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.runner.inside import text

TEXTS = st.text("ab\n", max_size=80).map(str.encode)
SIZES = st.sampled_from([1, 2, 3, 7, 64, 65_536])


@pytest.fixture(scope="module", autouse=True)
def restored() -> Iterator[None]:
    before = text.BLOCK_BYTES, text.FEW, text.MANY_AT_ONCE
    yield
    text.BLOCK_BYTES, text.FEW, text.MANY_AT_ONCE = before


def open_text(content: bytes) -> int:
    fd = os.memfd_create("text")
    os.write(fd, content)
    return fd


@given(TEXTS, SIZES, st.integers(1, 9), st.integers(0, 9))
def test_lines_are_those_of_the_whole_text(content: bytes, block: int, first: int, limit: int) -> None:
    text.BLOCK_BYTES = block
    lines = content.decode().splitlines()
    fd = open_text(content)
    try:
        start, total, is_exact = text._survey(fd, first)
        assert (total, is_exact, start >= 0) == (len(lines), True, first <= len(lines))
        if start >= 0:
            wanted = lines[first - 1 : first - 1 + limit]
            assert text._collect(fd, start, limit) == ("\n".join(wanted).encode(), len(wanted), False)
    finally:
        os.close(fd)


@given(TEXTS, TEXTS.filter(bool), TEXTS, SIZES, st.sampled_from([0, 1, 64]), st.sampled_from([1, 3, 1024]))
def test_replacements_are_those_of_the_whole_text(
    content: bytes, old: bytes, new: bytes, block: int, few: int, many: int
) -> None:
    text.BLOCK_BYTES, text.FEW, text.MANY_AT_ONCE = block, few, many
    written = bytearray()
    fd = open_text(content)
    try:
        found = text._replace(fd, memoryview(old), memoryview(new), written.extend)
    finally:
        os.close(fd)
    assert (bytes(written), found) == (content.replace(old, new), (content.count(old), len(content)))
