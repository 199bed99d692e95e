"""The change feed: every committed change once, in commit order, with key and revision.

A change carries no content: who hears of it reads the store, so a late hint can never install old text. A cursor is
the position of one change; reading on from a cursor misses nothing and repeats nothing, also after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self

from memo.documents import ArtifactKey, DocumentKey


@dataclass(frozen=True, slots=True)
class Change:
    cursor: int
    key: DocumentKey | ArtifactKey
    revision: int
    sha256: str
    at: datetime


class ChangeFeed(Protocol):
    def changes(self, since: int = 0) -> AsyncIterator[Change]:
        """Yield every change after the cursor `since` (0: from the first), then wait for more. Never ends by itself."""

    async def last_change(self) -> int:
        """Return the cursor of the newest committed change, 0 if there is none."""


class Listener(Protocol):
    """Hears that something may have been committed. It may wake for nothing; it never sleeps through a change."""

    async def wait(self) -> None: ...

    def close(self) -> None: ...


ReadChanges = Callable[[int, int], Awaitable[list[Change]]]


class ChangeStream(AsyncIterator[Change]):
    """One reader of a feed: reads what is committed, and waits for the bell when there is nothing.

    A cancelled `anext` loses nothing; the stream can be read on. Close it with `aclose` or `async with`.
    """

    PAGE = 500

    def __init__(self, read: ReadChanges, listen: Callable[[], Listener], since: int) -> None:
        self._read = read
        self._listener = listen()  # before the first read, so that no commit falls between reading and listening
        self._cursor = since
        self._page: deque[Change] = deque()
        self._closed = False

    async def __anext__(self) -> Change:
        while not self._page:
            page = [] if self._closed else await self._read(self._cursor, self.PAGE)
            if self._closed:  # before, or by another task meanwhile
                raise StopAsyncIteration
            self._page.extend(page)
            if not page:
                await self._listener.wait()
        change = self._page.popleft()
        self._cursor = change.cursor
        return change

    async def aclose(self) -> None:
        self._closed = True
        self._page.clear()
        self._listener.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
