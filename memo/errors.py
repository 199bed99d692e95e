"""Everything that can go wrong with memory, as one tree.

    MemoError
    ├─ InvalidKey · TooLarge · RevisionConflict · Unsupported
    └─ ProviderError
       ├─ Unavailable   nothing was done; try again
       ├─ Timeout       the outcome may be unknown, and says so
       └─ Corrupt       what is stored cannot be read

Every error has a stable `code`, says whether trying again can help, and a message that starts with
"cannot". `None` always means "never written"; an outage is always one of these.
"""

from __future__ import annotations

from typing import ClassVar


class MemoError(Exception):
    code: ClassVar[str] = "memo.error"
    retryable: ClassVar[bool] = False


class InvalidKey(MemoError):
    code = "memo.invalid_key"


class TooLarge(MemoError):
    code = "memo.too_large"


class RevisionConflict(MemoError):
    code = "memo.conflict"


class Unsupported(MemoError):
    code = "memo.unsupported"


class ProviderError(MemoError):
    code = "store.error"


class Unavailable(ProviderError):
    code = "store.unavailable"
    retryable = True


class Timeout(ProviderError):
    code = "store.timeout"
    retryable = True


class Corrupt(ProviderError):
    code = "store.corrupt"
