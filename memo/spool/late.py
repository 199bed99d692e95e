"""A reader of bytes that are looked for when they are first read: loading a record must not open what it names."""

from __future__ import annotations

from collections.abc import AsyncIterator

from memo.errors import Absent
from memo.spool.contract import ByteStore, SpoolReader
from memo.spool.lines import BlockReader


class LateReader(BlockReader):
    def __init__(self, spool: ByteStore, id: str) -> None:
        super().__init__(id, spool)
        self._spool = spool
        self._found: SpoolReader | None = None

    async def byte_length(self) -> int:
        return await (await self._reader()).byte_length()

    async def read_range(self, start: int, length: int) -> bytes:
        reader = await self._reader()
        if isinstance(reader, BlockReader):
            return await reader.read_range(start, length)
        return (await reader.read_all())[max(start, 0) : max(start, 0) + max(length, 0)]

    async def stream(self) -> AsyncIterator[bytes]:
        reader = await self._reader()
        if not isinstance(reader, BlockReader):
            yield await reader.read_all()
            return
        async for block in reader.stream():
            yield block

    async def _reader(self) -> SpoolReader:
        if self._found is None:
            self._found = await self._spool.read(self.id)
            if self._found is None:
                raise Absent(f"cannot read the bytes of {self.id}: there are none in the store")
        return self._found
