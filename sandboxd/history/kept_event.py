"""KeptEvent: an event as the log keeps it, encoded once for the journal and the database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pydantic_core import PydanticSerializationError, from_json, to_json

from sandboxd.history.event_filter import session_of
from sandboxd.models.event import Event

_MAX_BYTES: Final = 65_536
_CUT_CHARS: Final = 200


class KeptEvent(NamedTuple):
    """A row of the table of events."""

    id: int
    kind: str
    at: int
    tenant: str | None
    session: str | None
    user: str | None
    fields: bytes
    detail: bytes | None

    def event(self) -> Event:
        return Event(**from_json(self.fields), id=self.id, kind=self.kind, at=moment(self.at))


def moment(at: int) -> datetime:
    return datetime.fromtimestamp(at // 1_000_000, UTC) + timedelta(microseconds=at % 1_000_000)


def kept_event(
    number: int, kind: str, at: int, fields: Mapping[str, Any], detail: Mapping[str, str] | None
) -> KeptEvent:
    """Return an event as it is kept. Texts in one that is too large are cut, and its detail is left out."""
    encoded, encoded_detail = _encoded(fields), None if detail is None else _encoded(detail)
    if len(encoded) + len(encoded_detail or b"") > _MAX_BYTES:
        fields = {name: value[:_CUT_CHARS] if isinstance(value, str) else value for name, value in fields.items()}
        encoded, encoded_detail = _encoded(fields), None
    return KeptEvent(
        number, kind, at, fields.get("tenant"), session_of(fields), fields.get("user"), encoded, encoded_detail
    )


def _encoded(fields: Mapping[str, Any]) -> bytes:
    try:
        return to_json(fields)
    except (PydanticSerializationError, UnicodeError):  # half of a surrogate pair in the text of an agent
        return to_json({name: _valid(value) for name, value in fields.items()})


def _valid(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
