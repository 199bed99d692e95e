"""Following the engine: what it tells of containers becomes a move of their sandboxes.

A sandbox makes one move at a time, so news that comes during a move is kept (by `Effects` and `Pauses`) and followed
up when the move is over. It decides nothing about a life: `lifecycle.step` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup

from sandboxd.engine.protocol import ContainerDied, ContainerPaused, ContainerResumed, Engine, Resynced
from sandboxd.errors import DependencyError
from sandboxd.sandboxes import lifecycle
from sandboxd.sandboxes.effects import Effects
from sandboxd.sandboxes.lifecycle import State
from sandboxd.sandboxes.sandbox import Sandbox

_RESUME_LOOK_S = 1.0


class Start(Protocol):
    def __call__(self, sandbox: Sandbox, move: Callable[..., Awaitable[None]], *args: object) -> object:
        """Start a move of a sandbox that has none under way."""


class EngineWatch:
    def __init__(
        self,
        engine: Engine,
        effects: Effects,
        tasks: TaskGroup,
        *,
        start: Start,
        resync: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._engine = engine
        self._effects = effects
        self._tasks = tasks
        self._start = start
        self._resync = resync
        self._awaiting_resume: set[str] = set()

    async def run(self) -> None:
        """Follow the engine's events for ever."""
        async for event in self._engine.events():
            match event:
                case Resynced():
                    self._tasks.start_soon(self._resync)
                case ContainerPaused(container) | ContainerResumed(container):
                    self._effects.pauses.hear(container, is_frozen=isinstance(event, ContainerPaused))
                    if (paused := self._effects.sandbox_of(container)) is not None:
                        self.catch_up(paused)
                case ContainerDied():
                    sandbox = self._effects.dead(event)
                    if sandbox is not None:
                        self._start(sandbox, self._effects.advance, lifecycle.ContainerDied(event.cause))

    def catch_up(self, sandbox: Sandbox) -> None:
        """Follow what the engine told of the container while a move was under way, or has just told."""
        if sandbox.settled is not None or sandbox.record.state not in (State.READY, State.PAUSED, State.WARM):
            return
        if (death := self._effects.missed_death(sandbox)) is not None:
            self._start(sandbox, self._effects.advance, lifecycle.ContainerDied(death.cause))
        elif (event := self._effects.pauses.next_event(sandbox.record)) is not None:
            self._start(sandbox, self._effects.advance, event)
        elif sandbox.record.state is State.PAUSED and not self._engine.tells_pauses:
            self._tasks.start_soon(self._await_resume, sandbox)

    async def _await_resume(self, sandbox: Sandbox) -> None:
        """Look whether a paused container goes on, for an engine that does not tell."""
        container_id = sandbox.record.container
        if container_id is None or container_id in self._awaiting_resume:
            return
        self._awaiting_resume.add(container_id)
        try:
            while sandbox.record.state is State.PAUSED and sandbox.record.container == container_id:
                await anyio.sleep(_RESUME_LOOK_S)
                with suppress(DependencyError):
                    container = await self._engine.inspect(container_id)
                    if container is not None and container.running and not container.paused:
                        self._effects.pauses.hear(container_id, is_frozen=False)
                        break
        finally:
            self._awaiting_resume.discard(container_id)
        self.catch_up(sandbox)
