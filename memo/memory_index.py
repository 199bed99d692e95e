"""The memory index: one line for each document that an agent can read, with its size in tokens and its summary.

Built from a store's list of documents; it never reads a document.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from memo.documents import DocumentEntry
from memo.paths import path_of


@dataclass(frozen=True, slots=True)
class MemoryIndexEntry:
    name: str
    path: str
    tokens: int
    tokens_exact: bool
    age_s: float
    summary: str


def index_of(entries: Iterable[DocumentEntry], now: datetime) -> list[MemoryIndexEntry]:
    return [
        MemoryIndexEntry(
            name=entry.key.name,
            path=str(path_of(entry.key)),
            tokens=entry.tokens,
            tokens_exact=entry.tokens_exact,
            age_s=max(0.0, (now - entry.updated_at).total_seconds()),
            summary=entry.summary,
        )
        for entry in entries
    ]


def render_index(entries: Iterable[MemoryIndexEntry]) -> str:
    """Return the index as text for a model, one line for each entry."""
    return "\n".join(
        f"{e.path} ({'' if e.tokens_exact else '~'}{e.tokens} tokens, {_age(e.age_s)} old): {e.summary}"
        for e in entries
    )


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
