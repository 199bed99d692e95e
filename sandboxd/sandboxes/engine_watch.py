"""Follows the engine's events: what happens to a container becomes a move of its sandbox.

A sandbox makes one move at a time, so an event during a move is kept (by `Effects` and `Pauses`) and handled when the
move is over. It decides nothing about the life cycle; `lifecycle.step` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from anyio.abc import TaskGroup

from sandboxd.engine.protocol import ContainerDied, ContainerPaused, ContainerResumed, Engine, Resynced
from sandboxd.sandboxes import lifecycle
from sandboxd.sandboxes.effects import Effects
from sandboxd.sandboxes.lifecycle import State
from sandboxd.sandboxes.sandbox import Sandbox


class Start(Protocol):
    def __call__(self, sandbox: Sandbox, move: Callable[..., Awaitable[None]], *args: object) -> object:
        """Starts a move of a sandbox that has no move under way."""


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
                        self._start(sandbox, self._effects.advance, lifecycle.DeathSeen(event.cause))

    def catch_up(self, sandbox: Sandbox) -> None:
        """Handle what the engine reported about the container, just now or while a move was under way."""
        if sandbox.settled is not None or sandbox.record.state not in (State.READY, State.PAUSED, State.WARM):
            return
        if (death := self._effects.missed_death(sandbox)) is not None:
            self._start(sandbox, self._effects.advance, lifecycle.DeathSeen(death.cause))
        elif self._effects.pauses.next_event(sandbox.record) is not None:
            self._start(sandbox, self._effects.check_pause)
