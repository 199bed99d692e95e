"""Summariser: the contract for extracting facts from parts of sessions and making a profile from all facts.

A summariser has no access to a store. Its answers are untrusted: they pass the content filter, their sources are
checked, and what people wrote themselves takes precedence.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol

from memo.consolidation.budget import Budget
from memo.consolidation.profile import Part, ProfileDraft
from memo.consolidation.transcript import Transcript
from memo.errors import MemoError
from memo.ids import SessionId


class SummariserError(MemoError):
    """`retry_after_s` is the delay that the summariser requested."""

    code = "memo.summariser"
    retryable = True

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SummariserUnavailable(SummariserError):
    """The summariser cannot be used for any request at the moment."""

    code = "memo.summariser_unavailable"
    retryable_now: ClassVar[bool] = False


class BadAnswer(SummariserError):
    """The summariser's answer to this question cannot be used."""

    code = "memo.summariser_answer"


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement about the user, in one line. Of facts with the same `slot`, such as `name`, the newest wins."""

    part: Part
    text: str
    messages: tuple[int, ...]
    slot: str = ""


@dataclass(frozen=True, slots=True)
class SessionSummary:
    session: SessionId
    revision: int
    updated_at: datetime
    facts: tuple[Fact, ...]
    subjects: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The names that the session is about, each with the numbers of the messages that mention it."""


@dataclass(frozen=True, slots=True)
class SessionDraft:
    facts: tuple[Fact, ...] = ()
    subjects: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """Summaries, newest first. Texts that people deleted (`rejected`) or wrote (`own`) must not be proposed."""

    summaries: tuple[SessionSummary, ...]
    rejected: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


class Summariser(Protocol):
    @property
    def name(self) -> str:
        """Return the kind, model and version. A cached summary is valid only for the same name."""

    async def summarise(self, transcript: Transcript, budget: Budget) -> SessionDraft:
        """Return the facts about the user in one part of a session. Raise SummariserError or BudgetSpent."""

    async def draft_profile(self, request: ProfileRequest, budget: Budget) -> ProfileDraft:
        """Return a profile of the summaries. Raise SummariserError or BudgetSpent."""

    async def aclose(self) -> None:
        """Close connections and other resources."""
