"""Everything that can go wrong with memory, as one tree.

    MemoError
    ├─ InvalidKey · InvalidContent · TooLarge · Unsupported
    ├─ Absent (what a verb needs was never written) · Redacted · SessionTaken
    ├─ RevisionConflict   the document moved on; `current` holds what it is now
    ├─ LeaseLost (memo.leases)   another holder has the lease, or it is over
    ├─ BudgetSpent · ProfileRefused · SummariserError (memo.consolidation)
    │                     SummariserUnavailable: not now, whatever it is asked · BadAnswer: not this
    └─ ProviderError      `outcome_unknown` says that the change may or may not have happened
       ├─ Unavailable   nothing was done; try again
       ├─ Timeout       the outcome may be unknown, and says so
       └─ Corrupt       what is stored cannot be read

Every error has a stable `code`, says whether trying again can help, and a message that starts with
"cannot". `None` always means "never written"; an outage is always one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from memo.documents import Document


class MemoError(Exception):
    code: ClassVar[str] = "memo.error"
    retryable: ClassVar[bool] = False


class InvalidKey(MemoError):
    code = "memo.invalid_key"


class InvalidContent(MemoError):
    code = "memo.invalid_content"


class TooLarge(MemoError):
    code = "memo.too_large"


class Absent(MemoError):
    code = "memo.absent"


class Redacted(MemoError):
    code = "memo.redacted"


class SessionTaken(MemoError):
    """The session exists and belongs to another user."""

    code = "memo.session_taken"


class RevisionConflict(MemoError):
    """`current` is the document as it stands, or None if it was never written."""

    code = "memo.conflict"

    def __init__(self, message: str, current: Document | None = None) -> None:
        super().__init__(message)
        self.current = current


class Unsupported(MemoError):
    code = "memo.unsupported"


class ProviderError(MemoError):
    code = "store.error"

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class Unavailable(ProviderError):
    code = "store.unavailable"
    retryable = True


class Timeout(ProviderError):
    code = "store.timeout"
    retryable = True

    def __init__(self, message: str, *, outcome_unknown: bool = True) -> None:
        super().__init__(message, outcome_unknown=outcome_unknown)


class Corrupt(ProviderError):
    code = "store.corrupt"
