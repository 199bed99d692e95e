"""The daemon's events for API readers: rendered once for all of them, with a limit on their number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sandboxd.api.streams import sse
from sandboxd.errors import LimitReached
from sandboxd.events import CAPACITY, EventBus
from sandboxd.models.event import Event

MAX_READERS = 512


class EventFeed:
    """Caches the rendered bytes of every event that the bus keeps."""

    def __init__(self, bus: EventBus, *, most_readers: int = MAX_READERS) -> None:
        self.bus = bus
        self._rendered: list[tuple[int, bytes]] = [(-1, b"")] * CAPACITY
        self._readers = 0
        self._most_readers = most_readers

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a reader, or raise LimitReached. The limit is not per tenant: events concern the whole daemon."""
        if self._readers >= self._most_readers:
            raise LimitReached(
                f"cannot follow events: {self._readers} readers are connected; close one, or poll with follow=false"
            )
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    def render(self, events: list[Event]) -> bytes:
        return b"".join([self._one(event) for event in events])

    def _one(self, event: Event) -> bytes:
        place = event.id % CAPACITY
        number, rendered = self._rendered[place]
        if number == event.id and event.kind != "gap":
            return rendered
        rendered = sse(event.kind, event, event.id)
        if event.kind != "gap":  # a gap is specific to one reader and shares the id of an event
            self._rendered[place] = (event.id, rendered)
        return rendered
