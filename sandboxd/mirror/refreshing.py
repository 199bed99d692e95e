"""Refreshing: from "this key has changed" to every live mirror that shows it, by itself or when asked.

Owns the reader of the store's change feed and the workers behind it. A hint says where to look; the text is read
again, so a late or reordered hint cannot install an old one. Hints for one key become one refresh.
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
from sandboxd.mirror.announcing import Announcer, fields_of
from sandboxd.mirror.answers import Key
from sandboxd.mirror.asking import Source
from sandboxd.mirror.live import Mirrors
from sandboxd.mirror.outbox import Pending
from sandboxd.mirror.retrying import Backoff
from sandboxd.mirror.turns import Turns

_log = structlog.get_logger()

WORKERS = 4
_MOST_HINTS = 1024


class Refresher:
    def __init__(
        self,
        mirrors: Mirrors,
        source: Source,
        turns: Turns,
        announcer: Announcer,
        pending: Callable[[Key], Pending | None],
        resync: Callable[[], None],
    ) -> None:
        self._mirrors = mirrors
        self._source = source
        self._turns = turns
        self._announcer = announcer
        self._pending = pending
        self._resync = resync
        self._hints: dict[Key, Change | None] = {}
        self._failures: dict[Key, Backoff] = {}
        self._send, self._receive = anyio.create_memory_object_stream[Key](_MOST_HINTS)
        self._cursor: int | None = None
        self._tasks: TaskGroup

    def start(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        for _ in range(WORKERS):
            tasks.start_soon(self._work)
        if self._source.capabilities.changes:
            tasks.start_soon(self._follow)

    def close(self) -> None:
        self._send.close()
        self._receive.close()

    async def connect(self) -> None:
        """Find out where the feed is. Changes after this are told; whatever was before has to be read."""
        last = await self._source.ask("follow the store's changes", "last_change")
        if not isinstance(last, int):
            raise StoreUnavailable("cannot follow the store's changes: its last change is no number")
        if self._cursor is None or last < self._cursor:  # a feed that is shorter than it was is another feed
            self._cursor = last
            self._resync()

    async def refresh(self, key: Key, hint: Change | None = None) -> int:
        """Read the key and show it everywhere. Return how many mirrors show it now."""
        if not self._mirrors.showing(key):
            return 0
        async with self._turns.of(key):
            waiting = self._pending(key)
            if waiting is not None:  # newer than the store, and shown already or now
                if waiting.text is None:
                    return len(self._mirrors.showing(key))
                return await self._mirrors.install(key, waiting.text, revisioned=True, pending=True)
            if hint is not None and not self._mirrors.is_behind(key, hint.revision):
                return len(self._mirrors.showing(key))  # who wrote it has shown it meanwhile
            text = await self._source.read(key, hint)
            await failpoints.reach("refresh.read")
            if text is None:
                await self._mirrors.uninstall(key)
                return 0
            count = await self._mirrors.install(
                key, text, revisioned=self._source.has_revisions(key), staged="refresh.staged"
            )
            await failpoints.reach("refresh.renamed")
        self._announcer.mirror("refreshed", **fields_of(key), revision=text.revision, mirrors=count)
        return count

    async def hint(self, key: Key, change: Change | None = None) -> None:
        """Have a key refreshed soon. Waits if too many are waiting, so that the feed waits, too."""
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
                self._try_again(key, error)
            else:
                self._failures.pop(key, None)

    def _try_again(self, key: Key, error: Exception) -> None:
        backoff = self._failures.setdefault(key, Backoff())
        if backoff.is_first:
            _log.warning("cannot refresh a mirror yet", error=str(error))
            self._announcer.mirror("lagging", **fields_of(key))
        self._tasks.start_soon(self._later, key, backoff)

    async def _later(self, key: Key, backoff: Backoff) -> None:
        await backoff.wait()
        if self._mirrors.showing(key):
            await self.hint(key)
        else:
            self._failures.pop(key, None)

    async def _follow(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self.connect()
                async with aclosing(self._changes()) as changes:
                    async for change in changes:
                        backoff.reset()
                        self._cursor = change.cursor
                        self._announcer.heard(change)
                        if self._mirrors.is_behind(change.key, change.revision):
                            await self.hint(change.key, change)
            except StoreUnavailable as error:
                if backoff.is_first:
                    _log.warning("cannot follow the store's changes; trying again", error=str(error))
            await backoff.wait()

    async def _changes(self) -> AsyncGenerator[Change, None]:
        """The feed, whose failures are all StoreUnavailable."""
        try:
            async with aclosing(self._source.store.changes(self._cursor or 0)) as feed:
                async for change in feed:
                    if not _is_change(change):
                        raise StoreUnavailable("cannot follow the store's changes: one of them is no change")
                    yield change
        except StoreUnavailable:
            raise
        except Exception as error:
            raise StoreUnavailable(f"cannot follow the store's changes: {type(error).__name__}") from error


def _is_change(change: object) -> bool:
    """Say whether this can be used: a provider is somebody else's code."""
    return (
        isinstance(change, Change)
        and isinstance(change.cursor, int)
        and isinstance(change.key, DocumentKey | ArtifactKey)
        and isinstance(change.revision, int)
    )
