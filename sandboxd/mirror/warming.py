"""Blobs of texts that were just written and that no mirror shows yet, made while nobody waits for them.

The next mirror of that session links them and asks the store for nothing. It is only a cache: what comes faster than
it can be kept is left out.
"""

from __future__ import annotations

from collections import deque

import anyio
import structlog

from memo.ids import TenantId
from sandboxd.errors import HostFull
from sandboxd.mirror.live import Mirrors
from sandboxd.mirror.texts import Text

_log = structlog.get_logger()

_MOST_BYTES = 1024 * 1024  # what is larger is read from the store when it is needed
_MOST_WAITING_BYTES = 8 * 1024 * 1024
_AT_ONCE = 50
_PRUNE_PART = 8  # of the cache's size: so much more, and it is time to see what must go


class Warmer:
    def __init__(self, mirrors: Mirrors, blob_bytes: int) -> None:
        self._mirrors = mirrors
        self._blob_bytes = blob_bytes
        self._waiting: deque[tuple[TenantId, Text]] = deque()
        self._waiting_bytes = 0
        self._kept_bytes = 0
        self._is_due = anyio.Event()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def offer(self, tenant: TenantId, text: Text) -> None:
        """Keep a text soon, unless too many wait already. The store has it: nothing is lost either way."""
        size_bytes = len(text.encoded)
        if size_bytes > _MOST_BYTES or self._waiting_bytes + size_bytes > _MOST_WAITING_BYTES:
            return
        self._waiting.append((tenant, text))
        self._waiting_bytes += size_bytes
        self._is_due.set()

    async def run(self) -> None:
        while True:
            await self._is_due.wait()
            self._is_due = anyio.Event()
            while self._waiting:
                some = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
                self._waiting_bytes -= sum(len(text.encoded) for _, text in some)
                try:
                    await self._mirrors.in_thread(self._keep, some)
                except HostFull as error:
                    _log.warning("cannot keep texts in the blob cache", error=str(error))

    def _keep(self, texts: list[tuple[TenantId, Text]]) -> None:
        blobs = self._mirrors.blobs
        for tenant, text in texts:
            blobs.put(tenant, text.sha256, text.encoded, is_awaited=False)
            self._kept_bytes += len(text.encoded)
        if self._kept_bytes * _PRUNE_PART > self._blob_bytes:
            self._kept_bytes = 0
            blobs.prune(self._blob_bytes)
