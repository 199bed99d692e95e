"""What a run of consolidation that did not do its work is answered with.

    ConsolidationFailed (a DependencyError)
    ├─ ConsolidationHeld · ConsolidationLost      another run has the user, or got them meanwhile
    ├─ SummariserAway · SummariserWrong           it cannot be asked now; it answered, and not well
    └─ ConsolidationRefused · BudgetTooSmall · RunTimeout

A store that fails is one of memo's own errors.
"""

from __future__ import annotations

from memo import errors
from memo.consolidation import Outcome, RunResult
from memo.errors import ProviderError
from sandboxd.errors import DependencyError

DONE = frozenset({Outcome.WRITTEN, Outcome.UNCHANGED, Outcome.NOTHING})


class ConsolidationFailed(DependencyError):
    """The run ended without a profile, for a reason that is shown. The user is tried again later by itself."""

    code = "consolidation.failed"


class ConsolidationHeld(ConsolidationFailed):
    """Another run has this user: of this daemon, or of another one on the same store."""

    code = "consolidation.held"


class ConsolidationLost(ConsolidationFailed):
    """Its lease went to somebody else meanwhile. Nothing was changed."""

    code = "consolidation.lost"


class ConsolidationRefused(ConsolidationFailed):
    """What the summariser made is not good enough to replace what is there."""

    code = "consolidation.refused"


class BudgetTooSmall(ConsolidationFailed):
    """Not even the first session fits what one run may spend."""

    code = "consolidation.budget"
    retryable = False


class SummariserAway(ConsolidationFailed):
    code = "consolidation.summariser_unavailable"


class SummariserWrong(ConsolidationFailed):
    """The summariser answered, and the answer cannot be used."""

    code = "consolidation.summariser"


class RunTimeout(ConsolidationFailed):
    code = "consolidation.timeout"


_BY_OUTCOME: dict[Outcome, type[ConsolidationFailed]] = {
    Outcome.HELD: ConsolidationHeld,
    Outcome.LOST: ConsolidationLost,
    Outcome.REFUSED: ConsolidationRefused,
    Outcome.POSTPONED: BudgetTooSmall,
}
_BY_CODE: dict[str, type[ConsolidationFailed | ProviderError]] = {
    "memo.summariser": SummariserWrong,
    "memo.summariser_answer": SummariserWrong,
    "memo.summariser_unavailable": SummariserAway,
    errors.Unavailable.code: errors.Unavailable,
    errors.Corrupt.code: errors.Corrupt,
    errors.Timeout.code: RunTimeout,
}


def error_of(result: RunResult) -> ConsolidationFailed | ProviderError | None:
    """Return what a run that did not do its work is answered with; None if it did."""
    if result.outcome in DONE:
        return None
    if result.outcome is Outcome.HELD:
        until = "" if result.until is None else f", at the latest until {result.until.isoformat(timespec='seconds')}"
        return ConsolidationHeld(f"cannot consolidate this user now: another run has them{until}")
    kind = _BY_OUTCOME.get(result.outcome) or _BY_CODE.get(result.code, ConsolidationFailed)
    return kind(result.reason or f"cannot consolidate this user: {result.outcome}")
