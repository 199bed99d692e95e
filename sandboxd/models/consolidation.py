"""Consolidation of a user's memory: the request to run it, the result of a run, and the status of a user.

Failures of sessions are mappings in Python and lists in JSON, where each item names its session.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer

from sandboxd.models.wire import AnswerModel, BodyModel


class ConsolidationBody(BodyModel):
    dry_run: bool = Field(default=False, description="Return what would change, and change nothing.")


class FailedSession(AnswerModel):
    model_config = ConfigDict(title="FailedSessionAnswer")

    session: str
    reason: str


class ConsolidationFailure(AnswerModel):
    """A failure: its reason, how often it happened in a row, and the time of the next try."""

    model_config = ConfigDict(title="FailureAnswer")

    reason: str
    count: int = Field(description="The number of failures in a row.")
    retry_at: datetime


class SessionFailure(ConsolidationFailure):
    model_config = ConfigDict(title="SessionFailureAnswer")

    session: str


def _reasons_by_session(items: Any) -> Any:
    return {item["session"]: item["reason"] for item in items} if isinstance(items, list) else items


def _failed_sessions(reasons: Mapping[str, str]) -> list[FailedSession]:
    return [FailedSession(session=session, reason=reason) for session, reason in reasons.items()]


def _failures_by_session(items: Any) -> Any:
    return {item["session"]: item for item in items} if isinstance(items, list) else items


def _session_failures(failures: Mapping[str, ConsolidationFailure]) -> list[SessionFailure]:
    return [SessionFailure(session=session, **dict(failure)) for session, failure in failures.items()]


class Consolidated(AnswerModel):
    """The result of a consolidation run."""

    model_config = ConfigDict(title="ConsolidationAnswer")

    changed: bool = Field(description="Whether USER.md changed; in a dry run, whether it would.")
    revision: int | None = Field(description="The revision of USER.md; in a dry run, the next one.")
    diff: str
    sessions: tuple[str, ...] = Field(description="The sessions that the profile draws on, last changed first.")
    outcome: Literal["written", "unchanged", "nothing"]
    reason: str
    failed: Annotated[dict[str, str], BeforeValidator(_reasons_by_session), PlainSerializer(_failed_sessions)] = Field(
        description="Sessions that could not be summarised in this run."
    )
    dry_run: bool
    calls: int
    tokens: int


class ConsolidationState(AnswerModel):
    """The status of a user."""

    model_config = ConfigDict(title="ConsolidationStateAnswer")

    tenant: str
    user: str
    due: bool
    why: str = Field(description="Why a run is due or not.")
    look_again_at: datetime | None = Field(description="When `due` may next change without new messages.")
    changed_sessions: int
    last_activity: datetime | None
    runs: int
    last_run_at: datetime | None
    last_outcome: str | None
    unfinished: bool = Field(description="The last run stopped at its budget.")
    revision: int | None
    held_by: str | None = Field(description="The holder of the user's lease; null in lists.")
    failure: ConsolidationFailure | None
    failed_sessions: Annotated[
        dict[str, ConsolidationFailure], BeforeValidator(_failures_by_session), PlainSerializer(_session_failures)
    ] = Field(description="Sessions whose last try failed; they are still pending.")
    background: bool = Field(description="Whether this daemon runs due users in the background.")


class ConsolidationStateList(AnswerModel):
    model_config = ConfigDict(title="ConsolidationStatesAnswer")

    items: list[ConsolidationState]
