"""StoreSpool: bytes in any store that keeps records, as numbered chunks and one record that marks them complete.

Chunks belong to a generation, and a reader reads only its own. A draft record exists from before the first chunk of a
generation is written until the last one is deleted, so the chunks that a crash leaves behind are always found.
"""

from __future__ import annotations

import base64
import binascii
import time
import uuid
from typing import Any

import anyio

from memo.errors import Corrupt
from memo.records import Delete, Put, RecordKey, RecordScope, Value, require_records
from memo.spool.block_reader import BlockReader
from memo.spool.byte_store import SpoolBytes, blocks_of, replaced_or_deleted

CHUNK_BYTES = 256 * 1024
ABANDONED_AFTER_S = 3600
"""The writer of a draft this old is assumed dead."""
_DELETE_BATCH = 64


class StoreSpool:
    """The spools of one tenant in one place, such as `media:s1`."""

    def __init__(self, store: object, tenant: str = "local", place: str = "spool") -> None:
        self._store = require_records(store)
        self._tenant = tenant
        self._spools = RecordScope.of(tenant, "spool", place)
        self._drafts = RecordScope.of(tenant, "spool.draft", place)
        self._replacing = anyio.Lock()

    async def write(self, id: str, data: SpoolBytes) -> StoreReader:
        key, generation = self._spools.key(id), uuid.uuid4().hex
        await self._drop_abandoned(id)
        await self._store.apply_records([self._draft(id, generation, time.time())])
        number = size_bytes = 0
        async for block in blocks_of(data, CHUNK_BYTES):
            body = {"bytes": base64.b64encode(block).decode()}
            await self._store.apply_records([Put(self._chunk(generation, number), body)])
            number, size_bytes = number + 1, size_bytes + len(block)
        value = {"generation": generation, "size_bytes": size_bytes}
        async with self._replacing:
            before = await self._store.read_record(key)
            # One transaction makes the new bytes current and turns the old ones into a draft, which is removed later.
            retired = self._retire(id, before.value if before else None)
            await self._store.apply_records([Put(key, value), Delete(self._drafts.key(generation)), *retired])
        await self._drop_abandoned(id)
        return self._reader(id, value)

    async def read(self, id: str) -> StoreReader | None:
        record = await self._store.read_record(self._spools.key(id))
        return None if record is None else self._reader(id, record.value)

    async def delete(self, id: str) -> None:
        key = self._spools.key(id)
        async with self._replacing:
            record = await self._store.read_record(key)
            if record is not None:
                await self._store.apply_records([Delete(key), *self._retire(id, record.value)])
        await self._drop_abandoned(id)

    async def read_chunk(self, id: str, generation: str, number: int) -> bytes:
        record = await self._store.read_record(self._chunk(generation, number))
        if record is None:
            raise replaced_or_deleted(id)
        try:
            return base64.b64decode(record.value["bytes"], validate=True)
        except (KeyError, TypeError, binascii.Error):
            raise Corrupt(f"cannot read spool {id}: chunk {number} is damaged") from None

    def _draft(self, id: str, generation: str, at_s: float) -> Put:
        return Put(self._drafts.key(generation), {"at_s": at_s}, group=id)

    def _retire(self, id: str, value: Value | None) -> list[Put]:
        return [] if value is None else [self._draft(id, _parse(id, value)[0], 0)]

    async def _drop_abandoned(self, id: str) -> None:
        for draft in await self._store.list_records(self._drafts, group=id):
            at_s = draft.value.get("at_s", 0)
            if time.time() - at_s > ABANDONED_AFTER_S:
                await self._drop(draft.id)

    async def _drop(self, generation: str) -> None:
        """Delete the chunks from last to first, so that the chunks left by a crash are still numbered from 0."""
        end = await self._count(generation)
        while end > 0:
            start = max(0, end - _DELETE_BATCH)
            await self._store.apply_records([Delete(self._chunk(generation, n)) for n in range(start, end)])
            end = start
        await self._store.apply_records([Delete(self._drafts.key(generation))])

    async def _count(self, generation: str) -> int:
        """Count the chunks by doubling and then bisecting, without reading all of them."""

        async def exists(number: int) -> bool:
            return await self._store.read_record(self._chunk(generation, number)) is not None

        low, high = 0, 1  # the first `low` chunks exist; chunk `high - 1` is probed next
        while await exists(high - 1):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if await exists(middle - 1) else (low, middle)
        return low

    def _chunk(self, generation: str, number: int) -> RecordKey:
        return RecordScope.of(self._tenant, "spool.chunk", generation).key(f"{number:012d}")

    def _reader(self, id: str, value: Value) -> StoreReader:
        generation, size_bytes = _parse(id, value)
        return StoreReader(self, id, generation, size_bytes)


class StoreReader(BlockReader):
    def __init__(self, spool: StoreSpool, id: str, generation: str, size_bytes: int) -> None:
        super().__init__(id, spool)
        self._read_chunk = spool.read_chunk
        self._generation = generation
        self._size_bytes = size_bytes

    async def byte_length(self) -> int:
        return self._size_bytes

    async def read_range(self, start: int, length: int) -> bytes:
        start = max(start, 0)
        end = min(start + max(length, 0), self._size_bytes)
        if start >= end:
            return b""
        first, last = start // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
        joined = b"".join([await self._read_chunk(self.id, self._generation, n) for n in range(first, last + 1)])
        return joined[start - first * CHUNK_BYTES : end - first * CHUNK_BYTES]


def _parse(id: str, value: dict[str, Any]) -> tuple[str, int]:
    generation, size_bytes = value.get("generation"), value.get("size_bytes")
    if not isinstance(generation, str) or not isinstance(size_bytes, int):
        raise Corrupt(f"cannot read spool {id}: its record is damaged")
    return generation, size_bytes
