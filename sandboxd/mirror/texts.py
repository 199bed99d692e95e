"""Texts on their way from a store to a mirror, and the number that stands for a revision where a store has none.

Pure. A plain provider knows no revisions, so the number is made of the content's hash: the same text is the same
number, on every host and after every restart, and it says nothing about which text is newer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Self

from memo.documents import ArtifactEntry, ArtifactKey, Document, Scope, sha256_of
from memo.paths import ARTIFACT_DIRECTORY, ARTIFACT_SUFFIX
from sandboxd.mirror.answers import Key

_ARTIFACTS = f"{Scope.SESSION}/{ARTIFACT_DIRECTORY}/"
_NUMBER_DIGITS = 13  # 52 bits: every JSON reader keeps such a number exactly


@dataclass(frozen=True, slots=True)
class Text:
    """One state of one document or artifact."""

    encoded: bytes
    sha256: str
    revision: int

    @classmethod
    def of(cls, encoded: bytes, revision: int | None = None) -> Self:
        sha256 = sha256_of(encoded)
        return cls(encoded, sha256, number_of(sha256) if revision is None else revision)

    def document(self) -> Document:
        return Document(self.encoded.decode(), self.revision, self.sha256)


class Listed(NamedTuple):
    """One line of what a store says a session has. What a plain provider cannot say is None."""

    key: Key
    revision: int | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    at: datetime | None = None


Item = Listed | ArtifactEntry
"""A store's entry of an artifact says the same in the same order; there may be very many, so it is used as it is."""


def number_of(sha256: str) -> int:
    return int(sha256[:_NUMBER_DIGITS], 16)


def prefix_of(number: int) -> str:
    """The beginning of every sha256 that this number stands for."""
    return f"{number:0{_NUMBER_DIGITS}x}"


def relative_of(key: Key) -> str:
    """Where a key is shown, below the root of a mirror: `memo.paths`, without making a path first."""
    if isinstance(key, ArtifactKey):
        return _ARTIFACTS + key.tool_call + ARTIFACT_SUFFIX  # three times as fast as formatting, for very many
    return f"{key.scope.value}/{key.name}"
