"""What a model reads when its text is not in the file: the difference and the nearest lines, at a bounded cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.tools.nearest_lines import explain_mismatch

PROGRAM = "import os\n\n\ndef area(radius):\n    return 3.14 * radius ** 2\n\n\ndef name():\n    return 'circle'\n"


@pytest.mark.parametrize(
    ("text", "old", "says"),
    [
        (
            PROGRAM,
            "def area(radius):\n\treturn 3.14 * radius ** 2",
            "line 5 is indented with 4 spaces, old_string with 1 tab",
        ),
        (PROGRAM, "  return 3.14 * radius ** 2\n  # area", "     5\t    return 3.14"),
        ("a = 1  \nb = 2\n", "a = 1\nb = 2", "line 1 ends with 2 spaces, old_string with no whitespace"),
        ("a = 1\nb = 2\n", "a = 1 \nb = 2", "line 1 ends with no whitespace, old_string with 1 space"),
        ("a = 1\r\nb = 2\r\n", "a = 1\nb = 2\n", "CRLF, old_string with LF"),
        ("a = 1\nb = 2\n", "a = 1\r\nb = 2\r\n", "old_string ends its lines with CRLF"),
        ("a  =  1\n", "a = 1", "inside line 1"),
        (PROGRAM, "     1\timport os\n     2\t", "line numbers that Read shows"),
        (PROGRAM, "def area(radius):\\n    return", "has a backslash"),
        (PROGRAM, "return \u2018circle\u2019", "typographic quotes"),
        (PROGRAM, "DEF AREA(RADIUS)", "in other letters"),
        (PROGRAM, "def area(r):\n    return 3.14 * r", "     4\tdef area(radius):"),
        (PROGRAM, "retrun", "nearest lines"),
        (PROGRAM, "  \n ", "only whitespace"),
        (PROGRAM, "#%&!", "No line of the file is similar; it has 9 lines"),
        ("", "anything", "No line of the file is similar; it has 0 lines"),
    ],
)
def test_the_difference_is_named(text: str, old: str, says: str) -> None:
    assert says in explain_mismatch(text, old)


def test_the_lines_shown_are_numbered_and_few() -> None:
    text = "\n".join(f"value {number} = {'x' * 1000}" for number in range(1000))
    shown = explain_mismatch(text, "\n".join(f"value  {number} = y" for number in range(400, 500)))
    assert len(shown) < 5000
    assert "   401\tvalue 400" in shown


@given(st.text(max_size=300), st.text(max_size=100))
def test_any_text_is_explained(text: str, old: str) -> None:
    assert explain_mismatch(text, old)


@pytest.mark.parametrize("unit", ["a", "ab ", "a\n", "\n", "word\n", "\t", "\r\n", "\\", "1\t\n"])
def test_the_work_is_bounded_whatever_the_text_is(unit: str) -> None:
    for old in (unit * 100_000 + "!", unit * 90 + "!\n" + unit * 90, unit * 1000 + "!\n" + unit * 1000):
        assert len(explain_mismatch(unit * 1_000_000, old)) < 10_000  # quadratic work would take hours
