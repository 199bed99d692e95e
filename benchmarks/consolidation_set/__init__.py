"""The labelled set: short conversations of users, what a profile must state about each, and what it must not.

`development.json` and `held_out.json` are the two halves of the set: different people, topics and phrasing. Read only
the first while you change a summariser: the second measures what the first cannot. `practice.json` is a further set to
read and tune on, of more varied work, voice and sentence shapes; no promise is made about it. Pure; it runs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

Half = Literal["development", "held_out", "practice"]
HALVES: tuple[Half, ...] = ("development", "held_out")
"""What is measured by default; `practice` is for tuning alone."""
MAX_STATEMENT_CHARS = 240

_NOT = "NOT"
_APOSTROPHE = "['\u2019]"
_CLAUSES = re.compile(r"[;,.!?]\s+|\s+[\u2013\u2014-]+\s+|\b(?:but|whereas|although)\b")
_SHORTER_CLAUSES = re.compile(rf"{_CLAUSES.pattern}|\band\b")
NEGATOR = re.compile(
    r"\b(?:no|not|never|none|nothing|neither|nor|cannot|without|free of|rather than|instead of|against|lacks?|opposes?"
    r"|avoid\w*|refus\w+|reject\w*|forbid\w*|forbidden|ban(?:s|ned)?|prohibit\w*|dislik\w+|hat(?:e|es|ed|ing)"
    r"|detest\w*|despis\w+|stop\w*|skip\w*|omit\w*|leav\w+ out|exclud\w+|unwanted|unwelcome|objects?|quit"
    rf"|drop(?:s|ped)?)\b|n{_APOSTROPHE}t\b",
    re.IGNORECASE,
)
_NEGATED_AFTER = re.compile(
    r"^\w*\W*(?:is|are|was|were|does|do|did|should|must|can|will|would|has|have)"
    rf"(?:\s+(?:not|never)\b|n{_APOSTROPHE}t\b)",
    re.IGNORECASE,
)
_PAST = re.compile(
    r"\b(?:mov\w+ from|from .+ to|former\w*|previous\w*|used to|no longer|not any ?more|until|left|leaving|quit"
    r"|switched|earlier|once|dropped|instead of|replac\w+|was|were|changed|retired|not|never|before)\b|\bex-"
    rf"|n{_APOSTROPHE}t\b|\u2192",
    re.IGNORECASE,
)
_OTHER_PERSON = re.compile(
    rf"^(?:(?:(?:his|her|their|the user{_APOSTROPHE}s|whose|a)\s+)?(?:wife|husband|partner|spouse|daughter|son|child"
    r"|kid|brother|sister|mother|father|mum|mom|dad|uncle|aunt|niece|nephew|granddaughter|grandson|friend|flatmate"
    r"|roommate|colleague|co-?worker|neighbou?r|teammate)"
    rf"|(?:his|her|their|the user{_APOSTROPHE}s)\s+(?:boss|manager|lead|clerk|client|customer|supervisor|editor|agent"
    r"|deputy|apprentice|intern|student|designer|checker|receptionist))\b",
    re.IGNORECASE,
)

Patterns = tuple[str, ...]
"""Regular expressions that must all occur in one statement. After a leading NOT the statement must be a negation."""


@dataclass(frozen=True, slots=True)
class LabelledFact:
    """A durable statement that the user made about themselves or about a person close to them."""

    id: str
    kind: str
    any_of: tuple[Patterns, ...]

    def is_stated_by(self, statement: str) -> bool:
        if len(statement) > MAX_STATEMENT_CHARS or (self.kind != "person" and _OTHER_PERSON.search(statement)):
            return False
        return any(is_match(patterns, statement) for patterns in self.any_of)


@dataclass(frozen=True, slots=True)
class Correction:
    """A fact that the user replaced. `older` may be stated only as something past."""

    older: Patterns
    newer: str

    def is_contradicted_by(self, statement: str) -> bool:
        return not _PAST.search(statement) and all(_search(pattern, statement) for pattern in self.older)

    def is_named_by(self, text: str) -> bool:
        return all(_search(pattern, text) for pattern in self.older)


@dataclass(frozen=True, slots=True)
class Forbidden:
    """What must not be kept: an injection, a quoted preference, a hypothetical, a task, a secret, ..."""

    kind: str
    pattern: str

    def is_in(self, text: str) -> bool:
        return _search(self.pattern, text) is not None


@dataclass(frozen=True, slots=True)
class LabelledUser:
    user: str
    sessions: tuple[tuple[str, tuple[dict[str, Any], ...]], ...]
    """The id and the messages of each session, in time order."""
    facts: tuple[LabelledFact, ...]
    superseded: tuple[Correction, ...]
    forbidden: tuple[Forbidden, ...]
    neutral: tuple[Patterns, ...]
    """Statements that are true but need not be kept, such as the topic of a conversation."""

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> LabelledUser:
        return cls(
            value["user"],
            tuple((session["id"], tuple(session["messages"])) for session in value["sessions"]),
            tuple(LabelledFact(f["id"], f["kind"], tuple(map(tuple, f["any_of"]))) for f in value["facts"]),
            tuple(Correction(tuple(c["older"]), c["newer"]) for c in value["superseded"]),
            tuple(Forbidden(f["kind"], f["pattern"]) for f in value["forbidden"]),
            tuple(map(tuple, value["neutral"])),
        )


def load_half(half: Half) -> tuple[LabelledUser, ...]:
    text = (Path(__file__).parent / f"{half}.json").read_text(encoding="utf-8")
    return tuple(map(LabelledUser.parse, json.loads(text)))


def is_match(patterns: Sequence[str], statement: str) -> bool:
    """Return whether the statement says this, with the same polarity.

    An affirmative match fails if its clause negates the word: "does not use tables" does not state "uses tables". A
    match after NOT needs a negator in the clause of its first word.
    """
    is_negative = patterns[0] == _NOT
    wanted = patterns[1:] if is_negative else patterns
    if not all(_search(pattern, statement) for pattern in wanted):
        return False
    if is_negative:
        return any(_search(wanted[0], clause) and NEGATOR.search(clause) for clause in _CLAUSES.split(statement))
    return all(any(_affirms(pattern, clause) for clause in _SHORTER_CLAUSES.split(statement)) for pattern in wanted)


def _affirms(pattern: str, clause: str) -> bool:
    found = _search(pattern, clause)
    if found is None:
        return False
    return not NEGATOR.search(clause[: found.start()]) and not _NEGATED_AFTER.search(clause[found.end() :])


def _search(pattern: str, text: str) -> re.Match[str] | None:
    return compiled(pattern).search(text)


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)
