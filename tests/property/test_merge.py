"""Three-way merges: no line of either side is lost, deletions count, what collides or takes too long is refused."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from sandboxd.memory.merge import MOST_STEPS, contains, lines_of, merge

FEW = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n"]), max_size=8).map("".join)
"""Texts full of equal lines, in which a diff is ambiguous."""
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
Changes = tuple[set[int], list[tuple[int, int]]]
CHANGES = st.tuples(
    st.sets(st.integers(0, 11), max_size=4), st.lists(st.tuples(st.integers(0, 12), st.integers(1, 2)), max_size=2)
)


def text_of(base: str, mine: str, theirs: str) -> str | None:
    merged = merge(base, mine, theirs)
    return None if merged is None else merged.text


def test_changes_to_different_lines_are_merged() -> None:
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
    """With that many equal lines, each search for the longest match alone takes a hundred million steps."""
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
def test_a_change_on_one_side_is_kept_unchanged(base: str, mine: str) -> None:
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


@given(size=st.integers(0, 12), mine=CHANGES, theirs=CHANGES)
@example(size=3, mine=({0}, [(3, 1)]), theirs=(set(), [(1, 1)]))
def test_a_clean_merge_has_the_new_lines_of_both_and_none_that_one_of_them_deleted(
    size: int, mine: Changes, theirs: Changes
) -> None:
    """Lines are unique here, so a line of the result can only be the same line."""
    base = [f"line {number}" for number in range(size)]
    ours, others = _changed(base, mine, "my"), _changed(base, theirs, "their")
    merged = merge(*("".join(f"{line}\n" for line in text) for text in (base, ours, others)))
    if merged is None:
        return
    found = merged.text.splitlines()
    deleted = (set(base) - set(ours)) | (set(base) - set(others))
    assert set(found) == (set(ours) | set(others)) - deleted
    assert [line for line in found if line in ours] == [line for line in ours if line in found]
    assert [line for line in found if line in others] == [line for line in others if line in found]
    shown = {line for line in merged.theirs.splitlines() if line[0] in "+-"}
    assert {f"+{line}" for line in set(others) - set(ours) - set(base)} <= shown
    assert {f"-{line}" for line in set(ours) - set(others) if line in base} <= shown


def _changed(base: list[str], changes: Changes, whose: str) -> list[str]:
    """Delete some lines and insert new ones. No line moves: one that the other side deletes would survive."""
    deleted, inserted = changes
    places: dict[int, list[str]] = {}
    for place, count in inserted:
        places.setdefault(place % (len(base) + 1), []).extend(f"{whose} {place} {n}" for n in range(count))
    result: list[str] = []
    for number, line in enumerate([*base, ""]):
        result += dict.fromkeys(places.get(number, []))
        result += [line] if number < len(base) and number not in deleted else []
    return list(dict.fromkeys(result))


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
