"""The results, progress and state of consolidation, as values for an API, a command line, metrics and events.

Only the diff and the document of a result hold document text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from memo.consolidation.policy import DUE, Standing, Why
from memo.documents import Document
from memo.errors import MemoError, Timeout
from memo.ids import SessionId, UserRef


class Outcome(StrEnum):
    """How a run ended. The texts are stored in the ledger."""

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
        """The outcome as one word, for programs."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class RunResult:
    """`sessions` are the sources of the profile; `failed` are those not summarised, with the reason."""

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
    """When the lease expires, if another run holds the user."""
    code: str = ""
    """The code of the MemoError that ended the run, otherwise empty."""
    retry_after_s: float | None = None
    """The delay that a failed summariser requested."""
    seconds: float = 0.0
    document: Document | None = field(default=None, repr=False)
    """USER.md as this run wrote it, None if it wrote nothing."""

    @property
    def is_changed(self) -> bool:
        return bool(self.diff)


@dataclass(frozen=True, slots=True)
class Progress:
    """One event of a scan or run. `kind` is scan, started, summarised, session_failed or finished."""

    kind: str
    user: UserRef | None = None
    session: SessionId | None = None
    done: int = 0
    total: int = 0
    result: RunResult | None = None
    is_dry: bool = False


@dataclass(frozen=True, slots=True)
class UserState:
    """The state of one user: past runs, pending changes, and the holder of the lease if a run is active."""

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


def code_of(error: BaseException) -> str:
    """Return the stable code of a MemoError or timeout; other errors have no code."""
    if isinstance(error, TimeoutError):
        return Timeout.code
    return error.code if isinstance(error, MemoError) else ""


def reason_of(error: BaseException) -> str:
    """Return why a run failed. Only the type of a third-party error is kept, because its text may quote the user."""
    return str(error) if isinstance(error, MemoError) else f"cannot continue: {type(error).__name__}"
