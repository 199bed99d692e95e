"""The contract of a summariser: facts from one part of a session, and a profile from the facts of all sessions.

A summariser reads and answers; it never sees a store. What it answers is untrusted: it is screened, its sources are
checked, and people's own words win. Any object with the two methods will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol

from memo.consolidation.budget import Budget
from memo.consolidation.profile import Part, ProfileDraft
from memo.consolidation.transcripts import Transcript
from memo.errors import MemoError
from memo.ids import SessionId


class SummariserError(MemoError):
    """`retry_after_s` is when the other side said to come back."""

    code = "memo.summariser"
    retryable = True

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SummariserUnavailable(SummariserError):
    """It cannot be asked now, whatever it is asked."""

    code = "memo.summariser_unavailable"
    retryable_now: ClassVar[bool] = False


class BadAnswer(SummariserError):
    """It answered this, and the answer cannot be used."""

    code = "memo.summariser_answer"


@dataclass(frozen=True, slots=True)
class Fact:
    """Something the user said, in one line. `slot` names what can have one value only, such as a name."""

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
    """Words that the session turns on, each with the messages that it is in."""


@dataclass(frozen=True, slots=True)
class SessionDraft:
    facts: tuple[Fact, ...] = ()
    subjects: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """Newest session first. `rejected` are texts that people deleted, `own` those they wrote: none is wanted again."""

    summaries: tuple[SessionSummary, ...]
    rejected: tuple[str, ...] = ()
    own: tuple[str, ...] = ()


class Summariser(Protocol):
    @property
    def name(self) -> str:
        """Return what makes its answers what they are: kind, model, version. A cached summary is valid for one name."""

    async def summarise(self, transcript: Transcript, budget: Budget) -> SessionDraft:
        """Return what one part of a session says of the user. Raise SummariserError or BudgetSpent."""

    async def draft_profile(self, request: ProfileRequest, budget: Budget) -> ProfileDraft:
        """Return a profile made of the summaries. Raise SummariserError or BudgetSpent."""

    async def aclose(self) -> None:
        """Let go of what it holds open."""
