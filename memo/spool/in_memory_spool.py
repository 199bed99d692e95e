"""InMemorySpool: bytes in the memory of this process, for tests and small data. Nothing survives a restart."""

from __future__ import annotations

from anyio.lowlevel import checkpoint

from memo.records import checked_name
from memo.spool.block_reader import BlockReader
from memo.spool.byte_store import SpoolBytes, blocks_of


class BytesReader(BlockReader):
    """Reads bytes that are already in memory."""

    def __init__(self, content: bytes, id: str = "bytes", spool: InMemorySpool | None = None) -> None:
        super().__init__(id, spool)
        self._content = content

    async def byte_length(self) -> int:
        return len(self._content)

    async def read_range(self, start: int, length: int) -> bytes:
        await checkpoint()
        return self._content[max(start, 0) : max(start, 0) + max(length, 0)]


class InMemorySpool:
    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    async def write(self, id: str, data: SpoolBytes) -> BytesReader:
        checked_name("spool id", id)
        content = b"".join([block async for block in blocks_of(data)])
        self._kept[id] = content
        return BytesReader(content, id, self)

    async def read(self, id: str) -> BytesReader | None:
        await checkpoint()
        content = self._kept.get(id)
        return None if content is None else BytesReader(content, id, self)

    async def delete(self, id: str) -> None:
        await checkpoint()
        self._kept.pop(id, None)
