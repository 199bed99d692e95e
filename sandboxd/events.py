"""What happens in the daemon, numbered, for whoever wants to follow it.

Owns one bounded ring of events in memory. Ids only grow, also across restarts. It never blocks a publisher,
never keeps a queue for a subscriber, and never holds command text, output or document text.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio

CAPACITY = 4096

Field = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. The kind `gap` says that events up to and including `id` are lost to this reader."""

    id: int
    kind: str
    at: datetime
    fields: Mapping[str, Field]


class EventBus:
    """Publish from the event loop's own thread; any number of readers follow at their own pace.

    The first id is the start time in microseconds, so ids grow across restarts as long as fewer than a million
    events a second are published and the clock does not go back; a reader who resumes with an id of an earlier
    run gets a gap.
    """

    def __init__(self, *, capacity: int = CAPACITY, first_id: int | None = None) -> None:
        self._ring: list[Event | None] = [None] * capacity
        self._capacity = capacity
        self._first = time.time_ns() // 1000 if first_id is None else first_id
        self._next = self._first
        self._news = anyio.Event()
        self._waiting = 0
        self._is_closed = False
        self.dropped = 0
        """How many events readers missed because they were too slow or came too late."""

    def close(self) -> None:
        """End every reader: the daemon stops. What is published afterwards is kept, and nobody is told."""
        self._is_closed = True
        self._news.set()

    @property
    def last_id(self) -> int:
        return self._next - 1

    def publish(self, kind: str, **fields: Field) -> Event:
        event = Event(self._next, kind, datetime.now(UTC), fields)
        self._ring[event.id % self._capacity] = event
        self._next += 1
        if self._waiting:
            self._news.set()
            self._news = anyio.Event()
        return event

    @asynccontextmanager
    async def subscribe(self, after: int | None = None) -> AsyncIterator[AsyncIterator[Event]]:
        """Follow every event after this id; with None, every event from now on."""
        yield _Reader(self, self._next if after is None else after + 1)

    def recent(self, after: int | None = None) -> list[Event]:
        """Return what the ring still holds after this id, with a gap in front if some of it is gone."""
        position = self._oldest() if after is None else after + 1
        events: list[Event] = []
        if (gap := self._gap(position)) is not None:
            events.append(gap)
            position = gap.id + 1
        events.extend(self._at(number) for number in range(position, self._next))
        return events

    async def take(self, position: int) -> Event | None:
        """Wait for the event at this position or the gap in front of it; None at the end. Cancelling loses nothing."""
        while position == self._next:
            if self._is_closed:
                return None
            self._waiting += 1
            try:
                await self._news.wait()
            finally:
                self._waiting -= 1
        return self._gap(position) or self._at(position)

    def _oldest(self) -> int:
        return max(self._first, self._next - self._capacity)

    def _gap(self, position: int) -> Event | None:
        """Return the gap a reader at this position has to jump, if any. An id from the future is a gap, too."""
        oldest = self._oldest()
        if oldest <= position <= self._next:
            return None
        lost = oldest - position if position < oldest else 0
        # Ids of an earlier run are not numbered one by one into this one, so such a gap has no honest count.
        counted = lost if position >= self._first else None
        self.dropped += counted or 0
        until = (oldest if position < oldest else self._next) - 1
        return Event(until, "gap", datetime.now(UTC), {"after": position - 1, "lost": counted})

    def _at(self, number: int) -> Event:
        event = self._ring[number % self._capacity]
        assert event is not None  # noqa: S101  # every number between oldest and next has been published
        return event


class _Reader:
    """Where one subscriber is. Not a generator: waiting may be cancelled and begun again."""

    def __init__(self, bus: EventBus, position: int) -> None:
        self._bus = bus
        self._position = position

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self._bus.take(self._position)
        if event is None:
            raise StopAsyncIteration
        self._position = event.id + 1
        return event
