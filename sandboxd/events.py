"""The event bus: numbered events of the daemon, for readers to follow.

Owns one bounded ring of events in memory. Ids only grow, even across restarts. It never blocks a publisher, never keeps
a queue for a reader, and never contains output or document text. Publishing costs the same however many readers wait:
readers are woken a few at a time, and less often the more there are. What is kept beyond the ring is up to the
`Keeper`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import anyio

from sandboxd.models.event import Event

CAPACITY = 4096
MAX_BATCH = 200
"""The maximum number of events that a reader gets at once."""
PACE_S = 0.0005
"""The interval between wake-ups, per waiting reader: 300 readers are woken about 7 times a second and use a tenth of
the event loop's time. A single reader is woken at once."""
_WOKEN_AT_ONCE = 16
"""The most readers woken in one pass of the event loop, so that calls do not wait for all of them."""

EXCERPT_BYTES = 4096
"""The most of an output that is kept beside its event."""

Field = str | int | float | bool | tuple[str, ...] | None
Fields = dict[str, Field]
_Published = tuple[str, datetime, Fields]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of an output: its first bytes, its last ones, and how many are between them."""

    head: bytes
    tail: bytes = b""
    left_out: int = 0

    @classmethod
    def of(cls, *outputs: bytes) -> Excerpt:
        """Return the first and last part of these outputs, one after the other."""
        if sum(map(len, outputs)) <= EXCERPT_BYTES:
            return cls(b"".join(outputs))
        ends = OutputEnds()
        for output in outputs:
            ends.add(output)
        return ends.excerpt()


class OutputEnds:
    """The first and last bytes of an output that arrives in pieces."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._size = 0

    def add(self, piece: bytes) -> None:
        half = EXCERPT_BYTES // 2
        self._size += len(piece)
        room = half - len(self._head)
        if room > 0:
            self._head += piece[:room]
            piece = piece[room:]
        if piece:
            self._tail = (self._tail + piece[-half:])[-half:]

    def excerpt(self) -> Excerpt:
        return Excerpt(self._head, self._tail, self._size - len(self._head) - len(self._tail))


class Keeper(Protocol):
    """Prepares and keeps what is published. It is called on the path of every call: it must be quick and not raise."""

    def prepare(self, fields: Fields) -> None:
        """Complete the fields, and bound and redact the texts in them, before anything else has them."""

    def keep(self, number: int, kind: str, at: datetime, fields: Fields, output: Excerpt | None) -> None: ...


