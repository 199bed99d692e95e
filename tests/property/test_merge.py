"""Three-way merges: no line of either side is lost, deletions count, what collides or takes too long is refused."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from sandboxd.mirror.merge import MOST_STEPS, contains, lines_of, merge

FEW = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n"]), max_size=8).map("".join)
"""Texts full of equal lines, in which a diff is ambiguous."""
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NUMBERS = st.lists(st.integers(0, 11), unique=True, max_size=12)


def text_of(base: str, mine: str, theirs: str) -> str | None:
    merged = merge(base, mine, theirs)
    return None if merged is None else merged.text


def test_changes_of_different_lines_are_merged() -> None:
    base = "one\ntwo\nthree\nfour\n"
    merged = merge(base, "ONE\ntwo\nthree\nfour\n", "one\ntwo\nfour\nfive\n")
    assert merged is not None
    assert merged.text == "ONE\ntwo\nfour\nfive\n"
    assert merged.theirs == "@@ line 3 @@\n-three\n@@ line 4 @@\n+five\n"
    assert text_of(base, "same\n", "same\n") == "same\n"


def test_changes_that_overlap_or_touch_are_not_merged() -> None:
    assert merge("a\nb\n", "a\nmine\n", "a\ntheirs\n") is None
    assert merge("a\nb\nc\n", "mine\nb\nc\n", "a\ntheirs\nc\n") is None
    assert merge("a\nb\n", "a\nb\nmine\n", "a\nb\ntheirs\n") is None
    assert merge("", "mine\n", "theirs\n") is None
    assert merge("a", "a\nmine", "a\ntheirs") is None


def test_a_comparison_that_would_take_too_long_is_refused() -> None:
    """With as many equal lines, each search for the longest match alone takes a hundred million steps."""
    shuffled = [f"{number % 20}\n" for number in range(45_000)]
    texts = []
    for seed in range(3):
        random.Random(seed).shuffle(shuffled)
        texts.append("".join(shuffled))
    assert MOST_STEPS < 45_000**2 // 20
    assert merge(*texts) is None


def test_a_long_text_with_few_changes_is_merged() -> None:
    lines = ["\n" if number % 3 else f"line {number}\n" for number in range(30_000)]
    base, mine, theirs = "".join(lines), "".join(["mine\n", *lines]), "".join([*lines, "theirs\n"])
    assert text_of(base, mine, theirs) == "".join(["mine\n", *lines, "theirs\n"])


@given(base=ANY_TEXT, mine=ANY_TEXT)
def test_a_change_of_one_side_is_taken_as_it_is(base: str, mine: str) -> None:
    assert text_of(base, mine, base) == mine
    assert text_of(base, base, mine) == mine
    assert text_of(base, mine, mine) == mine
    assert "".join(lines_of(mine)) == mine


@given(base=FEW, mine=FEW, theirs=FEW)
@example(base="a\n", mine="a\na\n", theirs="a\na\n")
def test_a_merge_is_the_same_from_both_sides_and_invents_nothing(base: str, mine: str, theirs: str) -> None:
    merged = text_of(base, mine, theirs)
    assert merged == text_of(base, theirs, mine)
    if merged is not None:
        counts = Counter(lines_of(merged))
        before, ours, others = (Counter(lines_of(text)) for text in (base, mine, theirs))
        for line, count in counts.items():
            assert count <= max(ours[line] + others[line] - before[line], ours[line], others[line])


@given(base=NUMBERS, mine=NUMBERS, theirs=NUMBERS)
def test_a_clean_merge_has_the_new_lines_of_both_and_none_that_one_of_them_deleted(
    base: list[int], mine: list[int], theirs: list[int]
) -> None:
    """Lines are unique here, so a line of the result can only be that very line."""
    merged = merge(*("".join(f"{number}\n" for number in text) for text in (base, mine, theirs)))
    if merged is None:
        return
    found = {int(line) for line in merged.text.split()}
    added = (set(mine) | set(theirs)) - set(base)
    deleted = (set(base) - set(mine)) | (set(base) - set(theirs))
    assert added <= found
    assert set(base) - deleted <= found
    assert not deleted & found
    shown = {line for line in merged.theirs.splitlines() if line[0] in "+-"}
    assert {f"+{number}" for number in set(theirs) - set(base) - set(mine)} <= shown
    assert {f"-{number}" for number in (set(base) - set(theirs)) & set(mine)} <= shown


@given(base=st.lists(st.sampled_from("abcde"), min_size=1, max_size=8), data=st.data())
def test_changes_that_do_not_touch_are_always_merged(base: list[str], data: st.DataObject) -> None:
    middle = data.draw(st.integers(0, len(base) - 1))
    words = st.lists(st.sampled_from("xyz"), max_size=3)
    new_head, new_tail = data.draw(words), data.draw(words)
    head, keep, tail = base[:middle], [f"only {middle}"], base[middle + 1 :]

    def text(*parts: list[str]) -> str:
        return "".join(f"{line}\n" for part in parts for line in part)

    mine, theirs = text(new_head, keep, tail), text(head, keep, new_tail)
    assert text_of(text(head, keep, tail), mine, theirs) == text(new_head, keep, new_tail)


@given(text=FEW, extra=FEW)
def test_a_text_contains_another_if_it_has_its_lines_in_order(text: str, extra: str) -> None:
    assert contains(text + extra, text)
    assert contains(extra + text, text)
    assert not contains(text, f"{text}new\n")
