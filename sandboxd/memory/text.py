"""Text: one state of a document or artifact on its way from the store to a mirror. Pure.

A plain provider has no revisions, so a number derived from the content's hash stands in: equal texts have equal
numbers, on every host and after every restart, but the numbers do not tell which text is newer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Self

from memo.content import NUMBER_DIGITS, number_of
from memo.documents import ArtifactEntry, ArtifactKey, Document, Scope, sha256_of
from memo.ids import SessionRef, ToolCallId, UserId
from memo.paths import ARTIFACT_DIRECTORY, ARTIFACT_SUFFIX, MEMO_ROOT, key_at
from memo.provider import ArtifactLine
from sandboxd.memory.outcomes import Key

_ARTIFACTS = f"{Scope.SESSION}/{ARTIFACT_DIRECTORY}/"


@dataclass(frozen=True, slots=True)
class Content:
    """A text to be written, encoded and hashed once on its way to the store and the mirrors."""

    text: str
    encoded: bytes
    sha256: str

    @classmethod
    def of(cls, text: str, encoded: bytes | None = None) -> Self:
        encoded = text.encode() if encoded is None else encoded
        return cls(text, encoded, sha256_of(encoded))

    def at(self, revision: int | None = None) -> Text:
        """Return it as a state of its document; without a revision, as a plain provider would."""
        return Text(self.encoded, self.sha256, number_of(self.sha256) if revision is None else revision)


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
    """One item of a store's list of a session. Fields that a plain provider does not supply are None."""

    key: Key
    revision: int | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    at: datetime | None = None


Item = Listed | ArtifactEntry
"""A store's artifact entry has the same fields in the same order."""

Line = tuple[str, int | None, str | None, int | None]
"""One file of a snapshot: path below the root, revision, hash and size; None if a plain provider does not supply it.

A bare tuple, because a session may have tens of thousands.
"""


def prefix_of(number: int) -> str:
    """Return the prefix shared by every sha256 that has this number."""
    return f"{number:0{NUMBER_DIGITS}x}"


def lines_of(artifacts: Iterable[ArtifactLine]) -> list[Line]:
    return [
        (_ARTIFACTS + call + ARTIFACT_SUFFIX, revision, sha256, size_bytes)
        for call, revision, sha256, size_bytes in artifacts
    ]


def is_artifact(relative: str) -> bool:
    return relative.startswith(_ARTIFACTS)


def key_of(relative: str, session: SessionRef, user: UserId) -> Key:
    """Return the key of a checked line. Faster than `memo.paths`, which parses."""
    if is_artifact(relative):
        return ArtifactKey(session, ToolCallId(relative[len(_ARTIFACTS) : -len(ARTIFACT_SUFFIX)]))
    return key_at(f"{MEMO_ROOT}/{relative}", session, user)


def relative_of(key: Key) -> str:
    """Return where a key is shown, relative to the root of a mirror."""
    if isinstance(key, ArtifactKey):
        return _ARTIFACTS + key.tool_call + ARTIFACT_SUFFIX  # three times as fast as an f-string
    return f"{key.scope.value}/{key.name}"
