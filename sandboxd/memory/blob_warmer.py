"""BlobWarmer: puts texts that were just written, and that no mirror shows yet, into the blob cache.

The session's next mirror then links them without reading the store. Best effort: what arrives faster than it can be
cached is skipped.
"""

from __future__ import annotations

from collections import deque

import anyio
import structlog

from memo.ids import TenantId
from sandboxd.errors import HostFull
from sandboxd.memory.mirror import Mirrors
from sandboxd.memory.text import Text

_log = structlog.get_logger()

_MOST_BYTES = 1024 * 1024  # a larger text is read from the store when it is needed
_MOST_WAITING_BYTES = 8 * 1024 * 1024
_BATCH = 50
_PRUNE_PART = 8  # prune after adding this fraction of the cache's bound


class BlobWarmer:
    def __init__(self, mirrors: Mirrors, blob_bytes: int) -> None:
        self._mirrors = mirrors
        self._blob_bytes = blob_bytes
        self._queue: deque[tuple[TenantId, Text]] = deque()
        self._queued_bytes = 0
        self._added_bytes = 0
        self._is_due = anyio.Event()

    def __len__(self) -> int:
        """How many texts are queued."""
        return len(self._queue)

    def offer(self, tenant: TenantId, text: Text) -> None:
        """Cache a text soon, unless the queue is full. The store has it, so nothing is lost either way."""
        size_bytes = len(text.encoded)
        if size_bytes > _MOST_BYTES or self._queued_bytes + size_bytes > _MOST_WAITING_BYTES:
            return
        self._queue.append((tenant, text))
        self._queued_bytes += size_bytes
        self._is_due.set()

    async def run(self) -> None:
        while True:
            await self._is_due.wait()
            self._is_due = anyio.Event()
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
                self._queued_bytes -= sum(len(text.encoded) for _, text in batch)
                try:
                    await self._mirrors.in_thread(self._put, batch)
                except HostFull as error:
                    _log.warning("cannot add texts to the blob cache", error=str(error))

    def _put(self, texts: list[tuple[TenantId, Text]]) -> None:
        blobs = self._mirrors.blobs
        for tenant, text in texts:
            blobs.put(tenant, text.sha256, text.encoded, is_awaited=False)
            self._added_bytes += len(text.encoded)
        if self._added_bytes * _PRUNE_PART > self._blob_bytes:
            self._added_bytes = 0
            blobs.prune(self._blob_bytes)
