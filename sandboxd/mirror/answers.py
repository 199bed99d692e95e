"""What memory answers with: values about mirrored files and writes, and the two errors of its own.

memo.RevisionConflict
└─ WriteConflict          nothing changed; `current` holds the newer text, `copy` where the refused text was kept
sandboxd.StoreUnavailable
└─ WriteOutcomeUnknown    the write may or may not have happened; the same request again is safe
"""

from __future__ import annotations

from dataclasses import dataclass

from memo.documents import ArtifactKey, Document, DocumentKey
from memo.errors import RevisionConflict
from sandboxd.errors import StoreUnavailable

Key = DocumentKey | ArtifactKey


@dataclass(frozen=True, slots=True)
class MirrorFile:
    """One file of a session's mirror, compared with the store by hash.

    `lag_ms` is how long this revision took to appear; of a file that is not in sync, how long it is overdue.
    """

    path: str
    revision: int
    sha256: str
    size: int
    in_sync: bool
    lag_ms: float
    pending: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """A write that the store has committed.

    `lagging` is how many mirrors could not be brought up to date at once (a full disk); they follow by themselves.
    """

    key: Key
    revision: int
    sha256: str
    size: int
    merged: bool = False
    lagging: int = 0


@dataclass(frozen=True, slots=True)
class Queued:
    """A write that is kept durably until the store is back. `number` grows; a document's writes keep their order."""

    key: Key
    number: int
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A write that was queued, and that the store will never take. It is kept in the outbox for a person to see."""

    key: Key
    number: int
    size: int
    at: float
    why: str


class WriteConflict(RevisionConflict):
    """The document moved on, and nothing was overwritten."""

    def __init__(self, message: str, current: Document | None = None, copy: DocumentKey | None = None) -> None:
        super().__init__(message, current)
        self.copy = copy


class WriteOutcomeUnknown(StoreUnavailable):
    """The store was asked and did not answer: the change may or may not be there."""

    outcome_unknown = True
