"""Merging into a page that people edit: their text stays unchanged, deletions persist, bad drafts are refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memo.consolidation.page import parse_page
from memo.consolidation.profile import Bullet, Part, ProfileDraft, ProfileMemory, ProfileRefused, Source, is_alike
from memo.consolidation.profile_merge import MergeLimits, merge_profile
from memo.ids import SessionId

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def bullet(text: str, part: Part = Part.PREFERENCES, *sources: tuple[str, int]) -> Bullet:
    return Bullet(part, text, tuple(Source(SessionId(s), n) for s, n in sources or (("s1", 1),)))


def draft(*bullets: Bullet | str, summary: str = "") -> ProfileDraft:
    return ProfileDraft(summary, tuple(bullet(b) if isinstance(b, str) else b for b in bullets))


TEA, TABS = "Prefers tea over coffee", "Prefers tabs over spaces"


def test_a_new_page_has_a_summary_sections_sources_and_history() -> None:
    made = merge_profile(
        "", ProfileMemory(), draft(TEA, bullet("Works at Acme", Part.ROLE, ("s2", 4)), summary="Works."), NOW
    )
    assert made.text == (
        "<!-- summary: Works. -->\n# About the user\n\n"
        "## Preferences\n\n- Prefers tea over coffee <!-- from s1#1 -->\n\n"
        "## Role and context\n\n- Works at Acme <!-- from s2#4 -->\n\n"
        "## History\n\n- 2026-01-01 12:00 UTC: 2 new, 0 changed, 0 gone, 2 in all\n"
    )


def test_merging_the_same_draft_again_changes_nothing() -> None:
    first = merge_profile("", ProfileMemory(), draft(TEA, TABS, summary="x y"), NOW)
    second = merge_profile(first.text, first.memory, draft(TEA, TABS, summary="x y"), NOW)
    assert (second.text, second.memory, second.is_changed) == (first.text, first.memory, False)


def test_generated_bullets_are_added_changed_and_removed() -> None:
    first = merge_profile("", ProfileMemory(), draft(TEA, TABS), NOW)
    more = bullet(TEA, Part.PREFERENCES, ("s9", 2), ("s1", 1))
    second = merge_profile(first.text, first.memory, draft(more), NOW)
    assert "- Prefers tea over coffee <!-- from s9#2 s1#1 -->" in second.text
    assert TABS not in second.text
    assert (second.added, second.changed, second.gone) == (0, 1, 1)
    assert second.memory.tombstones == (), "what a merge removes may come back"


def test_a_deleted_bullet_does_not_come_back_even_rephrased() -> None:
    first = merge_profile("", ProfileMemory(), draft(TEA, TABS), NOW)
    page = first.text.replace(bullet(TEA).line + "\n", "")
    for said in (TEA, "Prefers tea", "The user prefers tea over coffee.", "prefers  TEA over coffee!"):
        again = merge_profile(page, first.memory, draft(TABS, said), NOW)
        assert again.text == page
        page_later = merge_profile(again.text, again.memory, draft(TABS, said), NOW).text
        assert page_later == page


def test_a_deleted_bullet_written_by_hand_is_kept() -> None:
    first = merge_profile("", ProfileMemory(), draft(TEA, TABS), NOW)
    without = merge_profile(first.text.replace(bullet(TEA).line + "\n", ""), first.memory, draft(TEA, TABS), NOW)
    assert len(without.memory.tombstones) == 1
    by_hand = without.text + "\n## Mine\n\n* Prefers tea over coffee\n"
    again = merge_profile(by_hand, without.memory, draft(TEA, TABS), NOW)
    assert (again.text, again.memory.tombstones) == (by_hand, ())


def test_an_edited_bullet_is_kept_and_wins_over_the_generated_one() -> None:
    first = merge_profile("", ProfileMemory(), draft(TEA, TABS), NOW)
    page = first.text.replace(bullet(TEA).line, "- Prefers green tea, before noon only")
    memory = first.memory
    for _ in range(3):
        merged = merge_profile(page, memory, draft(TEA, TABS, "Prefers green tea"), NOW)
        assert merged.text == page
        memory = merged.memory


@pytest.mark.parametrize(
    "edited",
    [
        "* Prefers tea over coffee <!-- from s1#1 -->",
        "- Prefers tea over coffee",
        "  - Prefers tea over coffee <!-- from s1#1 -->",
        "- Prefers tea over coffee <!-- from s1#1 -->\n  - but not on Mondays",
    ],
)
def test_a_reformatted_bullet_counts_as_hand_written_and_is_not_duplicated(edited: str) -> None:
    first = merge_profile("", ProfileMemory(), draft(TEA, TABS), NOW)
    page = first.text.replace(bullet(TEA).line, edited)
    merged = merge_profile(page, first.memory, draft(bullet(TEA, Part.PREFERENCES, ("s2", 9)), TABS), NOW)
    assert merged.text == page
    gone = merge_profile(page, first.memory, draft(TABS, "Likes rain"), NOW)
    assert edited in gone.text, "and it stays when it is no longer generated"


HAND_WRITTEN = """---
title: me
---
Some words   with  odd   spaces.\t

