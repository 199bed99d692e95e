"""docs/specification.md names a test for every statement of the specification, and every named test exists."""

from __future__ import annotations

from collections import Counter

from scripts.statements import TARGET, named_tests, render, statements


def test_every_statement_of_the_specification_has_a_test_that_names_it() -> None:
    tests = named_tests()
    page = statements(TARGET.read_text(encoding="utf-8"))
    assert page
    assert [row.id for row in page if row.id not in tests] == []


def test_no_test_names_a_statement_that_the_page_lacks() -> None:
    known = {row.id for row in statements(TARGET.read_text(encoding="utf-8"))}
    assert sorted(set(named_tests()) - known) == []


def test_every_statement_has_a_number_of_its_own() -> None:
    counts = Counter(row.id for row in statements(TARGET.read_text(encoding="utf-8")))
    assert [number for number, count in counts.items() if count > 1] == []


def test_the_page_links_the_tests_as_they_are_now() -> None:
    page = TARGET.read_text(encoding="utf-8")
    assert page == render(page, named_tests()), "run `.venv/bin/python -m scripts.statements`"