class EventBus:
    """Publish from the event loop's own thread; any number of readers follow at their own pace.

    The first id is the start time in microseconds, so ids grow across restarts as long as fewer than a million
    events a second are published and the clock does not go back; a reader that resumes with an id of an earlier
    run gets a gap.
    """

    def __init__(self, *, capacity: int = CAPACITY, first_id: int | None = None) -> None:
        self._ring: list[Event | _Published | None] = [None] * capacity
        self._capacity = capacity
        self._first = time.time_ns() // 1000 if first_id is None else first_id
        self._next = self._first
        self._waiting: deque[anyio.Event] = deque()
        self._woken: deque[anyio.Event] = deque()
        """Readers to wake in the next passes of the event loop."""
        self._is_waking = False
        self._has_news = False
        """Whether something was published since readers were last woken."""
        self._next_wake = 0.0
        self._is_closed = False
        self._until_closed: list[anyio.Event] = []
        self._keeper: Keeper | None = None
        self.dropped = 0
        """How many events readers missed because they were too slow or came too late."""

    def keep_in(self, keeper: Keeper | None, last_id: int = 0) -> None:
        """Pass everything published from now on to this keeper, which has ids up to `last_id` from earlier runs."""
        self._keeper = keeper
        if last_id >= self._next:
            self._first = self._next = last_id + 1

    def close(self) -> None:
        """End every reader, because the daemon is stopping. Later events are kept but reach no reader."""
        self._is_closed = True
        for reader in (*self._waiting, *self._woken, *self._until_closed):
            reader.set()
        self._waiting.clear()
        self._woken.clear()

    async def wait_closed(self) -> None:
        """Wait until every reader is ended, for a stream that is not one of events."""
        if not self._is_closed:
            closed = anyio.Event()
            self._until_closed.append(closed)
            await closed.wait()

    @property
    def last_id(self) -> int:
        return self._next - 1

    @property
    def next_id(self) -> int:
        return self._next

    @property
    def oldest_id(self) -> int:
        """The oldest id that the ring still has, or the next one if it is empty."""
        return max(self._first, self._next - self._capacity)

    def publish(self, kind: str, output: Excerpt | None = None, /, **fields: Field) -> None:
        """Publish an event. Its output goes to the keeper only."""
        at = datetime.now(UTC)
        if self._keeper is not None:
            self._keeper.prepare(fields)
            self._keeper.keep(self._next, kind, at, fields, output)
        self._ring[self._next % self._capacity] = (kind, at, fields)
        self._next += 1
        self._has_news = True
        if self._waiting and not self._is_waking:
            self._begin_waking()

    def _begin_waking(self) -> None:
        self._is_waking = True
        delay_s = self._next_wake - time.monotonic()
        if delay_s <= 0:
            self._wake()
        else:
            asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._has_news = False
        self._next_wake = time.monotonic() + PACE_S * (len(self._waiting) - 1)
        self._woken, self._waiting = self._waiting, self._woken
        self._wake_some()

    def _wake_some(self) -> None:
        for _ in range(min(_WOKEN_AT_ONCE, len(self._woken))):
            self._woken.popleft().set()
        if self._woken:
            asyncio.get_running_loop().call_soon(self._wake_some)
            return
        self._is_waking = False
        if self._has_news and self._waiting:  # published after the first readers were woken
            self._begin_waking()

    @asynccontextmanager
    async def subscribe(self, after: int | None = None) -> AsyncIterator[Reader]:
        """Follow every event after this id; with None, every event from now on."""
        yield Reader(self, self._next if after is None else after + 1)

    def recent(self, after: int | None = None) -> list[Event]:
        """Return the events after this id that the ring still has, with a gap in front if some are lost."""
        return self.read(self.oldest_id if after is None else after + 1, self._capacity + 1)

    async def take(self, position: int, most: int) -> list[Event]:
        """Wait for events from this position on, with a gap in front if some are lost; empty once the bus is closed.

        Cancelling loses nothing.
        """
        await self.wait(position)
        return self.read(position, most)

    async def wait(self, position: int) -> bool:
        """Wait until the bus has had an event at this position, and return True; False once it is closed."""
        while position == self._next and not self._is_closed:
            turn = anyio.Event()
            self._waiting.append(turn)
            try:
                await turn.wait()
            except BaseException:
                self._give_up(turn)
                raise
        return position != self._next

    def _give_up(self, turn: anyio.Event) -> None:
        for readers in (self._waiting, self._woken):
            if turn in readers:
                readers.remove(turn)

    def read(self, position: int, most: int) -> list[Event]:
        """Return events from this position on that the ring has, with a gap in front if some are lost."""
        events: list[Event] = []
        if (gap := self._gap(position)) is not None:
            events.append(gap)
            position = gap.id + 1
        last = min(self._next, position + most - len(events))
        events.extend(self._at(number) for number in range(position, last))
        return events

    def _gap(self, position: int) -> Event | None:
        """Return the gap that a reader at this position must skip, if any. An id from the future is a gap too."""
        oldest = self.oldest_id
        if oldest <= position <= self._next:
            return None
        lost = oldest - position if position < oldest else 0
        # Ids jump between runs of the daemon, so a gap that starts in an earlier run cannot be counted.
        counted = lost if position >= self._first else None
        self.dropped += counted or 0
        until = (oldest if position < oldest else self._next) - 1
        return Event(id=until, kind="gap", at=datetime.now(UTC), after=position - 1, lost=counted)

    def _at(self, number: int) -> Event:
        place = number % self._capacity
        event = self._ring[place]
        assert event is not None  # noqa: S101  # every number between oldest and next has been published
        if isinstance(event, tuple):  # built once it is read: every command publishes one, and few are read
            kind, at, fields = event
            event = self._ring[place] = Event(id=number, kind=kind, at=at, **fields)
        return event


class Reader:
    """The position of one subscriber. Not a generator, so that waiting can be cancelled and resumed."""

    def __init__(self, bus: EventBus, position: int) -> None:
        self._bus = bus
        self._position = position

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        events = await self.batch(1)
        if not events:
            raise StopAsyncIteration
        return events[0]

    async def batch(self, most: int = MAX_BATCH) -> list[Event]:
        """Wait for new events and return them, oldest first; empty once the bus is closed."""
        events = await self._bus.take(self._position, most)
        if events:
            self._position = events[-1].id + 1
        return events
