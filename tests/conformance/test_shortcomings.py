"""The table of what engines cannot do: the documentation shows it, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conformance import test_engine, test_ordinary_work
from tests.conformance.conftest import ENGINES
from tests.conformance.shortcomings import ALL_SHORTCOMINGS, SHORTCOMINGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "engines.md"


def test_the_documentation_shows_the_table() -> None:
    _, _, section = PAGE.read_text().partition("## What each engine cannot do")
    rows = re.findall(r"^\| (\w+) \| (.+) \|$", section, re.MULTILINE)
    assert rows[1:] == [(found.engine, found.what) for found in SHORTCOMINGS]


def test_every_shortcoming_names_an_engine_and_tests_that_exist() -> None:
    assert {found.engine for found in SHORTCOMINGS} <= set(ENGINES)
    names = [name for found in ALL_SHORTCOMINGS for name in found.tests]
    assert [name for name in names if not hasattr(test_engine, name) and not hasattr(test_ordinary_work, name)] == []