## My own section
* a list\t
    indented code
```markdown
## Preferences
- not a bullet of ours <!-- from s1#1 -->
```
<!--
## Avoid
-->

## preferences
I wrote this line here.
- and this bullet

### A deeper heading
text

## History
my own history
"""


def test_hand_written_text_survives_twenty_runs_unchanged() -> None:
    page, memory = HAND_WRITTEN, ProfileMemory()
    for number in range(20):
        bullets = [f"Likes subject number{n}" for n in range(number % 5, number % 5 + 8)]
        merged = merge_profile(
            page, memory, draft(*bullets, bullet("Hates it", Part.AVOID), summary=f"run {number}"), NOW
        )
        page, memory = merged.text, merged.memory
        assert is_within(HAND_WRITTEN.split("\n")[:-1], page.split("\n"))
    assert page.count("## preferences") == 1
    assert page.count("\n## Avoid\n- Hates") + page.count("\n## Avoid\n\n- Hates") == 1


def is_within(lines: list[str], page: list[str]) -> bool:
    """Return whether the page contains these lines in this order."""
    rest = iter(page)
    return all(line in rest for line in lines)


LINE = st.one_of(
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=30),
    st.sampled_from(
        ["## Preferences", "## Avoid", "## Mine", "# Top", "```", "~~~", "<!--", "-->", "", "- x", "  - y",
         "- Likes rain", "## History", "<!-- summary: mine -->", "---", bullet(TEA).line, "\t", "## preferences ##"]
    ),
)  # fmt: skip


@given(
    st.lists(LINE, max_size=25),
    st.booleans(),
    st.lists(st.sampled_from([TEA, TABS, "Likes rain", "Owns a cat"]), max_size=4),
)
def test_any_hand_written_text_is_kept_in_order(lines: list[str], crlf: bool, said: list[str]) -> None:
    ending = "\r\n" if crlf else "\n"
    page = ending.join(lines)
    first = merge_profile(page, ProfileMemory(), draft(*said, summary="s t"), NOW)
    assert is_within(
        [line.rstrip("\r") for line in page.split("\n")], [x.rstrip("\r") for x in [*first.text.split("\n"), ""]]
    )
    again = merge_profile(first.text, first.memory, draft(*said, summary="s t"), NOW)
    assert again.text == first.text, "a second run has nothing to do"
    emptied = merge_profile(first.text, first.memory, draft(), NOW, MergeLimits(history_bytes=0))
    assert is_within(
        [line.rstrip("\r") for line in page.split("\n")], [x.rstrip("\r") for x in [*emptied.text.split("\n"), ""]]
    )


def test_the_line_endings_of_the_page_are_kept() -> None:
    merged = merge_profile("mine\r\n", ProfileMemory(), draft(TEA), NOW)
    assert merged.text.count("\n") == merged.text.count("\r\n")


def test_an_unclosed_fence_does_not_duplicate_sections() -> None:
    page, memory = "```\nopen for ever\n", ProfileMemory()
    for _ in range(3):
        merged = merge_profile(page, memory, draft(TEA), NOW)
        page, memory = merged.text, merged.memory
    assert page.count("## Preferences") == 1


def test_an_unclosed_comment_does_not_duplicate_sections() -> None:
    page, memory = "<!--\n- LIKE:RAIN\n", ProfileMemory()
    for _ in range(3):
        merged = merge_profile(page, memory, draft(TEA, "Likes rain"), NOW)
        page, memory = merged.text, merged.memory
    assert page.count("## Preferences") == 1


def test_a_much_smaller_draft_is_refused_with_both_counts() -> None:
    first = merge_profile("", ProfileMemory(), draft(*(f"Likes thing{n}" for n in range(8))), NOW)
    with pytest.raises(ProfileRefused, match="3 bullets and the current one has 8"):
        merge_profile(first.text, first.memory, draft(*(f"Likes thing{n}" for n in range(3))), NOW)
    assert merge_profile(first.text, first.memory, draft(*(f"Likes thing{n}" for n in range(4))), NOW).gone == 4


def test_deletions_by_hand_do_not_count_as_shrinking() -> None:
    first = merge_profile("", ProfileMemory(), draft(*(f"Likes thing{n}" for n in range(8))), NOW)
    page = "\n".join(line for line in first.text.split("\n") if "Likes" not in line or "thing1 " in line)
    assert merge_profile(page, first.memory, draft(*(f"Likes thing{n}" for n in range(8))), NOW).text == page


def test_a_summary_changed_or_deleted_by_hand_is_left_alone() -> None:
    first = merge_profile("", ProfileMemory(), draft(TEA, summary="one two"), NOW)
    for page in (first.text.replace("one two", "mine"), first.text.split("\n", 1)[1]):
        merged = merge_profile(page, first.memory, draft(TEA, TABS, summary="three four"), NOW)
        assert "three four" not in merged.text


def test_history_is_capped_and_stays_deleted() -> None:
    page, memory = "", ProfileMemory()
    for number in range(80):
        merged = merge_profile(page, memory, draft(f"Likes day{number}"), NOW, MergeLimits(history_bytes=500))
        page, memory = merged.text, merged.memory
    section = page[page.index("## History") :]
    assert 300 < len(section) < 600
    page = page[: page.index("## History")]
    merged = merge_profile(page, memory, draft("Likes night"), NOW)
    assert "## History" not in merged.text
    assert "## History" not in merge_profile(merged.text, merged.memory, draft("Likes dawn"), NOW).text


def test_tombstones_and_bullets_are_capped() -> None:
    page, memory = "", ProfileMemory()
    for number in range(10):
        merged = merge_profile(page, memory, draft(f"Likes day{number}"), NOW, MergeLimits(tombstones=3))
        page, memory = merged.text.replace(f"- Likes day{number} <!-- from s1#1 -->\n", ""), merged.memory
    assert len(merge_profile(page, memory, draft("Likes x"), NOW, MergeLimits(tombstones=3)).memory.tombstones) == 3
    many = merge_profile("", ProfileMemory(), draft(*(f"Likes thing{n}" for n in range(50))), NOW)
    assert many.text.count("- Likes") == 12


def test_the_memory_of_a_profile_survives_json() -> None:
    first = merge_profile("", ProfileMemory(), draft(TEA, TABS, summary="x y"), NOW)
    memory = merge_profile(first.text.replace(bullet(TEA).line, ""), first.memory, draft(TABS), NOW).memory
    assert memory.tombstones
    assert ProfileMemory.parse(memory.encode()) == memory


def test_only_the_first_section_with_a_title_is_generated() -> None:
    page = parse_page("## Avoid\n\n- a\n\n## avoid\n\n- b\n")
    section = page.section("Avoid")
    assert section is not None
    assert section.heading == 0


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("Prefers tabs", "prefers tabs.", True),
        ("Prefers tabs over spaces", "Prefers tabs", True),
        ("Likes tea", "Likes coffee", False),
        ("Works at Acme", "Works at Initech", False),
        ("Uses C++", "Uses C#", False),
        ("Is learning Haskell", "Is learning Rust", False),
    ],
)
def test_bullets_are_compared_by_their_words(one: str, other: str, alike: bool) -> None:
    assert is_alike(one, other) is alike
