"""Turns: of the tasks of one loop that want to write to one owner, one at a time goes to a thread.

The file lock would serialise them as well, but each would hold a thread while it waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from memo.stores.filesystem.layout import Owner


class Turns:
    def __init__(self) -> None:
        self._waiting: dict[Owner, tuple[anyio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, owner: Owner) -> AsyncIterator[None]:
        lock, count = self._waiting.get(owner, (anyio.Lock(), 0))
        self._waiting[owner] = (lock, count + 1)
        try:
            async with lock:
                yield
        finally:
            lock, count = self._waiting[owner]
            if count == 1:
                del self._waiting[owner]
            else:
                self._waiting[owner] = (lock, count - 1)
