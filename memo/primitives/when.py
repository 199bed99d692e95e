"""When: a point in time in any of the forms that people and JSON use, stored as an aware datetime.

Text without a time zone is UTC, the same on every host. A naive datetime object is refused: usually it is local time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BeforeValidator

_FORMS = "give a datetime with a time zone, ISO 8601 or RFC 2822 text, milliseconds since 1970, or an object of units"
_NUMBER = re.compile(r"-?\d{9,}(\.\d+)?")
_YEAR_OR_MONTH = re.compile(r"\d{4}(-\d{2})?")
_ORDINAL = re.compile(r"(\d{4})-?(\d{3})(T.*)?")
_UNITS = ("year", "month", "day", "hour", "minute", "second", "millisecond")


def _parsed(value: Any) -> Any:
    if isinstance(value, datetime):
        return value  # checked by AwareDatetime
    try:
        if isinstance(value, date):
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        if isinstance(value, Mapping):
            return _from_units(value)
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            found = _from_text(value.strip())
            return found if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError, TypeError):
        raise ValueError(f"it is not a time; {_FORMS}") from None
    if isinstance(value, bool) or value is None:
        raise ValueError(f"it is not a time; {_FORMS}")
    return value  # a number: seconds, or milliseconds if it is that large


def _from_text(text: str) -> datetime:
    if _YEAR_OR_MONTH.fullmatch(text):
        return datetime.fromisoformat(f"{text}-01-01"[:10])
    ordinal = _ORDINAL.fullmatch(text)
    if ordinal:
        clock = datetime.fromisoformat(f"{ordinal[1]}-01-01{ordinal[3] or ''}")
        found = clock + timedelta(days=int(ordinal[2]) - 1)
        if found.year != clock.year or found < clock:
            raise ValueError("no such day in this year")
        return found
    try:
        return datetime.fromisoformat(re.sub(r" (?=[+-]\d\d)", "", text))  # SQL puts a space before the offset
    except ValueError:
        return parsedate_to_datetime(text)


def _from_units(units: Mapping[str, Any]) -> datetime:
    given = {str(name).removesuffix("s"): number for name, number in units.items()}
    if len(given) != len(units) or not given.keys() <= set(_UNITS) or "year" not in given:
        raise ValueError("units that no time has")
    if any(isinstance(number, bool) or not isinstance(number, int) for number in given.values()):
        raise ValueError("units are whole numbers")
    milliseconds = given.pop("millisecond", 0)
    if not 0 <= milliseconds < 1000:
        raise ValueError("a second has 1000 milliseconds")
    return datetime(**{"month": 1, "day": 1, **given}, microsecond=milliseconds * 1000, tzinfo=UTC)


When = Annotated[AwareDatetime, BeforeValidator(_parsed)]
