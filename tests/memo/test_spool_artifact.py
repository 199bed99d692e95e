"""Queries on a large result: bounded answers that say when they are truncated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memo.errors import InvalidContent, TooLarge
from memo.spool import BytesReader, SpooledArtifact
from memo.spool import spooled_artifact as module
from memo.spool.json_path import parse_path, select

pytestmark = pytest.mark.anyio

LOG = SpooledArtifact(
    BytesReader(b"".join(b"line %04d %s\n" % (n, b"odd" if n % 2 else b"even") for n in range(3000))), "log"
)


class FourMethods:
    """A reader with only the four methods of the contract."""

    async def line(self, index: int) -> str | None:
        return ["a", "b"][index] if 0 <= index < 2 else None

    async def byte_length(self) -> int:
        return 4

    async def line_count(self) -> int:
        return 2

    async def read_all(self) -> bytes:
        return b"a\nb\n"


async def test_head_tail_and_range_return_the_requested_lines() -> None:
    assert (await LOG.head(2)).text == "line 0000 even\nline 0001 odd"
    assert (await LOG.tail(2)).text == "line 2998 even\nline 2999 odd"
    assert (await LOG.range(10, 12)).text == "line 0010 even\nline 0011 odd"
    assert (await LOG.range(2999)).lines == 1
    assert (await LOG.range(5000, 5001)).text == ""
    assert (await LOG.head(0)).text == ""
    assert (await LOG.line_count(), await LOG.byte_length()) == (3000, len(await LOG.as_bytes()))


async def test_a_truncated_answer_says_so() -> None:
    answer = await LOG.range(0, 3000, limit_bytes=100)
    assert answer.truncated
    assert len(answer.text.encode()) <= 100
    assert answer.text.splitlines() == [f"line {n:04d} {'odd' if n % 2 else 'even'}" for n in range(answer.lines)]
    assert not (await LOG.head(5)).truncated
    assert len((await LOG.range(0, 3000)).text.encode()) <= module.LIMIT_BYTES


async def test_a_very_long_line_is_cut_and_says_so() -> None:
    artifact = SpooledArtifact(BytesReader(b"x" * 10_000_000), "minified")
    answer = await artifact.head(1)
    assert len(answer.text) < 5000
    assert "[line truncated]" in answer.text
    assert (await artifact.head(1, limit_bytes=10)).text == "x" * 10


async def test_grep_finds_lines_with_their_numbers() -> None:
    assert (await LOG.grep(r"^line 0(12|34)\d e")).text.splitlines() == [
        *(f"{n + 1}:line {n:04d} even" for n in (120, 122, 124, 126, 128)),
        *(f"{n + 1}:line {n:04d} even" for n in (340, 342, 344, 346, 348)),
    ]
    assert (await LOG.grep("LINE 2999")).text == ""
    assert (await LOG.grep("LINE 2999", ignore_case=True)).text == "3000:line 2999 odd"


async def test_grep_stops_at_its_limits_and_says_so() -> None:
    answer = await LOG.grep("odd", most=3)
    assert (answer.lines, answer.truncated) == (3, True)
    assert not (await LOG.grep("line 000[135] odd", most=3)).truncated
    assert len((await LOG.grep("odd", most=3000, limit_bytes=200)).text.encode()) <= 200


async def test_a_pattern_that_takes_too_long_is_rejected() -> None:
    artifact = SpooledArtifact(BytesReader(b"a" * 3000 + b"!\n"), "evil")
    with pytest.raises(InvalidContent, match="took longer"):
        await artifact.grep(r"^(a|aa)+$(?=never)|(x+x+)+y|^(([a-z])+.)+[A-Z]([a-z])+$", timeout_s=0.2)
    with pytest.raises(InvalidContent, match="cannot search"):
        await artifact.grep("(")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$", [{"items": [{"id": 1, "a-b": "x"}, {"id": 2}], "n": None, "odd key": True}]),
        ("$.items[0].id", [1]),
        ("items[1].id", [2]),
        ("$.items[-1].id", [2]),
        ("$.items[*].id", [1, 2]),
        ("$.*", [[{"id": 1, "a-b": "x"}, {"id": 2}], None, True]),
        ("$['odd key']", [True]),
        ('$["items"][0]["a-b"]', ["x"]),
        ("$.items[0].a-b", ["x"]),
        ("$.items[7]", []),
        ("$.n.deeper", []),
    ],
)
async def test_a_json_path_selects_values(path: str, found: list[Any]) -> None:
    content = {"items": [{"id": 1, "a-b": "x"}, {"id": 2}], "n": None, "odd key": True}
    assert select(content, parse_path(path)) == found
    artifact = SpooledArtifact(BytesReader(json.dumps(content).encode()), "json")
    assert [json.loads(line) for line in (await artifact.json_path(path)).text.splitlines()] == found


@pytest.mark.parametrize("path", ["$..id", "$.items[?(@.id)]", "$.items[", "$.items[1:2]", "$ .a"])
def test_an_unsupported_json_path_is_rejected(path: str) -> None:
    with pytest.raises(InvalidContent, match="cannot use this JSON path"):
        parse_path(path)


async def test_only_valid_json_within_the_limit_can_be_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidContent, match="not valid JSON"):
        await LOG.json_path("$")
    monkeypatch.setattr(module, "JSON_LIMIT_BYTES", 10)
    with pytest.raises(TooLarge):
        await LOG.json_path("$")


async def test_a_long_value_is_cut_and_says_so() -> None:
    artifact = SpooledArtifact(BytesReader(json.dumps({"a": "ü" * 1000}).encode()), "json")
    answer = await artifact.json_path("$.a", limit_bytes=100)
    assert answer.truncated
    assert len(answer.text.encode()) <= 100


async def test_any_reader_with_the_four_methods_works() -> None:
    artifact = SpooledArtifact(FourMethods(), "four")
    assert (await artifact.head(5)).text == "a\nb"
    assert (await artifact.grep("b")).text == "2:b"


def test_an_artifact_needs_a_reader_and_an_id() -> None:
    with pytest.raises(InvalidContent, match="not a SpoolReader"):
        SpooledArtifact(b"bytes", "x")  # type: ignore[arg-type]
    with pytest.raises(InvalidContent, match="no id given"):
        SpooledArtifact(FourMethods())
