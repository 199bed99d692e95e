"""Three-way merges of texts, and the name under which a text is kept that could not be merged. Pure."""

from __future__ import annotations

from merge3 import Merge3

from memo.documents import DocumentKey, DocumentName

MOST_LINES = 20_000
"""Beyond this a merge would take longer than anybody waits; the text is kept beside the other instead."""

_MOST_NAME = 128
_MOST_SUFFIX = 32  # with the longest mark, this leaves room for the beginning of the stem


def merge(base: str, mine: str, theirs: str) -> str | None:
    """Return a text with both changes, or None where they touch the same lines."""
    if mine in (theirs, base):
        return theirs
    if theirs == base:
        return mine
    before, ours, others = (text.splitlines(keepends=True) for text in (base, mine, theirs))
    if max(len(before), len(ours), len(others)) > MOST_LINES:
        return None
    merged: list[str] = []
    for group in Merge3(before, ours, others).merge_groups():
        if group[0] == "conflict":
            return None
        merged += group[1]
    return "".join(merged)


def copy_key(key: DocumentKey, base: int, mark: str) -> DocumentKey:
    """Return where a conflicting text is kept: beside its document, named after what it was based on."""
    stem, dot, suffix = key.name.rpartition(".")
    if not dot:
        stem, suffix = key.name, ""
    tail = f".conflict-{base}-{mark}{dot}{suffix[:_MOST_SUFFIX]}"
    name = DocumentName(stem[: _MOST_NAME - len(tail)] + tail)
    return DocumentKey(key.tenant, key.owner, key.scope, name)
