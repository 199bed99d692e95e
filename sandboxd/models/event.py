"""An event of the daemon, the query for events, and a page of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Field

from sandboxd.models.wire import AnswerModel, QueryModel

MAX_PAGE = 1000
DEFAULT_PAGE = 200
_AGO = re.compile(r"(\d{1,9})(ms|s|m|h|d|w)")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_moment(text: object) -> object:
    """Return the time of a duration such as `1h`, counted back from now; leave anything else as it is."""
    if not isinstance(text, str) or (found := _AGO.fullmatch(text)) is None:
        return text
    try:
        return datetime.now(UTC) - timedelta(seconds=int(found[1]) * _UNITS[found[2]])
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _separate(kinds: object) -> object:
    """Return the kinds of a query, which may be given one by one or with commas."""
    if not isinstance(kinds, list):
        return kinds
    return [kind for item in kinds for kind in str(item).split(",") if kind]


Moment = Annotated[AwareDatetime, BeforeValidator(parse_moment, json_schema_input_type=str)]
_MOMENT = "A time as in RFC 3339, or how long ago, such as `90s`, `15m`, `1h` or `7d`"


class EventsQuery(QueryModel):
    after: int | None = Field(
        default=None,
        ge=0,
        le=2**63 - 1,
        description="Start after this id, like Last-Event-ID; with `order=desc` continue with the ids below it.",
    )
    follow: bool = Field(
        default=True, description="Whether to wait for new events; false ends the stream after past ones."
    )
    tenant: str | None = Field(default=None, max_length=200, description="Only events of this tenant.")
    session: str | None = Field(default=None, max_length=200, description="Only events of this session.")
    user: str | None = Field(default=None, max_length=200, description="Only events of this user.")
    kind: Annotated[list[str], BeforeValidator(_separate)] = Field(
        default=[], max_length=50, description="Only events of these kinds: repeated, or separated by commas."
    )
    since: Moment | None = Field(default=None, description=f"Only events from this time on. {_MOMENT}.")
    until: Moment | None = Field(default=None, description=f"Only events before this time. {_MOMENT}.")
    limit: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PAGE,
        description=f"The most past events. In JSON the default is {DEFAULT_PAGE}. A stream that starts neither after "
        "an id nor since a time begins with the newest ones.",
    )
    order: Literal["asc", "desc"] = Field(
        default="asc", description="In JSON, whether the oldest or the newest events come first."
    )


class Event(AnswerModel):
    """One event. The kind `gap` means that this reader missed the events up to and including `id`."""

    model_config = ConfigDict(extra="allow")

    id: int
    kind: str
    at: datetime

    @property
    def fields(self) -> Mapping[str, Any]:
        """The event's fields other than its id, kind and time."""
        return self.model_extra or {}


class EventPage(AnswerModel):
    items: list[Event]
    next: int | None = Field(description="Give it as `after` to get the next page; null if there are no more now.")
