"""What a run came to, and what happens meanwhile, as values for an API, a command line, metrics and events.

Nothing here holds document text but the diff of a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from memo.consolidation.policy import DUE, Why
from memo.consolidation.standing import Standing
from memo.ids import SessionId, UserRef


class Outcome(StrEnum):
    WRITTEN = "written"
    UNCHANGED = "unchanged"
    NOTHING = "nothing to say"
    POSTPONED = "postponed"
    HELD = "held by another run"
    NOT_DUE = "not due"
    REFUSED = "refused"
    FAILED = "failed"
    LOST = "lease lost"

    @property
    def code(self) -> str:
        """One word, for a program."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class RunResult:
    """`sessions` are those that the profile is made of; `failed` those that could not be summarised, and why."""

    user: UserRef
    outcome: Outcome
    reason: str = ""
    why: Why | None = None
    revision: int | None = None
    diff: str = ""
    sessions: tuple[SessionId, ...] = ()
    failed: tuple[tuple[SessionId, str], ...] = ()
    calls: int = 0
    tokens: int = 0
    is_dry: bool = False
    until: datetime | None = None
    """Of a user that another run holds: when its lease ends at the latest."""
    code: str = ""
    """The code of the error that ended it; \"\" if none did, or one that is not ours."""
    retry_after_s: float | None = None
    """When a summariser that failed said to come back."""
    seconds: float = 0.0

    @property
    def is_changed(self) -> bool:
        return bool(self.diff)


@dataclass(frozen=True, slots=True)
class Progress:
    """Something that happened. `kind` is scan, started, summarised, session_failed, or finished."""

    kind: str
    user: UserRef | None = None
    session: SessionId | None = None
    done: int = 0
    total: int = 0
    result: RunResult | None = None
    is_dry: bool = False


@dataclass(frozen=True, slots=True)
class UserState:
    """What is known of one user: how they stand, what waits, and who is at it now."""

    user: UserRef
    standing: Standing
    changed: int
    last_activity: datetime | None
    why: Why
    look_again_at: datetime | None
    holder: str | None
    revision: int | None

    @property
    def last_outcome(self) -> Outcome | None:
        return next((outcome for outcome in Outcome if outcome == self.standing.last_outcome), None)

    @property
    def is_due(self) -> bool:
        return self.why in DUE

    @property
    def is_failing(self) -> bool:
        return self.standing.failure is not None or bool(self.standing.sessions)
