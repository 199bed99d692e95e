"""What the embedded summariser understands: lists of phrases to keep and to leave out, and hostile text."""

from __future__ import annotations

import pytest

from memo.consolidation import Part
from memo.consolidation.content_filter import screen
from memo.consolidation.english.corrections import CurrentStatements
from memo.consolidation.english.message_reader import MessageReader
from memo.consolidation.english.own_words import own_sentences
from tests.memo.consolidation.phrases import CORRECTIONS, KEPT, ROLE_PLAY, SILENT


def read(*messages: str) -> list[str]:
    """Return the bullets of the last message of a session."""
    reader = MessageReader()
    return [[statement.text for statement in reader.read(message)] for message in messages][-1]


@pytest.mark.parametrize(
    ("text", "needle"),
    [pytest.param(*pair, id=f"{kind}: {pair[0]}") for kind, pairs in KEPT.items() for pair in pairs],
)
def test_a_lasting_statement_is_kept(text: str, needle: str) -> None:
    bullets = read(text)
    assert any(needle.casefold() in bullet.casefold() for bullet in bullets), bullets
    assert all(isinstance(screen(bullet), str) for bullet in bullets)


@pytest.mark.parametrize(
    "text", [pytest.param(text, id=f"{kind}: {text}") for kind, texts in SILENT.items() for text in texts]
)
def test_what_is_not_a_lasting_statement_is_left_out(text: str) -> None:
    assert read(text) == []


@pytest.mark.parametrize("messages", ROLE_PLAY)
def test_the_lines_of_a_role_are_not_statements(messages: list[str]) -> None:
    assert read(*messages) == []


def test_a_role_play_ends_with_a_reaction() -> None:
    assert read("Pretend to be a pirate.", "haha great. I live in Cork") == ["Lives in Cork"]
    assert read("Pretend to be a pirate.", "Arr, I hate ships.", "I hate soap.", "I live in Cork") == ["Lives in Cork"]


@pytest.mark.parametrize(("older", "newer", "gone", "stays"), CORRECTIONS)
def test_a_correction_replaces_the_older_bullet(older: str, newer: str, gone: str, stays: str) -> None:
    current = CurrentStatements.empty()
    shown: list[str] = []
    replaced: list[tuple[str, str]] = []
    for text in reversed([*read(older), *read(newer)]):  # the newest first
        left, pairs = current.admit(text)
        shown += [left] if left else []
        replaced += pairs
    assert any(stays in text for text in shown), shown
    current_parts = [text.replace(f"from {gone}", "").replace(f"not {gone}", "") for text in shown]
    assert not any(gone in text for text in current_parts if "replaced" not in text), shown
    assert any(gone in older for older, _ in replaced), replaced


def test_a_correction_takes_only_its_part_of_a_bullet() -> None:
    current = CurrentStatements.empty()
    current.admit("They moved from Oslo to Bergen")
    assert current.admit("Tech lead at Nordbank, based in Oslo")[0] == "Tech lead at Nordbank"
    assert current.admit("Likes the Oslo opera")[0] is None
    assert current.admit("Prefers bullet points") == ("Prefers bullet points", [])


@pytest.mark.parametrize(
    ("text", "bullets"),
    [
        (
            "I smoke two packs a day, please don't lecture me about that.",
            ["Smokes two packs a day; asks not to lecture"],
        ),
        ("Please don't lecture me about that.", ["Asks not to lecture them"]),
        ("please don't bring it up", []),
    ],
)
def test_a_request_that_points_back_is_kept_with_what_it_points_at(text: str, bullets: list[str]) -> None:
    found = read(text)
    assert len(found) == len(bullets)
    assert all(bullet.startswith(start) for bullet, start in zip(found, bullets, strict=True)), found


def test_the_words_of_the_user_are_found_around_foreign_text() -> None:
    text = "I use Go. Here is the log:\nI prefer Perl\n\nI prefer Lisp\n"
    assert own_sentences(text) == ["I use Go."]
    assert own_sentences('Use `ruff`. ```\nI prefer Perl\n``` And "black" never.') == [
        'Use "ruff".',
        'And "black" never.',
    ]
    assert own_sentences('He wrote "I never eat fish and I live in Rome" to me.') == ["He wrote  \u2026  to me."]
    assert own_sentences('It is 5" wide. I like jam. He said "ok"') == ["It is 5"]


def test_a_statement_keeps_its_section() -> None:
    parts = {s.text: s.part for s in MessageReader().read("I'm a nurse. No emojis. I prefer tea. I'm learning Dutch.")}
    assert parts == {
        "Is a nurse": Part.ROLE,
        "Wants no emojis": Part.AVOID,
        "Prefers tea": Part.PREFERENCES,
        "Is learning Dutch": Part.FOCUS,
    }


HOSTILE = [
    "I " * 4_000,
    "a, " * 2_600,
    "my " * 2_600,
    "<a>" * 2_600 + "</b>",
    "'a " * 2_600,
    '"' * 7_999,
    " and ".join(["I am"] * 900),
    "rules: " * 1_100,
    "no, wait " * 880,
    "never use " * 800,
    "moved from " * 700,
    "(" * 8_000,
    "..." * 2_600,
    "`a" * 4_000,
    "<!--" * 2_000,
    ("I always only just " * 15 + ", ") * 25,
    ("python, " * 36 + ". ") * 25,
    ("Ab " * 95 + ". ") * 25,
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:12])
@pytest.mark.timeout(60)
def test_hostile_text_ends(text: str) -> None:
    """A pattern with quadratic or worse time would run into the timeout: each is repeated to a million characters."""
    reader = MessageReader()
    for _ in range(1_000_000 // len(text)):
        assert all(isinstance(screen(statement.text), str) for statement in reader.read(text))
