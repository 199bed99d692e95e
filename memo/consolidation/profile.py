"""The profile as values: bullets with sources, what the last run generated, and what people deleted since.

Pure. `ProfileMemory` is stored as JSON in the ledger and records which lines of USER.md are generated. Bullets are
compared by their words, so that a deleted one does not come back rephrased.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from memo.errors import Corrupt, MemoError
from memo.ids import SessionId

SHOWN_SOURCES = 3
MAX_NAMED_CHARS = 100
"""How much of a bullet the history repeats."""
SIMILARITY = 0.75
"""Two bullets with at least this share of common words count as equal."""

_WORD = re.compile(r"[^\W_]+(?:[+#]+|(?:['.-][^\W_]+)*)")
_STOPWORDS = frozenset(
    re.findall(
        r"\w+",
        "a an the and or of to in on at for with from by as is are be was were it its this that these those their they "
        "them user users he she his her has have had do does very really also than then so",
    )
)


class ProfileRefused(MemoError):
    """The summariser's result is not good enough to replace the profile. Nothing was changed."""

    code = "memo.profile_refused"


class Part(StrEnum):
    """The generated sections, in the order of the page. The value is the heading."""

    CURRENT = "Current profile"
    PREFERENCES = "Preferences"
    FOCUS = "Focus areas"
    ROLE = "Role and context"
    AVOID = "Avoid"


HISTORY = "History"
TITLES = (*(part.value for part in Part), HISTORY)


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """The message that a bullet comes from, by its number in the full history of the session, from 1."""

    session: SessionId
    message: int

    def __str__(self) -> str:
        return f"{self.session}#{self.message}"


@dataclass(frozen=True, slots=True)
class Bullet:
    part: Part
    text: str
    sources: tuple[Source, ...]

    @property
    def line(self) -> str:
        """The bullet as a line of the page, followed by its newest sources."""
        shown = " ".join(map(str, self.sources[:SHOWN_SOURCES]))
        more = f" and {len(self.sources) - SHOWN_SOURCES} more" if len(self.sources) > SHOWN_SOURCES else ""
        return f"- {self.text} <!-- from {shown}{more} -->"


@dataclass(frozen=True, slots=True)
class Correction:
    """A bullet, or a name in one, that a newer bullet made untrue."""

    older: str
    newer: str

    def __str__(self) -> str:
        return f'"{_shortened(self.newer)}" replaces "{_shortened(self.older)}"'


@dataclass(frozen=True, slots=True)
class ProfileDraft:
    """A summariser's proposal, before filtering and merging."""

    summary: str
    bullets: tuple[Bullet, ...]
    replaced: tuple[Correction, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenBullet:
    """A bullet that a run wrote to the page, and its exact line."""

    bullet: Bullet
    line: str


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The text of a bullet that a person deleted or rewrote. It does not come back."""

    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ProfileMemory:
    """What past runs wrote to the page, and what people removed from it."""

    written: tuple[WrittenBullet, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    summary: str = ""
    """The exact line of the summary; empty if no run wrote one."""
    history: tuple[str, ...] = ()
    is_history_unwanted: bool = False
    """Whether a person deleted the History section."""

    def encode(self) -> dict[str, Any]:
        return {
            "version": 1,
            "written": [
                {
                    "part": w.bullet.part.name,
                    "text": w.bullet.text,
                    "sources": [[source.session, source.message] for source in w.bullet.sources],
                    "line": w.line,
                }
                for w in self.written
            ],
            "tombstones": [{"text": t.text, "at": t.at.isoformat()} for t in self.tombstones],
            "summary": self.summary,
            "history": list(self.history),
            "history_unwanted": self.is_history_unwanted,
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        if not value:
            return cls()
        try:
            return cls(
                tuple(
                    WrittenBullet(Bullet(Part[w["part"]], w["text"], parse_sources(w["sources"])), w["line"])
                    for w in value["written"]
                ),
                tuple(Tombstone(t["text"], datetime.fromisoformat(t["at"])) for t in value["tombstones"]),
                str(value["summary"]),
                tuple(value["history"]),
                bool(value["history_unwanted"]),
            )
        except (KeyError, TypeError, ValueError):
            raise Corrupt("cannot read the memory of a profile: its ledger entry is damaged") from None


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_NAMED_CHARS else f"{text[:MAX_NAMED_CHARS]}…"


def parse_sources(pairs: list[Any]) -> tuple[Source, ...]:
    return tuple(Source(SessionId(session), int(message)) for session, message in pairs)


@lru_cache(maxsize=8192)
def plain(text: str) -> str:
    """Return the text for an exact comparison, without case, extra spacing, or punctuation at either end."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).strip(" .;:,!*_`\"'")


@lru_cache(maxsize=8192)
def words(text: str) -> frozenset[str]:
    found = (_stem(word) for word in _WORD.findall(plain(text)))
    return frozenset(word for word in found if word not in _STOPWORDS)


def is_alike(one: str, other: str) -> bool:
    """Return whether two bullets say the same thing, comparing their words and ignoring word order."""
    if plain(one) == plain(other):
        return True
    first, second = words(one), words(other)
    if not first or not second:
        return False
    shared = len(first & second)
    if shared == min(len(first), len(second)) and shared >= 2:
        return True
    return shared / len(first | second) >= SIMILARITY


def _stem(word: str) -> str:
    """Remove a plural or third-person ending, so that "likes" equals "like"."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
