"""BlockReader: lines, ranges and streams over any source of byte ranges, with a line index of bounded size.

The index holds the offset of every n-th line. When it is full, n doubles and every other offset is dropped, so memory
use stays constant. A line is found by reading a bounded range.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import AsyncIterator

import anyio

from memo.errors import Absent
from memo.spool.byte_store import BLOCK_BYTES, ByteStore, SpoolReader

MAX_OFFSETS = 16_384


class LineIndex:
    def __init__(self) -> None:
        self.stride = 1
        self.offsets = array("Q", [0])
        self.newlines = 0
        self.size_bytes = 0
        self._has_open_line = False

    def feed(self, block: bytes) -> None:
        """Index the next block."""
        found = -1
        while (found := block.find(b"\n", found + 1)) >= 0:
            self.newlines += 1
            if self.newlines % self.stride == 0:
                self._add(self.size_bytes + found + 1)
        self.size_bytes += len(block)
        if block:
            self._has_open_line = not block.endswith(b"\n")

    def _add(self, offset: int) -> None:
        self.offsets.append(offset)
        if len(self.offsets) > MAX_OFFSETS:
            self.offsets = self.offsets[::2]
            self.stride *= 2

    @property
    def line_count(self) -> int:
        return self.newlines + self._has_open_line

    def before(self, line: int) -> tuple[int, int]:
        """Return the nearest indexed line at or before the given one, and its offset."""
        slot = min(line // self.stride, len(self.offsets) - 1)
        return slot * self.stride, self.offsets[slot]


class BlockReader(ABC):
    """Owns the line index; a subclass implements `byte_length` and `read_range`.

    `spool` is the byte store that already holds these bytes, if any, so that a copy into it can be skipped.
    """

    def __init__(self, id: str, spool: ByteStore | None = None) -> None:
        self.id = id
        self.spool = spool
        self._index: LineIndex | None = None
        self._index_lock = anyio.Lock()

    @abstractmethod
    async def byte_length(self) -> int: ...

    @abstractmethod
    async def read_range(self, start: int, length: int) -> bytes: ...

    async def stream(self) -> AsyncIterator[bytes]:
        offset = 0
        while block := await self.read_range(offset, BLOCK_BYTES):
            yield block
            offset += len(block)

    async def read_all(self) -> bytes:
        return await self.read_range(0, await self.byte_length())

    async def line_count(self) -> int:
        return (await self._indexed()).line_count

    async def line(self, index: int) -> str | None:
        found = await self.read_line(index)
        return None if found is None else found.decode(errors="replace")

    async def read_line(self, index: int, limit_bytes: int | None = None) -> bytes | None:
        """Return a line without its ending, cut at the limit, or None if there is no such line."""
        async for line in self.read_lines(index, index + 1, limit_bytes):
            return line
        return None

    async def read_lines(self, start: int, end: int, limit_bytes: int | None = None) -> AsyncIterator[bytes]:
        """Yield the lines from `start` up to, not including, `end`, each cut at the limit."""
        lines = await self._indexed()
        if start < 0 or start >= lines.line_count:
            return
        end = min(end, lines.line_count)
        number, offset = lines.before(start)
        held = bytearray()
        while number < end:
            block = await self.read_range(offset, BLOCK_BYTES)
            if not block and not held:
                return
            offset += len(block)
            done = 0
            while number < end and (found := block.find(b"\n", done)) >= 0:
                if number >= start:
                    _hold(held, block, done, found, limit_bytes)
                    yield _without_ending(held)
                    held.clear()
                number += 1
                done = found + 1
            if not block:  # the last line has no line ending
                yield bytes(held)
                return
            if number >= start:
                _hold(held, block, done, len(block), limit_bytes)

    async def _indexed(self) -> LineIndex:
        async with self._index_lock:
            if self._index is None:
                index = LineIndex()
                async for block in self.stream():
                    index.feed(block)
                self._index = index
        return self._index


class LazyReader(BlockReader):
    """Opens the bytes at the first read, so that loading a record does not open everything it refers to."""

    def __init__(self, spool: ByteStore, id: str) -> None:
        super().__init__(id, spool)
        self._spool = spool
        self._opened: SpoolReader | None = None

    async def byte_length(self) -> int:
        return await (await self._open()).byte_length()

    async def read_range(self, start: int, length: int) -> bytes:
        reader = await self._open()
        if isinstance(reader, BlockReader):
            return await reader.read_range(start, length)
        return (await reader.read_all())[max(start, 0) : max(start, 0) + max(length, 0)]

    async def stream(self) -> AsyncIterator[bytes]:
        reader = await self._open()
        if not isinstance(reader, BlockReader):
            yield await reader.read_all()
            return
        async for block in reader.stream():
            yield block

    async def _open(self) -> SpoolReader:
        if self._opened is None:
            self._opened = await self._spool.read(self.id)
            if self._opened is None:
                raise Absent(f"cannot read the bytes of {self.id}: the store does not have them")
        return self._opened


def _hold(held: bytearray, block: bytes, start: int, end: int, limit_bytes: int | None) -> None:
    if limit_bytes is not None:
        end = min(end, start + max(0, limit_bytes - len(held)))
    held += block[start:end]


def _without_ending(line: bytearray) -> bytes:
    return bytes(line[:-1] if line.endswith(b"\r") else line)
