"""Everything that can go wrong with memory, as one error tree.

    MemoError
    ├─ InvalidKey · InvalidContent · TooLarge · TooMany · Unsupported
    ├─ Absent (needed, but never written or deleted) · Redacted · SessionTaken · NameTaken
    ├─ RevisionConflict   the document has a newer revision; `current` holds it
    ├─ LeaseLost (memo.leases)   another holder has the lease, or it has expired
    ├─ BudgetSpent · ProfileRefused · SummariserError (memo.consolidation)
    │                     SummariserUnavailable: fails for every request · BadAnswer: fails for this one
    └─ ProviderError      `outcome_unknown`: the change may or may not have happened
       ├─ Unavailable   nothing was done; retry
       ├─ Timeout       `outcome_unknown` is true for a write
       └─ Corrupt       the stored data cannot be read

Every error has a stable `code`, says whether a retry can help (`retryable`), and its message starts with "cannot".
`None` always means "there is no document"; an outage always raises one of these.
"""

from __future__ import annotations

from typing import ClassVar

from memo.content import Document


class MemoError(Exception):
    code: ClassVar[str] = "memo.error"
    retryable: ClassVar[bool] = False


class InvalidKey(MemoError):
    code = "memo.invalid_key"


class InvalidContent(MemoError):
    code = "memo.invalid_content"


class TooLarge(MemoError):
    code = "memo.too_large"


class TooMany(MemoError):
    """The owner has as many documents as the limit allows."""

    code = "memo.too_many"


class Absent(MemoError):
    code = "memo.absent"


class Redacted(MemoError):
    code = "memo.redacted"


class SessionTaken(MemoError):
    """The session exists and belongs to another user."""

    code = "memo.session_taken"


class NameTaken(MemoError):
    """A document or a directory of this name exists."""

    code = "memo.name_taken"


class RevisionConflict(MemoError):
    """`current` is the newest document, or None if there is none; `deletion` is the revision that deleted it."""

    code = "memo.conflict"

    def __init__(self, message: str, current: Document | None = None, *, deletion: int | None = None) -> None:
        super().__init__(message)
        self.current = current
        self.deletion = deletion


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
