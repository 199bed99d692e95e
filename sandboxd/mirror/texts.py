"""Texts on their way from a store to a mirror, and the number that stands for a revision where a store has none.

Pure. A plain provider knows no revisions, so the number is made of the content's hash: the same text is the same
number, on every host and after every restart, and it says nothing about which text is newer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Self

from memo.documents import ArtifactEntry, ArtifactKey, Document, Scope, sha256_of
from memo.ids import SessionRef, ToolCallId, UserId
from memo.paths import ARTIFACT_DIRECTORY, ARTIFACT_SUFFIX, MEMO_ROOT, key_at
from memo.provider import ArtifactLine
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
"""A store's entry of an artifact says the same in the same order."""

Line = tuple[str, int | None, str | None, int | None]
"""One file of a snapshot: its path below the root, revision, hash and size; None is what a plain provider cannot say.

A bare tuple, for there may be very many.
"""


def number_of(sha256: str) -> int:
    return int(sha256[:_NUMBER_DIGITS], 16)


def prefix_of(number: int) -> str:
    """The beginning of every sha256 that this number stands for."""
    return f"{number:0{_NUMBER_DIGITS}x}"


def lines_of(artifacts: Iterable[ArtifactLine]) -> list[Line]:
    return [
        (_ARTIFACTS + call + ARTIFACT_SUFFIX, revision, sha256, size_bytes)
        for call, revision, sha256, size_bytes in artifacts
    ]


def is_artifact(relative: str) -> bool:
    return relative.startswith(_ARTIFACTS)


def key_of(relative: str, session: SessionRef, user: UserId) -> Key:
    """Return what a line of a checked list is about: `memo.paths`, without taking a path apart."""
    if is_artifact(relative):
        return ArtifactKey(session, ToolCallId(relative[len(_ARTIFACTS) : -len(ARTIFACT_SUFFIX)]))
    return key_at(f"{MEMO_ROOT}/{relative}", session, user)


def relative_of(key: Key) -> str:
    """Where a key is shown, below the root of a mirror: `memo.paths`, without making a path first."""
    if isinstance(key, ArtifactKey):
        return _ARTIFACTS + key.tool_call + ARTIFACT_SUFFIX  # three times as fast as formatting, for very many
    return f"{key.scope.value}/{key.name}"
