"""EventFilter: which events a reader wants, decided the same way for an event in memory and by the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sandboxd.models.event import Event


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Every condition that is given must hold; without any, every event is wanted."""

    tenant: str | None = None
    session: str | None = None
    user: str | None = None
    kinds: frozenset[str] = frozenset()
    since: datetime | None = None
    until: datetime | None = None
    """Exclusive, so that two ranges that meet share no event."""

    @property
    def is_open(self) -> bool:
        """Whether every event is wanted."""
        return self == _EVERYTHING

    def matches(self, event: Event) -> bool:
        fields = event.fields
        return (
            (not self.kinds or event.kind in self.kinds)
            and (self.tenant is None or fields.get("tenant") == self.tenant)
            and (self.session is None or session_of(fields) == self.session)
            and (self.user is None or fields.get("user") == self.user)
            and (self.since is None or event.at >= self.since)
            and (self.until is None or event.at < self.until)
        )

    def where(self) -> tuple[str, list[object]]:
        """Return the same conditions for the table of events, each led by AND, and their parameters."""
        text, parameters = "", list[object]()
        for column, value in (("tenant", self.tenant), ("session", self.session), ("user", self.user)):
            if value is not None:
                text += f" AND {column} = ?"
                parameters.append(value)
        if self.kinds:
            text += f" AND kind IN ({', '.join('?' * len(self.kinds))})"
            parameters += sorted(self.kinds)
        if self.since is not None:
            text += " AND at >= ?"
            parameters.append(microseconds(self.since))
        if self.until is not None:
            text += " AND at < ?"
            parameters.append(microseconds(self.until))
        return text, parameters


_EVERYTHING = EventFilter()
_EPOCH = datetime.fromtimestamp(0, UTC)


def session_of(fields: Mapping[str, Any]) -> str | None:
    """Return the session that an event belongs to: its own, or the one that wrote the user's document."""
    found = fields.get("session") or fields.get("by_session")
    return found if isinstance(found, str) else None


def microseconds(at: datetime) -> int:
    """Return the time since the epoch, exactly."""
    return (at - _EPOCH) // timedelta(microseconds=1)
