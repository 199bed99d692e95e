"""Which containers are frozen, as reported by the engine, and what that means for their sandboxes.

It records and compares; it never pauses or resumes a container.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sandboxd.engine.protocol import Container
from sandboxd.sandboxes.lifecycle import Event, PauseSeen, Record, ResumeSeen, State

_LISTINGS = 5


class Pauses:
    def __init__(self) -> None:
        self._frozen: set[str] = set()
        self._heard = 0

    def hear(self, container_id: str, *, is_frozen: bool) -> None:
        """Record that a container was frozen or resumed."""
        self._heard += 1
        if is_frozen:
            self._frozen.add(container_id)
        else:
            self._frozen.discard(container_id)

    async def read(self, find: Callable[[], Awaitable[list[Container]]]) -> list[Container]:
        """List the containers and record which of them are frozen."""
        for _ in range(_LISTINGS):
            heard = self._heard
            found = await find()
            if heard == self._heard:  # otherwise an event is newer than a part of this list, so list again
                self._frozen = {container.id for container in found if container.paused}
                break
        return found

    def is_frozen(self, record: Record) -> bool:
        return record.container in self._frozen

    def next_event(self, record: Record) -> Event | None:
        """Return the event that brings the record's state in line with its container; None if it already is."""
        match record.state, self.is_frozen(record):
            case ((State.READY | State.WARM), True):
                return PauseSeen()
            case State.PAUSED, False:
                return ResumeSeen()
        return None
