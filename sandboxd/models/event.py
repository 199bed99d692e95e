"""An event of the daemon, and the query for the stream of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import ConfigDict, Field

from sandboxd.models.wire import AnswerModel, QueryModel


class EventsQuery(QueryModel):
    after: int | None = Field(default=None, ge=0, le=2**63, description="Start after this id, like Last-Event-ID.")
    follow: bool = Field(
        default=True, description="Whether to wait for new events; false ends the stream after past ones."
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
