"""Turns: one at a time for each key, within this process. Knows nothing of what is done in a turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from sandboxd.mirror.answers import Key


class Turns:
    """One at a time for each key. A key that nobody waits for costs nothing."""

    def __init__(self) -> None:
        self._locks: dict[Key, tuple[anyio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, key: Key) -> AsyncIterator[None]:
        lock, waiting = self._locks.get(key, (None, 0))
        lock = lock or anyio.Lock()
        self._locks[key] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._locks[key]
            if waiting == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, waiting - 1)
