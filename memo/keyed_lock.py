"""KeyedLock: one lock for each key, made when it is first needed and dropped with its last user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio

K = TypeVar("K", bound=Hashable)


class KeyedLock(Generic[K]):
    """Serialise the tasks of one event loop that work on the same key; other keys are not delayed."""

    def __init__(self) -> None:
        self._locks: dict[K, tuple[anyio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, key: K) -> AsyncIterator[None]:
        lock, users = self._locks.get(key, (anyio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)
