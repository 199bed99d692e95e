"""Token counts: exact if the encoding's table is available, otherwise estimated; a count says which.

Tables are read from disk only, in tiktoken's cache format: a configured directory, TIKTOKEN_CACHE_DIR, or an
installed package that contains them. Nothing here uses the network or counts on the event loop.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import tiktoken

from memo.messages import MESSAGE_OVERHEAD_TOKENS, message_text

_log = logging.getLogger("memo.tokens")

_HOST = "https://openaipublic.blob.core.windows.net"
# The files that tiktoken looks up in its cache, and their sha256. A cached file is named by the sha1 of its URL.
_TABLES: dict[str, tuple[tuple[str, str], ...]] = {
    "gpt2": (
        (f"{_HOST}/gpt-2/encodings/main/vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
        (
            f"{_HOST}/gpt-2/encodings/main/encoder.json",
            "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
        ),
    ),
    "r50k_base": (
        (f"{_HOST}/encodings/r50k_base.tiktoken", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"),
    ),
    "p50k_base": (
        (f"{_HOST}/encodings/p50k_base.tiktoken", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"),
    ),
    "p50k_edit": (
        (f"{_HOST}/encodings/p50k_base.tiktoken", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"),
    ),
    "cl100k_base": (
        (f"{_HOST}/encodings/cl100k_base.tiktoken", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"),
    ),
    "o200k_base": (
        (f"{_HOST}/encodings/o200k_base.tiktoken", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
    ),
}
EXACT_ENCODINGS = tuple(_TABLES)
_CHARS_PER_TOKEN = {"claude": 3.5}


@dataclass(frozen=True, slots=True)
class TokenCount:
    tokens: int
    exact: bool


def estimate_tokens(text: str, encoding: str = "estimate") -> int:
    """Estimate: characters / 3.5 for claude, / 4 for every other encoding, rounded up."""
    return math.ceil(len(text) / _CHARS_PER_TOKEN.get(encoding, 4))


def table_directories(configured: Path | None = None) -> Iterator[Path]:
    """Yield the directories that may hold tables, the configured one first."""
    if configured is not None:
        yield configured
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    spec = importlib.util.find_spec("litellm")  # located, not imported: an import costs seconds and megabytes
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield Path(place) / "litellm_core_utils" / "tokenizers"


def find_tables(encoding: str, configured: Path | None = None) -> Path | None:
    """Return the first directory that has every table of the encoding undamaged."""
    files = _TABLES[encoding]
    return next((d for d in table_directories(configured) if all(_is_intact(d, *file) for file in files)), None)


def _is_intact(directory: Path, address: str, sha256: str) -> bool:
    path = directory / hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


class TokenCounter:
    """Counts with one encoding and owns its table, which is loaded at the first count, in the counting thread.

    An encoding without a table is estimated, with one warning.
    """

    # tiktoken reads its cache directory from the environment of the process, so only one load may run at a time.
    _environment = threading.Lock()

    def __init__(self, encoding: str = "estimate", tables: Path | None = None) -> None:
        self.encoding = encoding
        self._tables = tables
        self._lock = threading.Lock()
        self._table: tiktoken.Encoding | None = None
        self._settled = encoding not in _TABLES

    @property
    def may_be_exact(self) -> bool:
        """False once every count is known to be an estimate, which is cheap to make."""
        return not self._settled or self._table is not None

    def count(self, text: str) -> TokenCount:
        """Count in this thread. On the event loop use `count_all`."""
        table = self._load()
        if table is None:
            return TokenCount(estimate_tokens(text, self.encoding), exact=False)
        return TokenCount(len(table.encode_ordinary(text)), exact=True)

    def count_message(self, message: Mapping[str, Any]) -> TokenCount:
        text, media_tokens = message_text(message)
        counted = self.count(text)
        tokens = counted.tokens + media_tokens + MESSAGE_OVERHEAD_TOKENS
        return TokenCount(tokens, counted.exact and media_tokens == 0)

    async def count_all(self, texts: Iterable[str]) -> list[TokenCount]:
        return await self._off_loop(self.count, list(texts))

    async def count_messages(self, messages: Iterable[Mapping[str, Any]]) -> list[TokenCount]:
        return await self._off_loop(self.count_message, list(messages))

    async def _off_loop(self, count: Any, values: list[Any]) -> list[TokenCount]:
        if not self.may_be_exact:
            return [count(value) for value in values]  # an estimate costs less than a thread
        return await anyio.to_thread.run_sync(partial(_count_each, count, values))

    def _load(self) -> tiktoken.Encoding | None:
        if self._settled:
            return self._table
        with self._lock:
            if not self._settled:
                self._table = self._load_table()
                self._settled = True
        return self._table

    def _load_table(self) -> tiktoken.Encoding | None:
        directory = find_tables(self.encoding, self._tables)
        if directory is None:
            _log.warning(
                "cannot count %s tokens exactly: no table found, estimating instead; set TIKTOKEN_CACHE_DIR",
                self.encoding,
            )
            return None
        with self._environment:
            before = os.environ.get("TIKTOKEN_CACHE_DIR")
            os.environ["TIKTOKEN_CACHE_DIR"] = str(directory)
            try:
                return tiktoken.get_encoding(self.encoding)
            finally:
                if before is None:
                    del os.environ["TIKTOKEN_CACHE_DIR"]
                else:
                    os.environ["TIKTOKEN_CACHE_DIR"] = before


def _count_each(count: Any, values: list[Any]) -> list[TokenCount]:
    return [count(value) for value in values]
