"""What a store lists, checked before it is used: its ids and hashes become names on the disk. Pure.

Whatever is wrong raises ValueError and says what; the caller knows whose list it is.
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
_FOREIGN = "it listed something that was not asked for"


def check_list(answer: object, most: int) -> None:
    if not isinstance(answer, list):
        raise ValueError(f"it answered with {type(answer).__name__} instead of a list")
    if len(answer) > most:
        raise ValueError(f"it listed {len(answer)}, and the limit is {most}")


def check_unique(keys: Collection[object]) -> None:
    if len(set(keys)) != len(keys):
        raise ValueError("it listed the same one twice")


def check_documents(entries: Sequence[DocumentEntry], wanted: DocumentKey) -> None:
    """See that these are documents of the same owner as `wanted`, each of them once."""
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
    """Check very many, a column at a time: that is much faster than one after the other."""
    if not lines:
        return
    if set(map(type, lines)) != {tuple} or set(map(len, lines)) != {4}:
        raise ValueError("it listed something that is no line")
    calls, revisions, hashes, sizes = zip(*lines, strict=True)
    if set(map(type, revisions)) | set(map(type, sizes)) != {int}:
        raise ValueError("it listed a revision or a size that is none")
    if set(map(type, hashes)) != {str} or set(map(len, hashes)) != {_HASH_CHARS} or not _is_hex("".join(hashes)):
        raise ValueError("it listed a hash that is none")
    if not all(issubclass(kind, str) for kind in set(map(type, calls))):
        raise ValueError("it listed an id that is none")
    if not are_legal(calls):
        raise ValueError("it listed an illegal id")
    check_unique(calls)


def _check_entry(revision: object, sha256: object, size_bytes: object, at: object) -> None:
    if not isinstance(revision, int) or not isinstance(size_bytes, int) or not isinstance(at, datetime):
        raise ValueError("it listed a revision, a size or a time that is none")
    if not (isinstance(sha256, str) and len(sha256) == _HASH_CHARS and _is_hex(sha256)):
        raise ValueError("it listed a hash that is none")


def _is_hex(text: str) -> bool:
    """Say whether this is nothing but digits: then it may stand in a file name, and leads nowhere else on the disk."""
    try:
        return len(bytes.fromhex(text)) * 2 == len(text)  # it would pass over blanks
    except ValueError:
        return False
