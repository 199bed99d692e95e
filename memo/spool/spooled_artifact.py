"""SpooledArtifact: a read-only handle for a large tool result, and the queries that a model can run on it.

Every answer is bounded in bytes and says whether it was truncated; only `as_bytes` reads everything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.to_thread
import regex

from memo.errors import InvalidContent, TooLarge
from memo.messages import encode_json
from memo.spool.block_reader import BlockReader
from memo.spool.byte_store import SpoolReader
from memo.spool.json_path import parse_json, parse_path, select

LIMIT_BYTES = 32 * 1024
JSON_LIMIT_BYTES = 64 * 1024 * 1024
LINE_LIMIT_BYTES = 4096
"""Longer lines are cut: a minified file is a single line."""
GREP_BATCH_LINES = 2000
GREP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A bounded answer. `truncated` means that there was more."""

    text: str
    truncated: bool
    lines: int


class SpooledArtifact:
    """Queries one reader. Two artifacts are equal if they have the same id."""

    def __init__(self, reader: SpoolReader, id: str | None = None) -> None:
        if not isinstance(reader, SpoolReader):
            raise InvalidContent("cannot make an artifact: the reader is not a SpoolReader")
        found = id if id is not None else getattr(reader, "id", None)
        if not isinstance(found, str) or not found:
            raise InvalidContent("cannot make an artifact: no id given and the reader has none")
        self.id: str = found
        self.reader = reader

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpooledArtifact) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"SpooledArtifact({self.id!r})"

    async def byte_length(self) -> int:
        return await self.reader.byte_length()

    async def line_count(self) -> int:
        return await self.reader.line_count()

    async def as_bytes(self) -> bytes:
        return await self.reader.read_all()

    async def head(self, lines: int = 10, *, limit_bytes: int = LIMIT_BYTES) -> Excerpt:
        return await self.range(0, lines, limit_bytes=limit_bytes)

    async def tail(self, lines: int = 10, *, limit_bytes: int = LIMIT_BYTES) -> Excerpt:
        count = await self.line_count()
        return await self.range(max(0, count - max(lines, 0)), count, limit_bytes=limit_bytes)

    async def range(self, start: int, end: int | None = None, *, limit_bytes: int = LIMIT_BYTES) -> Excerpt:
        """Return the lines from `start` up to, not including, `end`, numbered from 0."""
        count = await self.line_count()
        last = count if end is None else min(end, count)
        return await _collect(self._lines(max(start, 0), last), limit_bytes)

    async def grep(
        self,
        pattern: str,
        *,
        ignore_case: bool = False,
        most: int = 100,
        limit_bytes: int = LIMIT_BYTES,
        timeout_s: float = GREP_TIMEOUT_S,
    ) -> Excerpt:
        """Return the matching lines, each as `number:text`. Raise InvalidContent if the pattern takes too long."""
        try:
            compiled = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
        except regex.error as error:
            raise InvalidContent(f"cannot search for this pattern: {error}") from None
        matches = self._matches(compiled, most + 1, timeout_s)
        found = await _collect(matches, limit_bytes)
        if found.lines <= most:
            return found
        return Excerpt(found.text.rpartition("\n")[0], truncated=True, lines=most)

    async def json_path(self, path: str, *, limit_bytes: int = LIMIT_BYTES) -> Excerpt:
        """Return the values that a JSON path selects, each as one line of JSON."""
        steps = parse_path(path)
        size_bytes = await self.byte_length()
        if size_bytes > JSON_LIMIT_BYTES:
            raise TooLarge(
                f"cannot query {self.id}: it has {size_bytes} bytes and the limit for JSON is {JSON_LIMIT_BYTES}"
            )
        content = await self.as_bytes()
        texts = await anyio.to_thread.run_sync(partial(_query, content, steps, self.id))
        return await _collect(_each(texts), limit_bytes, cut=True)

    async def _lines(self, start: int, end: int) -> AsyncIterator[str]:
        if isinstance(self.reader, BlockReader):
            async for line in self.reader.read_lines(start, end, LINE_LIMIT_BYTES + 1):
                yield _shortened(line.decode(errors="replace"), len(line))
            return
        for number in range(start, end):
            whole = await self.reader.line(number)
            if whole is not None:
                yield _shortened(whole, len(whole))

    async def _matches(self, pattern: regex.Pattern[str], most: int, timeout_s: float) -> AsyncIterator[str]:
        found = number = 0
        batch: list[str] = []
        count = await self.line_count()
        async for line in self._lines(0, count):
            batch.append(line)
            if len(batch) < GREP_BATCH_LINES and number + len(batch) < count:
                continue
            # In a thread with a deadline: some patterns take very long or do not finish.
            for index in await anyio.to_thread.run_sync(partial(_search, pattern, batch, timeout_s)):
                yield f"{number + index + 1}:{batch[index]}"
                found += 1
                if found == most:
                    return
            number += len(batch)
            batch = []


def _shortened(line: str, size_bytes: int) -> str:
    return line if size_bytes <= LINE_LIMIT_BYTES else f"{line[:LINE_LIMIT_BYTES]}… [line truncated]"


def _search(pattern: regex.Pattern[str], lines: list[str], timeout_s: float) -> list[int]:
    try:
        return [i for i, line in enumerate(lines) if pattern.search(line, timeout=timeout_s, concurrent=True)]
    except TimeoutError:
        raise InvalidContent(
            f"cannot search for this pattern: one line took longer than {timeout_s:g} s; use a simpler pattern"
        ) from None


def _query(content: bytes, steps: list[Any], id: str) -> list[str]:
    return [encode_json("value", value, JSON_LIMIT_BYTES) for value in select(parse_json(content, id), steps)]


async def _each(texts: list[str]) -> AsyncIterator[str]:
    for text in texts:
        yield text


async def _collect(lines: AsyncIterator[str], limit_bytes: int, *, cut: bool = False) -> Excerpt:
    """Join lines up to the limit. The first line is cut if it does not fit; with `cut`, so is any line."""
    taken: list[str] = []
    left = limit_bytes
    async for line in lines:
        size_bytes = len(line.encode()) + 1
        if size_bytes > left + 1:
            if cut or not taken:
                taken.append(line.encode()[: max(left, 0)].decode(errors="ignore"))
            return Excerpt("\n".join(taken), truncated=True, lines=len(taken))
        taken.append(line)
        left -= size_bytes
    return Excerpt("\n".join(taken), truncated=False, lines=len(taken))
