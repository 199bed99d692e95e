"""The outputs of a run are bounded in all and by line, and say what they leave out."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.contexts.bridge_lines import MAX_LINE_BYTES, OutputReader
from sandboxd.models.context import RunOutput
from sandboxd.runner.inside.kernel_outputs import PART_CHARACTERS, Outputs


def lines_of(most: int, *messages: tuple[str, dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """Return the lines for these messages of a kernel, and whether something is missing."""

    async def collect() -> tuple[list[dict[str, Any]], bool]:
        outputs = Outputs(most)
        for kind, content in messages:
            outputs.add(kind, content)
        outputs.end()
        return [line async for line in outputs], outputs.is_truncated

    return anyio.run(collect)


def read(most: int, lines: list[dict[str, Any]]) -> list[RunOutput]:
    """Return what the daemon makes of the lines."""
    reader = OutputReader(most)
    return [output for output in map(reader.read, json.loads(json.dumps(lines))) if output is not None]


def stream(text: str, name: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "stream", {"name": name, "text": text}


@settings(deadline=None)
@given(st.lists(st.text(max_size=200), max_size=8), st.integers(0, 400))
def test_printed_text_is_kept_up_to_the_bound_and_not_beyond(texts: list[str], most: int) -> None:
    lines, truncated = lines_of(most, *map(stream, texts))
    kept = "".join(line["text"] for line in lines)
    whole = "".join(texts)
    assert whole.startswith(kept)
    assert truncated == (kept != whole)
    assert (
        sum(len(json.dumps(line["text"], ensure_ascii=False).encode("utf-8", "replace")) - 2 for line in lines) <= most
    )


@pytest.mark.parametrize("character", ["a", "\n", "\0", "ä", "\U0001f600", "\ud800"])
def test_no_line_is_longer_than_the_daemon_accepts(character: str) -> None:
    most = 16_777_216
    messages = [
        stream(character * 1_000_000),
        ("display_data", {"data": {"image/png": character * 1_000_000, "application/json": [character] * 100_000}}),
        ("error", {"ename": character * 10_000, "evalue": character * 10_000, "traceback": [character * 1_000_000]}),
    ]
    lines, _ = lines_of(most, *messages)
    sizes = [len(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace")) for line in lines]
    assert max(sizes) < MAX_LINE_BYTES
    assert [output.type for output in read(most, lines)][-2:] == ["display", "error"]


def test_a_long_value_is_joined_again() -> None:
    picture = "abc" * PART_CHARACTERS
    lines, truncated = lines_of(
        10 * len(picture), ("display_data", {"data": {"image/png": picture, "text/plain": "x"}})
    )
    (output,) = read(10 * len(picture), lines)
    assert not truncated
    assert (output.type, output.data) == ("display", {"image/png": picture, "text/plain": "x"})


def test_a_value_that_does_not_fit_is_named_and_the_smaller_ones_are_kept() -> None:
    message = (
        "execute_result",
        {"data": {"image/png": "p" * 1000, "text/plain": "text", "application/json": {"a": 1}}},
    )
    lines, truncated = lines_of(100, message)
    (output,) = read(100, lines)
    assert truncated
    assert output.type == "result"
    assert output.data == {"text/plain": "text", "application/json": {"a": 1}}
    assert output.omitted == {"image/png": 1000}


def test_an_error_is_sent_even_if_there_is_no_room_left() -> None:
    error = {"ename": "ValueError", "evalue": "\x1b[31mno\x1b[0m", "traceback": ["\x1b[0;31mValueError\x1b[0m: no"]}
    lines, truncated = lines_of(3, stream("abcdef"), ("error", error))
    assert truncated
    printed, failed = read(3, lines)
    assert printed.data == {"text/plain": "abc"}
    assert (failed.ename, failed.evalue, failed.traceback) == ("ValueError", "no", "ValueError: no")


def test_messages_that_are_not_output_are_ignored() -> None:
    assert lines_of(100, ("clear_output", {}), ("comm_open", {"data": {}}), ("status", {})) == ([], False)
