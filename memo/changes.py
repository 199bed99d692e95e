"""The change feed: every committed change once, in commit order, with its key and revision.

A change carries no content: a consumer reads the store, so a late change can never install old text. A cursor is the
position of one change; resuming from a cursor misses nothing and repeats nothing, even after a restart.
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
    deleted: bool = False
    """Whether this revision deleted the document. A move is a deletion and a new revision under the other name."""


class ChangeFeed(Protocol):
    def changes(self, since: int = 0) -> AsyncIterator[Change]:
        """Yield every change after the cursor `since` (0: from the first), then wait for more. Never ends."""

    async def last_change(self) -> int:
        """Return the cursor of the newest committed change, 0 if there are no changes."""


class Listener(Protocol):
    """Waits for commits. It may wake without one; it never misses one."""

    async def wait(self) -> None: ...

    def close(self) -> None: ...


ReadChanges = Callable[[int, int], Awaitable[list[Change]]]


class ChangeStream(AsyncIterator[Change]):
    """One reader of a feed: reads what is committed, then waits to be notified.

    A cancelled `anext` loses nothing, and reading can continue. Close it with `aclose` or `async with`.
    """

    PAGE = 500

    def __init__(self, read: ReadChanges, listen: Callable[[], Listener], since: int) -> None:
        self._read = read
        self._listener = listen()  # before the first read, so that no commit in between is missed
        self._cursor = since
        self._page: deque[Change] = deque()
        self._closed = False

    async def __anext__(self) -> Change:
        while not self._page:
            page = [] if self._closed else await self._read(self._cursor, self.PAGE)
            if self._closed:  # closed before the read, or by another task during it
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
