"""Refresher: takes a changed key from the store's feed, or from a caller, to every live mirror that shows it.

Owns the reader of the change feed and its workers. A hint only names a key; the text is read again, so a late or
reordered hint cannot install old text. Hints for the same key are merged into one refresh.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import anyio
import structlog
from anyio.abc import TaskGroup

from memo.changes import Change
from memo.documents import ArtifactKey, DocumentKey
from sandboxd import failpoints
from sandboxd.errors import SandboxdError, StoreUnavailable
from sandboxd.memory.announcer import Announcer, fields_of
from sandboxd.memory.key_locks import KeyLocks
from sandboxd.memory.mirror import Mirrors
from sandboxd.memory.outbox import PendingWrite
from sandboxd.memory.outcomes import Key
from sandboxd.memory.store_client import StoreClient
from sandboxd.retries import Retries

_log = structlog.get_logger()

WORKERS = 4
_MOST_HINTS = 1024


class Refresher:
    def __init__(
        self,
        mirrors: Mirrors,
        store: StoreClient,
        locks: KeyLocks,
        announcer: Announcer,
        pending: Callable[[Key], PendingWrite | None],
        resync: Callable[[], None],
    ) -> None:
        self._mirrors = mirrors
        self._store = store
        self._locks = locks
        self._announcer = announcer
        self._pending = pending
        self._resync = resync
        self._hints: dict[Key, Change | None] = {}
        self._failures: dict[Key, Retries] = {}
        self._send, self._receive = anyio.create_memory_object_stream[Key](_MOST_HINTS)
        self._cursor: int | None = None
        self._tasks: TaskGroup

    def start(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        for _ in range(WORKERS):
            tasks.start_soon(self._work)
        if self._store.capabilities.changes:
            tasks.start_soon(self._follow)

    def close(self) -> None:
        self._send.close()
        self._receive.close()

    async def connect(self) -> None:
        """Read the feed's position. Changes after it are announced; earlier ones must be read."""
        last = await self._store.call("follow the store's changes", "last_change")
        if not isinstance(last, int):
            raise StoreUnavailable("cannot follow the store's changes: its position is not a number")
        if self._cursor is None or last < self._cursor:  # a position that went back belongs to another feed
            self._cursor = last
            self._resync()

    async def refresh(self, key: Key, hint: Change | None = None) -> int:
        """Read the key and show it in every mirror. Return how many mirrors show it now."""
        if not self._mirrors.showing(key):
            return 0
        async with self._locks.hold(key):
            pending = self._pending(key)
            if pending is not None:  # newer than the store
                if pending.text is None:
                    return len(self._mirrors.showing(key))
                return await self._mirrors.install(key, pending.text, revisioned=True, pending=True)
            if hint is not None and not self._mirrors.is_behind(key, hint.revision):
                return len(self._mirrors.showing(key))  # its writer has shown it already
            text = await self._store.read(key, hint)
            await failpoints.reach("refresh.read")
            if text is None:
                removed = await self._mirrors.uninstall(key)
                if removed:
                    self._announcer.mirror("removed", **fields_of(key), mirrors=removed)
                return 0
            count = await self._mirrors.install(
                key, text, revisioned=self._store.has_revisions(key), staged="refresh.staged"
            )
            await failpoints.reach("refresh.renamed")
        self._announcer.mirror("refreshed", **fields_of(key), revision=text.revision, mirrors=count)
        return count

    async def hint(self, key: Key, change: Change | None = None) -> None:
        """Queue a key for refresh. Waits while the queue is full, which slows down the feed."""
        if key in self._hints:
            self._hints[key] = change
            return
        self._hints[key] = change
        await self._send.send(key)

    def hint_soon(self, key: Key) -> None:
        self._tasks.start_soon(self.hint, key)

    async def _work(self) -> None:
        async for key in self._receive:
            hint = self._hints.pop(key, None)
            try:
                await failpoints.reach("refresh.heard")
                await self.refresh(key, hint)
            except (SandboxdError, OSError) as error:
                self._retry(key, error)
            else:
                self._failures.pop(key, None)

    def _retry(self, key: Key, error: Exception) -> None:
        retries = self._failures.setdefault(key, Retries())
        if retries.is_first:
            _log.warning("cannot refresh a mirror yet", error=str(error))
            self._announcer.mirror("lagging", **fields_of(key))
        self._tasks.start_soon(self._hint_later, key, retries)

    async def _hint_later(self, key: Key, retries: Retries) -> None:
        await retries.wait()
        if self._mirrors.showing(key):
            await self.hint(key)
        else:
            self._failures.pop(key, None)

    async def _follow(self) -> None:
        retries = Retries()
        while True:
            try:
                await self.connect()
                async with aclosing(self._changes()) as changes:
                    async for change in changes:
                        retries.reset()
                        self._cursor = change.cursor
                        self._announcer.heard(change)
                        if self._mirrors.is_behind(change.key, change.revision):
                            await self.hint(change.key, change)
            except StoreUnavailable as error:
                if retries.is_first:
                    _log.warning("cannot follow the store's changes; trying again", error=str(error))
            await retries.wait()

    async def _changes(self) -> AsyncGenerator[Change, None]:
        """Yield the feed's changes; every failure is StoreUnavailable."""
        try:
            async with aclosing(self._store.store.changes(self._cursor or 0)) as feed:
                async for change in feed:
                    if not _is_change(change):
                        raise StoreUnavailable("cannot follow the store's changes: the feed sent an invalid change")
                    yield change
        except StoreUnavailable:
            raise
        except Exception as error:
            raise StoreUnavailable(f"cannot follow the store's changes: {type(error).__name__}") from error


def _is_change(change: object) -> bool:
    """Return whether the feed sent a valid change: a provider is third-party code."""
    return (
        isinstance(change, Change)
        and isinstance(change.cursor, int)
        and isinstance(change.key, DocumentKey | ArtifactKey)
        and isinstance(change.revision, int)
    )
