"""Checks of the lists that a store returns: their ids and hashes become file names on the host. Pure.

An invalid list raises ValueError with the reason; the caller adds which list it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from memo.documents import ArtifactEntry, ArtifactKey, DocumentEntry, DocumentKey, DocumentName
from memo.ids import SessionRef, ToolCallId, are_legal
from memo.provider import ArtifactLine

MOST_DOCUMENTS = 10_000
MOST_ARTIFACTS = 100_000
_HASH_CHARS = 64
_FOREIGN = "it lists a key that was not requested"


def check_list(answer: object, most: int) -> None:
    if not isinstance(answer, list):
        raise ValueError(f"{type(answer).__name__} instead of a list")
    if len(answer) > most:
        raise ValueError(f"it lists {len(answer)} items, and the limit is {most}")


def check_unique(keys: Collection[object]) -> None:
    if len(set(keys)) != len(keys):
        raise ValueError("it lists a key twice")


def check_documents(entries: Sequence[DocumentEntry], wanted: DocumentKey) -> None:
    """Check that these are documents of the same owner as `wanted`, each listed once."""
    for entry in entries:
        if not isinstance(entry, DocumentEntry) or not isinstance(entry.key, DocumentKey):
            raise ValueError(_FOREIGN)
        key = entry.key
        if key != DocumentKey(wanted.tenant, wanted.owner, wanted.scope, DocumentName(key.name)):
            raise ValueError(_FOREIGN)
        _check_entry(entry.revision, entry.sha256, entry.size_bytes, entry.updated_at)
    check_unique([entry.key for entry in entries])


def check_artifacts(entries: Sequence[ArtifactEntry], session: SessionRef) -> None:
    for entry in entries:
        if not isinstance(entry, ArtifactEntry) or not isinstance(entry.key, ArtifactKey):
            raise ValueError(_FOREIGN)
        key, revision, sha256, size_bytes, at = entry
        if not isinstance(key.tool_call, ToolCallId) or key.session != session:
            raise ValueError(_FOREIGN)
        _check_entry(revision, sha256, size_bytes, at)
    check_unique([entry.key.tool_call for entry in entries])


def check_lines(lines: Sequence[ArtifactLine]) -> None:
    """Check a long list column by column, which is much faster than row by row."""
    if not lines:
        return
    if set(map(type, lines)) != {tuple} or set(map(len, lines)) != {4}:
        raise ValueError("an item is not a line of four fields")
    calls, revisions, hashes, sizes = zip(*lines, strict=True)
    if set(map(type, revisions)) | set(map(type, sizes)) != {int}:
        raise ValueError("invalid revision or size")
    if set(map(type, hashes)) != {str} or set(map(len, hashes)) != {_HASH_CHARS} or not _is_hex("".join(hashes)):
        raise ValueError("invalid hash")
    if not all(issubclass(kind, str) for kind in set(map(type, calls))):
        raise ValueError("an id is not text")
    if not are_legal(calls):
        raise ValueError("it lists an illegal id")
    check_unique(calls)


def _check_entry(revision: object, sha256: object, size_bytes: object, at: object) -> None:
    if not isinstance(revision, int) or not isinstance(size_bytes, int) or not isinstance(at, datetime):
        raise ValueError("invalid revision, size or timestamp")
    if not (isinstance(sha256, str) and len(sha256) == _HASH_CHARS and _is_hex(sha256)):
        raise ValueError("invalid hash")


def _is_hex(text: str) -> bool:
    """Return whether the text has only hex digits and is therefore safe as a file name."""
    try:
        return len(bytes.fromhex(text)) * 2 == len(text)  # fromhex skips whitespace
    except ValueError:
        return False
