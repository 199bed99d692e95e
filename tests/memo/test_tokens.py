"""Token counts: exact where a table is available, never from the network, never on the event loop."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from memo.messages import MEDIA_TOKENS
from memo.stores import InMemoryStore, StoreOptions
from memo.tokens import EXACT_ENCODINGS, TokenCount, TokenCounter, find_tables

pytestmark = pytest.mark.anyio


@pytest.fixture
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memo.tokens.importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)


def tables_or_skip(encoding: str) -> Path:
    directory = find_tables(encoding)
    if directory is None:
        pytest.skip(f"no table of {encoding} on this machine")
    return directory


@pytest.mark.parametrize(
    ("encoding", "text", "tokens"),
    [("claude", "x" * 7, 2), ("claude", "x" * 8, 3), ("other", "x" * 8, 2), ("other", "x" * 9, 3), ("claude", "", 0)],
)
def test_an_estimate_rounds_up_and_is_not_exact(encoding: str, text: str, tokens: int) -> None:
    assert TokenCounter(encoding).count(text) == TokenCount(tokens, exact=False)


@pytest.mark.usefixtures("no_tables")
@pytest.mark.parametrize("encoding", EXACT_ENCODINGS)
def test_without_a_table_an_encoding_is_estimated_with_one_warning(
    encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    counter = TokenCounter(encoding)
    assert [counter.count("x" * 8) for _ in range(3)] == [TokenCount(2, exact=False)] * 3
    assert [record.message for record in caplog.records] == [
        f"cannot count {encoding} tokens exactly: no table found, estimating instead; set TIKTOKEN_CACHE_DIR"
    ]


@pytest.mark.usefixtures("no_tables")
def test_a_damaged_table_is_neither_used_nor_removed(tmp_path: Path) -> None:
    address = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
    table = tmp_path / hashlib.sha1(address.encode()).hexdigest()
    table.write_bytes(b"IQ== 0\n")
    assert not TokenCounter("cl100k_base", tmp_path).count("hello").exact
    assert table.read_bytes() == b"IQ== 0\n"


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base", "p50k_base"])
def test_with_a_table_the_count_is_exact(encoding: str) -> None:
    counter = TokenCounter(encoding, tables_or_skip(encoding))
    assert counter.count("hello world, friend") == TokenCount(4, exact=True)
    assert counter.count("<|endoftext|>").exact, "text that looks like a special token is text"


def test_an_installed_package_may_carry_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_or_skip("cl100k_base")
    package = tmp_path / "litellm"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('located, never imported')\n")
    (package / "litellm_core_utils").mkdir()
    (package / "litellm_core_utils" / "tokenizers").symlink_to(tables)
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_tables("cl100k_base") == package / "litellm_core_utils" / "tokenizers"
    assert TokenCounter("cl100k_base").count("hello world").exact
    assert "TIKTOKEN_CACHE_DIR" not in os.environ


async def test_exact_counting_happens_off_the_event_loop() -> None:
    directory = tables_or_skip("cl100k_base")
    seen: list[int] = []

    class Watched(TokenCounter):
        def count(self, text: str) -> TokenCount:
            seen.append(threading.get_ident())
            return super().count(text)

    counter = Watched("cl100k_base", directory)
    counts = await counter.count_all(["hello world"] * 3)
    counts += await counter.count_messages([{"role": "user", "content": "hello"}])
    async with InMemoryStore(StoreOptions(counter=counter)) as store:
        await store.write_memory_document("acme", "ann", "user", "USER.md", "hello world")
        (entry,) = await store.build_memory_index("acme", "ann", "s1")
    assert (entry.tokens, entry.tokens_exact) == (2, True)
    assert all(count.exact for count in counts)
    assert threading.get_ident() not in seen


def test_the_tokens_of_an_image_do_not_depend_on_its_base64_text() -> None:
    image = {"type": "image", "data": "A" * 1_000_000, "mimeType": "image/png"}
    count = TokenCounter().count_message({"role": "user", "content": [{"type": "text", "text": "look"}, image]})
    assert count == TokenCount(1 + MEDIA_TOKENS + 4, exact=False)
