"""A problem: every error of the API, as application/problem+json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict

from sandboxd.models.wire import AnswerModel


class Problem(AnswerModel):
    """Every error of the API, as application/problem+json. Some have members of their own."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    code: str
    detail: str
    retryable: bool

    @property
    def members(self) -> Mapping[str, Any]:
        """The fields that are specific to this problem."""
        return self.model_extra or {}
