"""Outcomes of memory operations: the results of a write, and two errors.

memo.RevisionConflict
└─ WriteConflict          nothing was overwritten; `current` is the newer text, `copy` names a copy of the refused one
sandboxd.StoreUnavailable
└─ WriteOutcomeUnknown    the write may or may not have happened; repeating the request is safe
"""

from __future__ import annotations

from dataclasses import dataclass

from memo.documents import ArtifactKey, Document, DocumentKey
from memo.errors import RevisionConflict
from sandboxd.errors import StoreUnavailable

Key = DocumentKey | ArtifactKey


@dataclass(frozen=True, slots=True)
class Committed:
    """A write that the store has committed.

    `is_altered` says that the stored text differs from the given one: it was merged, or the provider normalises texts.
    `lagging` is how many mirrors could not be updated at once (a full disk); they are retried in the background.
    """

    key: Key
    revision: int
    sha256: str
    size: int
    merged: bool = False
    is_altered: bool = False
    lagging: int = 0


@dataclass(frozen=True, slots=True)
class Queued:
    """A write kept durably until the store is back. Numbers only increase, and a document's writes keep their order."""

    key: Key
    number: int
    sha256: str
    size: int


class WriteConflict(RevisionConflict):
    """The document has a newer revision, or was deleted, and nothing was overwritten."""

    def __init__(
        self,
        message: str,
        current: Document | None = None,
        copy: DocumentKey | None = None,
        *,
        deletion: int | None = None,
    ) -> None:
        super().__init__(message, current, deletion=deletion)
        self.copy = copy


class WriteOutcomeUnknown(StoreUnavailable):
    """The store did not answer a write: the change may or may not be there."""

    outcome_unknown = True
