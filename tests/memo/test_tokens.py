"""Token counts: exact where a table is available or can be downloaded, never counted on the event loop."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from memo import token_tables
from memo.errors import InvalidKey
from memo.messages import MEDIA_TOKENS
from memo.stores import InMemoryStore, StoreOptions
from memo.token_tables import EXACT_ENCODINGS, find_tables
from memo.tokens import TokenCount, TokenCounter, encoding_for

pytestmark = pytest.mark.anyio


@pytest.fixture
def no_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memo.token_tables.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)


def tables_or_skip(encoding: str) -> Path:
    directory = find_tables(encoding)
    if directory is None:
        pytest.skip(f"no table of {encoding} on this machine")
    return directory


# Specification: 002.9
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


# Specification: 002.7
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


@contextmanager
def origin(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve files on loopback; yield the address and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            content = files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format: str, *args: object) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Stand in for the table of an encoding; return what an origin serves. tiktoken itself cannot load it."""
    content = b"IQ== 0\n" * 20_000
    files = (("encodings/cl100k_base.tiktoken", hashlib.sha256(content).hexdigest()),)
    monkeypatch.setitem(token_tables._FILES, "cl100k_base", files)
    return {"/encodings/cl100k_base.tiktoken": content}


# Specification: 002.7
@pytest.mark.usefixtures("no_tables")
def test_a_missing_table_is_downloaded_once_and_kept_in_tiktokens_format(
    small_table: dict[str, bytes], tmp_path: Path
) -> None:
    with origin(small_table) as (address, asked):
        for _ in range(2):
            assert (
                token_tables.download_tables("cl100k_base", tmp_path / "tables", origin=address) == tmp_path / "tables"
            )
    assert asked == list(small_table)
    name = hashlib.sha1(b"https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken").hexdigest()
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "tables").iterdir()] == [
        (name, *small_table.values())
    ]
    assert find_tables("cl100k_base", tmp_path / "tables") == tmp_path / "tables"


@pytest.mark.usefixtures("no_tables")
def test_a_download_goes_to_tiktokens_own_cache_by_default(
    small_table: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with origin(small_table) as (address, _):
        token_tables.download_tables("cl100k_base", origin=address)
    assert find_tables("cl100k_base") == tmp_path / "temporary" / "data-gym-cache"
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "mine"))
    with origin(small_table) as (address, _):
        token_tables.download_tables("cl100k_base", origin=address)
    assert find_tables("cl100k_base") == tmp_path / "mine"


@pytest.mark.usefixtures("no_tables")
@pytest.mark.parametrize(
    ("what", "served", "limit", "seconds"),
    [("missing", None, 1 << 24, 30), ("damaged", b"IQ== 0\n", 1 << 24, 30), ("too large", b"x" * 200_000, 99_999, 30),
     ("too slow", b"x" * 200_000, 1 << 24, -1)],
)  # fmt: skip
def test_a_download_that_fails_is_an_estimate_with_one_warning_and_leaves_nothing(
    what: str, served: bytes | None, limit: int, seconds: float, small_table: dict[str, bytes], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(token_tables, "MAX_TABLE_BYTES", limit)
    monkeypatch.setattr(token_tables, "DOWNLOAD_TIMEOUT_S", seconds)
    with origin({} if served is None else dict.fromkeys(small_table, served)) as (address, asked):
        counter = TokenCounter("cl100k_base", tmp_path / "tables", download=True, origin=address)
        assert [counter.count("x" * 8) for _ in range(3)] == [TokenCount(2, exact=False)] * 3
    assert len(asked) == 1
    assert list((tmp_path / "tables").iterdir()) == []
    (record,) = caplog.records
    assert "no table found and the download failed" in record.message


@pytest.mark.usefixtures("no_tables")
async def test_downloads_can_be_turned_off(
    small_table: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with origin(small_table) as (address, asked):
        assert not await TokenCounter("cl100k_base", tmp_path, download=False, origin=address).load()
        for value in ("0", "off", "False"):
            monkeypatch.setenv(token_tables.DOWNLOAD_VARIABLE, value)
            assert not await TokenCounter("cl100k_base", tmp_path, origin=address).load()
        assert asked == []
        assert token_tables.may_download() is False
        monkeypatch.delenv(token_tables.DOWNLOAD_VARIABLE)
        assert token_tables.may_download() is True


async def test_a_downloaded_table_counts_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_or_skip("cl100k_base")
    name = hashlib.sha1(b"https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken").hexdigest()
    monkeypatch.setattr("memo.token_tables.table_directories", lambda configured=None: iter([configured]))
    with origin({"/encodings/cl100k_base.tiktoken": (tables / name).read_bytes()}) as (address, _):
        counter = TokenCounter("cl100k_base", tmp_path, download=True, origin=address)
        assert await counter.load()
    assert counter.count("hello world, friend") == TokenCount(4, exact=True)


@pytest.mark.parametrize(
    ("name", "encoding"),
    [("o200k_base", "o200k_base"), ("gpt-4o", "o200k_base"), ("openai/gpt-4o-mini", "o200k_base"),
     ("gpt-4", "cl100k_base"), ("claude-sonnet-4-5", "claude"), ("anthropic/claude-3-haiku", "claude"),
     ("gemini-2.5-pro", "gemini"),
     ("llama-2-70b", "llama2"), ("estimate", "estimate"), ("gpt-oss-120b", "o200k_base")],
)  # fmt: skip
def test_a_model_has_an_encoding(name: str, encoding: str) -> None:
    assert encoding_for(name) == encoding


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(InvalidKey, match="cannot count tokens of my-model: it is not a known model; give an encoding"):
        encoding_for("my-model")
