"""The profile as values: bullets with their sources, what was generated last, what was deleted since; how it is shown.

Pure. The memory of a profile is JSON in the ledger; it says which lines of USER.md are ours, and so which are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from memo.errors import Corrupt, MemoError
from memo.ids import SessionId

SHOWN_SOURCES = 3


class ProfileRefused(MemoError):
    """A summariser's result is not good enough to replace what is there. Nothing was changed."""

    code = "memo.profile_refused"


class Part(StrEnum):
    """The sections that are generated, in the order of the page; the value is the heading."""

    CURRENT = "Current profile"
    PREFERENCES = "Preferences"
    FOCUS = "Focus areas"
    ROLE = "Role and context"
    AVOID = "Avoid"


HISTORY = "History"
TITLES = (*(part.value for part in Part), HISTORY)


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """Where something was said: the message's number in the full history of the session, from 1."""

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
        """The bullet as it stands on the page, with the newest of its sources."""
        shown = " ".join(map(str, self.sources[:SHOWN_SOURCES]))
        more = f" and {len(self.sources) - SHOWN_SOURCES} more" if len(self.sources) > SHOWN_SOURCES else ""
        return f"- {self.text} <!-- from {shown}{more} -->"


@dataclass(frozen=True, slots=True)
class ProfileDraft:
    """What a summariser proposes, before screening and merging."""

    summary: str
    bullets: tuple[Bullet, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """A bullet that a run put on the page, and its line as it was put."""

    bullet: Bullet
    line: str


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The text of a bullet that somebody deleted or rewrote. It does not come back."""

    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ProfileMemory:
    written: tuple[Written, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    summary: str = ""
    """The summary's line, as it was put; empty if none ever was."""
    history: tuple[str, ...] = ()
    is_history_unwanted: bool = False
    """Somebody deleted the section."""

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
                    Written(Bullet(Part[w["part"]], w["text"], parse_sources(w["sources"])), w["line"])
                    for w in value["written"]
                ),
                tuple(Tombstone(t["text"], datetime.fromisoformat(t["at"])) for t in value["tombstones"]),
                str(value["summary"]),
                tuple(value["history"]),
                bool(value["history_unwanted"]),
            )
        except (KeyError, TypeError, ValueError):
            raise Corrupt("cannot read the memory of a profile: the ledger holds something else") from None


def parse_sources(pairs: list[Any]) -> tuple[Source, ...]:
    return tuple(Source(SessionId(session), int(message)) for session, message in pairs)
