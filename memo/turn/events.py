"""The typed events of a turn, and the EventBus that delivers them.

Emitting waits until every listener has received the event, so a slow consumer slows the turn down and buffers stay
bounded. Events only inform; they store nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from memo.errors import InvalidContent
from memo.turn.callbacks import Noun, Verb, call

Status = Literal["ack", "nack", "aborted"]


@dataclass(frozen=True, slots=True)
class Event:
    name: ClassVar[str] = "event"
    turn_id: str


@dataclass(frozen=True, slots=True)
class TurnStart(Event):
    name: ClassVar[str] = "turn_start"


@dataclass(frozen=True, slots=True)
class TurnEnd(Event):
    name: ClassVar[str] = "turn_end"
    status: Status


@dataclass(frozen=True, slots=True)
class DispatchStart(Event):
    name: ClassVar[str] = "dispatch_start"


@dataclass(frozen=True, slots=True)
class DispatchEnd(Event):
    name: ClassVar[str] = "dispatch_end"
    status: Status
    iterations: int


@dataclass(frozen=True, slots=True)
class IterationStart(Event):
    name: ClassVar[str] = "iteration_start"
    iteration: int


@dataclass(frozen=True, slots=True)
class IterationEnd(Event):
    """`stored` is the number of changes now in the store, or None if they were discarded."""

    name: ClassVar[str] = "iteration_end"
    iteration: int
    stored: int | None


@dataclass(frozen=True, slots=True)
class Persisted(Event):
    """One change is in the store."""

    name: ClassVar[str] = "persisted"
    verb: Verb
    noun: Noun
    id: str


@dataclass(frozen=True, slots=True)
class MessageReport(Event):
    """A piece of a message: the new text, and the text so far."""

    name: ClassVar[str] = "message"
    id: str
    delta: str
    full: str
    is_complete: bool


@dataclass(frozen=True, slots=True)
class ThoughtReport(Event):
    name: ClassVar[str] = "thought"
    id: str
    delta: str
    full: str
    is_complete: bool


@dataclass(frozen=True, slots=True)
class ToolCallReport(Event):
    """Everything reported about a tool call so far."""

    name: ClassVar[str] = "tool_call"
    id: str
    tool: str | None
    args: Any
    results: Any
    is_error: bool | None
    is_complete: bool


@dataclass(frozen=True, slots=True)
class TurnFailure(Event):
    """An error, as given to `nack` or as wrapped."""

    name: ClassVar[str] = "error"
    error: BaseException


EVENTS: tuple[type[Event], ...] = (
    TurnStart, TurnEnd, DispatchStart, DispatchEnd, IterationStart, IterationEnd, Persisted,
    MessageReport, ThoughtReport, ToolCallReport, TurnFailure,
)  # fmt: skip

Listener = Callable[[Any], Awaitable[None] | None]


class EventBus:
    """Owns the listeners: `on` adds a function, `stream` opens an async stream."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {event.name: [] for event in EVENTS}
        self._streams: list[MemoryObjectSendStream[Event]] = []

    def on(self, name: str, listener: Listener) -> Callable[[], None]:
        """Call the listener with every event of this name. Return a function that removes it."""
        listeners = self._listeners.get(name)
        if listeners is None:
            raise InvalidContent(f"cannot listen for {name}: the events are {', '.join(self._listeners)}")
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    @asynccontextmanager
    async def stream(self, buffer: int = 16) -> AsyncIterator[MemoryObjectReceiveStream[Event]]:
        """Open a stream of every event. The turn pauses while `buffer` events are unread."""
        send, receive = anyio.create_memory_object_stream[Event](buffer)
        self._streams.append(send)
        try:
            with receive:
                yield receive
        finally:
            self._streams.remove(send)
            send.close()

    async def emit(self, event: Event) -> None:
        for listener in tuple(self._listeners[event.name]):  # a listener may remove itself
            await call(listener, event)
        for stream in tuple(self._streams):
            try:
                await stream.send(event)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                continue  # its reader is gone; its `stream` removes it
