"""The parts that the manager works with: the locked data directory, engine, registry, history, workspaces, memory and
network access.

They are opened in this order and closed in the reverse one. Nothing here knows the life cycle of a sandbox.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Self

import anyio
import structlog

from memo.ids import SessionRef
from sandboxd.engine.protocol import Engine
from sandboxd.engine.selection import open_engine
from sandboxd.events import EventBus
from sandboxd.history import EventHistory, SessionOwner
from sandboxd.memory import Memory
from sandboxd.network.egress import Egress
from sandboxd.sandboxes.layout import Layout
from sandboxd.sandboxes.registry import Registry
from sandboxd.sandboxes.runtime_probe import check_runtime
from sandboxd.settings import Settings
from sandboxd.workspace import Workspaces

_log = structlog.get_logger()


class Parts(anyio.AsyncContextManagerMixin):
    """`engine` is the one to use instead of that of the settings; `owner_of` returns who owns a session's sandbox;
    `is_mirror_shown` returns whether the container of the sandbox with this id still shows its mirror."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine | None,
        memo_provider: object,
        *,
        owner_of: Callable[[SessionRef], SessionOwner | None],
        is_mirror_shown: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._given_engine = engine
        self._provider = memo_provider
        self._is_mirror_shown = is_mirror_shown
        self.events = EventBus()
        self.history = EventHistory(
            settings.data,
            settings.history,
            self.events,
            store=memo_provider,
            store_timeout_s=settings.store_timeout_s,
            owner_of=owner_of,
        )
        self.layout = Layout(
            settings.data,
            gid=settings.gid,
            cache=settings.cache,
            cache_bytes=settings.blob_cache_mb * 1024 * 1024,
        )
        self.workspaces = Workspaces(self.layout.workspaces, uid=settings.uid, gid=settings.gid)
        self.registry = Registry(self.layout.registry)
        self.egress = Egress(settings.network, noted=self.history.hide)
        self.engine: Engine
        self.memory: Memory | None = None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        # Nested blocks, not an exit stack: a stack rewrites the context of errors from its callbacks, and a callback
        # that re-raises an earlier error makes a cycle there, which the stack then follows for ever.
        self.layout.hold()
        try:
            async with self._open_engine(), self._open_registry(), self.history:
                await self.workspaces.open()
                async with self._open_memory() as self.memory, self.egress:
                    yield self
        finally:
            self.layout.release()

    @asynccontextmanager
    async def _open_engine(self) -> AsyncGenerator[None]:
        self.engine = self._given_engine or await open_engine(
            self._settings.engine, self.layout.engine_state, fallback=self._settings.engine_fallback
        )
        try:
            await self._check_runtime()
            yield
        finally:
            await self.engine.aclose()

    async def _check_runtime(self) -> None:
        weakness = await check_runtime(
            self.engine, self._settings, instance=self.layout.instance(), state_dir=self.layout.engine_state
        )
        if weakness:
            _log.warning("the runtime is weak", why=weakness)

    @asynccontextmanager
    async def _open_registry(self) -> AsyncGenerator[None]:
        await self.registry.open()
        try:
            yield
        finally:
            await self.registry.aclose()

    def _open_memory(self) -> AbstractAsyncContextManager[Memory | None]:
        if self._provider is None:
            return nullcontext()
        return Memory(
            self._settings.data,
            self._provider,
            events=self.events,
            gid=self._settings.gid,
            outbox=self._settings.outbox,
            limits=self._settings.store_limits,
            store_timeout_s=self._settings.store_timeout_s,
            blob_bytes=self._settings.blob_cache_mb * 1024 * 1024,
            is_shown=self._is_mirror_shown,
        )
