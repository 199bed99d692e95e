"""Token counts: exact if the encoding's table is available, otherwise estimated; a count says which.

`token_tables` finds and downloads the tables. Nothing here counts on the event loop.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import tiktoken

from memo.errors import InvalidKey
from memo.messages import MESSAGE_OVERHEAD_TOKENS, message_text
from memo.token_tables import EXACT_ENCODINGS, ORIGIN, download_tables, find_tables, may_download

_log = logging.getLogger("memo.tokens")

_CHARS_PER_TOKEN = {"claude": 3.5}
_ESTIMATED = ("claude", "gemini", "llama2", "estimate")
_FAMILIES = {"claude": "claude", "gemini": "gemini", "llama2": "llama2", "llama-2": "llama2"}


@dataclass(frozen=True, slots=True)
class TokenCount:
    tokens: int
    exact: bool


def estimate_tokens(text: str, encoding: str = "estimate") -> int:
    """Estimate: characters / 3.5 for claude, / 4 for every other encoding, rounded up."""
    return math.ceil(len(text) / _CHARS_PER_TOKEN.get(encoding, 4))


def encoding_for(name: str) -> str:
    """Return the encoding of a model, or the encoding itself. Raise InvalidKey if it is neither.

    Claude, Gemini and Llama 2 have no exact table, so their counts are estimates.
    """
    model = name.strip().rpartition("/")[2].lower()  # a router's name for a model, such as openai/gpt-4o
    if model in (*EXACT_ENCODINGS, *_ESTIMATED):
        return model
    for family, encoding in _FAMILIES.items():
        if model.startswith(family):
            return encoding
    try:
        encoding = tiktoken.encoding_name_for_model(model)
    except KeyError:
        encoding = ""
    if encoding == "o200k_harmony":  # o200k_base with more special tokens, and text has none
        encoding = "o200k_base"
    if encoding not in EXACT_ENCODINGS:
        raise InvalidKey(
            f"cannot count tokens of {name}: it is not a known model; give an encoding: "
            f"{', '.join((*EXACT_ENCODINGS, *_ESTIMATED))}"
        )
    return encoding


class TokenCounter:
    """Counts with one encoding and owns its table, which is loaded at the first count, in the counting thread.

    A table that is nowhere on this host is downloaded once, unless `download` is false or, if it is not given, the
    environment forbids it. An encoding without a table is estimated, with one warning.
    """

    # tiktoken reads its cache directory from the environment of the process, so only one load may run at a time.
    _environment = threading.Lock()

    def __init__(
        self,
        encoding: str = "estimate",
        tables: Path | None = None,
        *,
        download: bool | None = None,
        origin: str = ORIGIN,
    ) -> None:
        self.encoding = encoding
        self._tables = tables
        self._may_download = may_download() if download is None else download
        self._origin = origin
        self._lock = threading.Lock()
        self._table: tiktoken.Encoding | None = None
        self._settled = encoding not in EXACT_ENCODINGS

    @property
    def may_be_exact(self) -> bool:
        """False once every count is known to be an estimate, which is cheap to make."""
        return not self._settled or self._table is not None

    async def load(self) -> bool:
        """Load the table now, not at the first count; return whether counts will be exact."""
        if not self._settled:
            await anyio.to_thread.run_sync(self._load)
        return self.may_be_exact

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
        directory, reason = self._table_directory()
        if directory is None:
            _log.warning(
                "cannot count %s tokens exactly: %s, estimating instead; set TIKTOKEN_CACHE_DIR", self.encoding, reason
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

    def _table_directory(self) -> tuple[Path | None, str]:
        found = find_tables(self.encoding, self._tables)
        if found is not None or not self._may_download:
            return found, "no table found"
        try:
            return download_tables(self.encoding, self._tables, origin=self._origin), ""
        except OSError as error:  # requests' errors are OSErrors too
            return None, f"no table found and the download failed ({type(error).__name__})"


def _count_each(count: Any, values: list[Any]) -> list[TokenCount]:
    return [count(value) for value in values]
