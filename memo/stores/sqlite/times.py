"""Times as SQLite keeps them: microseconds since 1970.

They sort as numbers, lose nothing, and know no zone but UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(0, 0, micros)  # microseconds
