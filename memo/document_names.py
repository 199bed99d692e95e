"""The name of a document: a path of one to eight safe segments, and which names exclude each other.

    NOTES.md        USER.md        memories/projects/x.md

Pure. An illegal name is rejected, never repaired. The same names are legal in every store, so that data can move
between stores.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final, Self

from memo.errors import InvalidKey, NameTaken, TooMany
from memo.ids import Id

MOST_SEGMENTS: Final = 8
MOST_NAME_BYTES: Final = 512

_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,127}"
_LEGAL = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,{MOST_SEGMENTS - 1}}}")

# First segments with another meaning in a session's directory, in a mirror or in a filesystem store.
RESERVED_NAMES: Final = frozenset(
    {"tool-results", "session.jsonl", "messages.jsonl", "messages.compactions", "trace", "orchestration"}
)
# Last segments that name what is asked about a document in a URL: …/memo/a/history is the history of `a`.
_VERBS: Final = frozenset({"history", "diff", "restore"})


class DocumentName(Id):
    """A path that is safe in every directory: ASCII segments between slashes, never hidden, never reserved."""

    __slots__ = ()
    noun = "document name"

    def __new__(cls, text: object) -> Self:
        if not isinstance(text, str) or len(text) > MOST_NAME_BYTES or _LEGAL.fullmatch(text) is None:
            raise InvalidKey(
                f"cannot use this document name: it must be 1 to {MOST_SEGMENTS} segments between slashes, at most "
                f"{MOST_NAME_BYTES} characters in all, each of 1 to 128 characters of A-Z a-z 0-9 . _ @ + - that "
                "start with a letter, a digit or _"
            )
        name = str.__new__(cls, text)
        first, *rest = name.segments
        if first.lower() in RESERVED_NAMES:
            raise InvalidKey(f"cannot use this document name: {first} is reserved; choose another name")
        if rest and first in WELL_KNOWN:
            raise InvalidKey(f"cannot use this document name: {first} is a document, not a directory")
        if rest and rest[-1] in _VERBS:
            raise InvalidKey(
                f"cannot use this document name: {rest[-1]} is reserved at the end of a path; add a suffix such as .md"
            )
        return name

    @property
    def segments(self) -> list[str]:
        return self.split("/")

    @property
    def ancestors(self) -> list[str]:
        """The names of the directories that it is in, outermost first."""
        parts = self.segments
        return ["/".join(parts[:count]) for count in range(1, len(parts))]


WELL_KNOWN: Final = frozenset({"NOTES.md", "TODO.md", "USER.md"})
"""Documents with a meaning of their own. No limit counts them, because compaction and consolidation create them."""


def clashes(name: DocumentName, others: Collection[str]) -> Iterator[str]:
    """Yield the names that cannot exist beside this one: a name is a document or a directory of documents, not both."""
    yield from (ancestor for ancestor in name.ancestors if ancestor in others)
    below = f"{name}/"
    yield from (other for other in others if other.startswith(below))


def name_taken(name: DocumentName, other: str) -> NameTaken:
    if name.startswith(f"{other}/"):
        why = f"{other} is a document, so it cannot also be a directory; delete or move it first"
    else:
        why = f"{other} exists, so {name} is a directory; choose another name"
    return NameTaken(f"cannot create {name}: {why}")


def name_exists(name: DocumentName) -> NameTaken:
    return NameTaken(f"cannot move a document to {name}: it exists; delete it first, or choose another name")


def too_many(name: DocumentName, most: int) -> TooMany:
    return TooMany(f"cannot create {name}: there are {most} documents already, which is the limit; delete some first")


def count_limited(names: Collection[str]) -> int:
    """Return how many of the names count towards the limit: all except the well-known ones."""
    return len(names) - sum(name in names for name in WELL_KNOWN)


def check_new_name(name: DocumentName, others: Collection[str], most: int) -> None:
    """Raise NameTaken or TooMany if a document of this name cannot be created beside the others."""
    other = next(clashes(name, others), None)
    if other is not None:
        raise name_taken(name, other)
    if count_limited(others) >= most and name not in WELL_KNOWN:
        raise too_many(name, most)
