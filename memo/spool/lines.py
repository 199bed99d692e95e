"""Lines of a byte source: an index that is built once, in one pass, and stays small however many lines there are.

The index keeps the place of every n-th line. When it is full, n doubles and every other place is dropped, so that
memory is constant and a line is found by reading a bounded stretch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import AsyncIterator

import anyio

from memo.spool.contract import BLOCK_BYTES, ByteStore

MOST_PLACES = 16_384


class LineIndex:
    def __init__(self) -> None:
        self.stride = 1
        self.places = array("Q", [0])
        self.newlines = 0
        self.size_bytes = 0
        self._ends_open = False

    def feed(self, block: bytes) -> None:
        """Take the next block."""
        found = -1
        while (found := block.find(b"\n", found + 1)) >= 0:
            self.newlines += 1
            if self.newlines % self.stride == 0:
                self._add(self.size_bytes + found + 1)
        self.size_bytes += len(block)
        if block:
            self._ends_open = not block.endswith(b"\n")

    def _add(self, place: int) -> None:
        self.places.append(place)
        if len(self.places) > MOST_PLACES:
            self.places = self.places[::2]
            self.stride *= 2

    @property
    def line_count(self) -> int:
        return self.newlines + self._ends_open

    def before(self, line: int) -> tuple[int, int]:
        """Return a line at or before the given one whose place is known, and that place."""
        slot = min(line // self.stride, len(self.places) - 1)
        return slot * self.stride, self.places[slot]


class BlockReader(ABC):
    """Lines, ranges and streams over any source of ranges. Owns the index; a source implements two methods.

    `spool` is where the bytes are, if they are in one: who would copy them there can save the work.
    """

    def __init__(self, id: str, spool: ByteStore | None = None) -> None:
        self.id = id
        self.spool = spool
        self._index: LineIndex | None = None
        self._indexing = anyio.Lock()

    @abstractmethod
    async def byte_length(self) -> int: ...

    @abstractmethod
    async def read_range(self, start: int, length: int) -> bytes: ...

    async def stream(self) -> AsyncIterator[bytes]:
        place = 0
        while block := await self.read_range(place, BLOCK_BYTES):
            yield block
            place += len(block)

    async def read_all(self) -> bytes:
        return await self.read_range(0, await self.byte_length())

    async def line_count(self) -> int:
        return (await self._indexed()).line_count

    async def line(self, index: int) -> str | None:
        found = await self.read_line(index)
        return None if found is None else found.decode(errors="replace")

    async def read_line(self, index: int, limit_bytes: int | None = None) -> bytes | None:
        """Return the bytes of a line without its end, no more than the limit of them; None if there is no such line."""
        async for line in self.read_lines(index, index + 1, limit_bytes):
            return line
        return None

    async def read_lines(self, start: int, end: int, limit_bytes: int | None = None) -> AsyncIterator[bytes]:
        """Yield the lines from `start` to before `end`. Of a line longer than the limit only its beginning is kept."""
        lines = await self._indexed()
        if start < 0 or start >= lines.line_count:
            return
        end = min(end, lines.line_count)
        number, place = lines.before(start)
        held = bytearray()
        while number < end:
            block = await self.read_range(place, BLOCK_BYTES)
            if not block and not held:
                return
            place += len(block)
            done = 0
            while number < end and (found := block.find(b"\n", done)) >= 0:
                if number >= start:
                    _hold(held, block, done, found, limit_bytes)
                    yield _without_end(held)
                    held.clear()
                number += 1
                done = found + 1
            if not block:  # the last line has no end
                yield bytes(held)
                return
            if number >= start:
                _hold(held, block, done, len(block), limit_bytes)

    async def _indexed(self) -> LineIndex:
        async with self._indexing:
            if self._index is None:
                index = LineIndex()
                async for block in self.stream():
                    index.feed(block)
                self._index = index
        return self._index


def _hold(held: bytearray, block: bytes, start: int, end: int, limit_bytes: int | None) -> None:
    if limit_bytes is not None:
        end = min(end, start + max(0, limit_bytes - len(held)))
    held += block[start:end]


def _without_end(line: bytearray) -> bytes:
    return bytes(line[:-1] if line.endswith(b"\r") else line)
