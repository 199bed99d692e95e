"""Token counts: exact with an installed table, otherwise estimated and marked as such."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import tiktoken

from memo.primitives import InvalidPrimitive, Tokenizable
from memo.primitives import tokenizable as module
from memo.token_tables import EXACT_ENCODINGS, find_tables
from memo.tokens import TokenCounter

SCRIPTS = [
    "the quick brown fox ", "def f(x):\n    return x\n", "Größe und Maß ", "русский текст ", "日本語の文章", "🙂👍🏽 ",
    "\t\n  ", "0123456789", "<|endoftext|>", "\u200b\x00",
]  # fmt: skip


def mixed_texts(count: int) -> list[str]:
    source = random.Random(7)
    return ["".join(source.choices(SCRIPTS, k=source.randrange(0, 12))) for _ in range(count)]


# Specification: 002.7
@pytest.mark.parametrize("encoding", EXACT_ENCODINGS)
def test_exact_counts_equal_tiktokens_own_on_a_thousand_mixed_texts(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = find_tables(encoding)
    if tables is None:
        pytest.skip(f"no table for {encoding} on this machine: set TIKTOKEN_CACHE_DIR")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tables))
    own = tiktoken.get_encoding(encoding)
    for text in mixed_texts(1000):
        count = Tokenizable(text).count_tokens(encoding)
        assert count.exact
        assert count.tokens == len(own.encode(text, disallowed_special=()))


# Specification: 002.8, 002.9
@pytest.mark.parametrize(
    ("encoding", "text", "tokens"),
    [
        ("claude", "a" * 7, 2),
        ("claude", "a" * 8, 3),
        ("gemini", "a" * 9, 3),
        ("llama2", "", 0),
        ("unknown", "ü" * 4, 1),
    ],
)
def test_other_encodings_are_estimated_by_length(encoding: str, text: str, tokens: int) -> None:
    count = Tokenizable(text).count_tokens(encoding)
    assert (count.tokens, count.exact) == (tokens, False)
    assert Tokenizable(text).estimate_tokens(encoding) == tokens


def test_without_a_table_the_count_is_an_estimate_and_one_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counter = TokenCounter("cl100k_base", tmp_path)
    monkeypatch.setattr("memo.token_tables.table_directories", lambda configured=None: iter([tmp_path]))
    monkeypatch.setattr(module, "_counter", lambda encoding: counter)
    counts = [Tokenizable(text).count_tokens("cl100k_base") for text in ("abcd", "abcde", "")]
    assert [(count.tokens, count.exact) for count in counts] == [(1, False), (2, False), (0, False)]
    assert [record.message for record in caplog.records] == [
        "cannot count cl100k_base tokens exactly: no table found, estimating instead; set TIKTOKEN_CACHE_DIR"
    ]


# Specification: 002.10
def test_a_count_is_computed_once_for_each_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counter(encoding: str) -> TokenCounter:
        made.append(encoding)
        return TokenCounter(encoding)

    monkeypatch.setattr(module, "_counter", counter)
    text = Tokenizable("hello")
    for _ in range(3):
        text.estimate_tokens("claude")
        text.estimate_tokens("gemini")
    assert made == ["claude", "gemini"]


# Specification: 002.11
def test_set_returns_another_tokenizable_with_its_own_counts() -> None:
    text = Tokenizable("a" * 7)
    assert text.estimate_tokens("claude") == 2
    other = text.set("a" * 70)
    assert other.estimate_tokens("claude") == 20
    assert (str(text), text.estimate_tokens("claude")) == ("a" * 7, 2)


@pytest.mark.anyio
async def test_a_count_off_the_event_loop_is_the_same_count() -> None:
    text = Tokenizable("some text to count")
    for encoding in ("claude", "o200k_base"):
        assert await text.measure(encoding) == Tokenizable("some text to count").count_tokens(encoding)


# Specification: 002.12
def test_a_tokenizable_behaves_like_its_text() -> None:
    assert str(Tokenizable("hi")) == "hi"
    assert Tokenizable("hi") == Tokenizable(text="hi") == Tokenizable(value="hi") == "hi"
    assert len({Tokenizable("hi"), "hi"}) == 1
    assert f"{Tokenizable('hi')}" == "hi"
    assert Tokenizable("hi") != Tokenizable("ho")


@pytest.mark.parametrize("value", [None, 3, b"bytes", ["a"], {"text": 3}, {"texts": "a"}])
def test_only_a_string_can_be_a_tokenizable(value: object) -> None:
    with pytest.raises(InvalidPrimitive) as caught:
        Tokenizable(value)
    assert caught.value.code == "E_INVALID_INITIAL_TOKENIZABLE_VALUE"
    assert os.linesep not in str(caught.value)
