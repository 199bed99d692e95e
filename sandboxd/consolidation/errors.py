"""The errors of a failed consolidation run.

    ConsolidationFailed (a DependencyError)
    ├─ ConsolidationHeld · ConsolidationLost      another run holds the user, or took over
    ├─ SummariserUnreachable · SummariserFailed   it cannot be used now; its answer cannot be used
    └─ ConsolidationRefused · BudgetTooSmall · RunTimeout

A failing store raises one of memo's own errors.
"""

from __future__ import annotations

from memo import errors
from memo.consolidation import Outcome, RunResult
from memo.errors import ProviderError
from sandboxd.errors import DependencyError

DONE = frozenset({Outcome.WRITTEN, Outcome.UNCHANGED, Outcome.NOTHING})


class ConsolidationFailed(DependencyError):
    """The run ended without a profile; the message says why. The user is retried later."""

    code = "consolidation.failed"


class ConsolidationHeld(ConsolidationFailed):
    """Another run holds this user, in this daemon or in another one on the same store."""

    code = "consolidation.held"


class ConsolidationLost(ConsolidationFailed):
    """The run lost its lease to another run. Nothing was changed."""

    code = "consolidation.lost"


class ConsolidationRefused(ConsolidationFailed):
    """The summariser's profile is not good enough to replace the current one."""

    code = "consolidation.refused"


class BudgetTooSmall(ConsolidationFailed):
    """The budget of a run is too small for even one session."""

    code = "consolidation.budget"
    retryable = False


class SummariserUnreachable(ConsolidationFailed):
    code = "consolidation.summariser_unavailable"


class SummariserFailed(ConsolidationFailed):
    """The summariser's answer cannot be used."""

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
    "memo.summariser": SummariserFailed,
    "memo.summariser_answer": SummariserFailed,
    "memo.summariser_unavailable": SummariserUnreachable,
    errors.Unavailable.code: errors.Unavailable,
    errors.Corrupt.code: errors.Corrupt,
    errors.Timeout.code: RunTimeout,
}


def error_of(result: RunResult) -> ConsolidationFailed | ProviderError | None:
    """Return the error of a failed run, or None if it succeeded."""
    if result.outcome in DONE:
        return None
    if result.outcome is Outcome.HELD:
        until = "" if result.until is None else f" until {result.until.isoformat(timespec='seconds')} at the latest"
        return ConsolidationHeld(f"cannot consolidate this user now: another run holds the lease{until}")
    kind = _BY_OUTCOME.get(result.outcome) or _BY_CODE.get(result.code, ConsolidationFailed)
    return kind(result.reason or f"cannot consolidate this user: {result.outcome}")
