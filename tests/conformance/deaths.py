"""Listening for deaths in a test: what the engine announced, by container."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from sandboxd.engine.protocol import ContainerDied, Engine, Resynced

HANG_GUARD_S = 60


class DeathBook:
    """What was announced so far, and a way to wait for more."""

    def __init__(self) -> None:
        self.deaths: list[ContainerDied] = []
        self.attached = 0
        self._changed = anyio.Condition()

    async def listen(self, engine: Engine) -> None:
        async for event in engine.events():
            async with self._changed:
                if isinstance(event, Resynced):
                    self.attached += 1
                elif isinstance(event, ContainerDied):
                    self.deaths.append(event)
                self._changed.notify_all()

    async def death_of(self, container_id: str) -> ContainerDied:
        with anyio.fail_after(HANG_GUARD_S):
            async with self._changed:
                while True:
                    for death in self.deaths:
                        if death.container_id == container_id:
                            return death
                    await self._changed.wait()

    async def attached_times(self, count: int) -> None:
        with anyio.fail_after(HANG_GUARD_S):
            async with self._changed:
                while self.attached < count:
                    await self._changed.wait()


@asynccontextmanager
async def listening(engine: Engine) -> AsyncIterator[DeathBook]:
    """Listen from before the block until after it."""
    book = DeathBook()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(book.listen, engine)
        await book.attached_times(1)
        yield book
        tasks.cancel_scope.cancel()
