"""KeyLocks: the locks under which mirrors are changed, one for every artifact and for every directory of documents.

Documents that share the first segment of their names share a lock, because only such names can exclude each other: a
document `a` and a document `a/b` cannot both be shown. No task holds two of these locks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from memo.documents import DocumentKey, DocumentName
from memo.keyed_lock import KeyedLock
from sandboxd.memory.outcomes import Key


class KeyLocks:
    def __init__(self) -> None:
        self._locks = KeyedLock[Key]()

    @asynccontextmanager
    async def hold(self, key: Key) -> AsyncIterator[None]:
        if isinstance(key, DocumentKey) and "/" in key.name:
            key = replace(key, name=DocumentName(key.name.segments[0]))
        async with self._locks.hold(key):
            yield
