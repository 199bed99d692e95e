"""Which older bullets a newer one replaces: by an explicit word ("moved from Oslo", "no more Pixieset") or by its slot.

A bullet that says more than what was replaced loses only that part: "Tech lead at Nordbank, based in Oslo" becomes
"Tech lead at Nordbank". Pure; works on bullets in the third person.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from memo.consolidation.english.slots import (
    implied_place,
    is_new_occupation,
    is_new_place,
    new_tools,
    slots_of,
    tools_of,
    without_occupation,
)

MAX_STATEMENTS = 5_000
MAX_RETIREMENTS = 500
LEAST_WORDS = 3
"""A bullet that is shorter than this after a cut is dropped."""


@dataclass(frozen=True, slots=True)
class Retirement:
    """Words that must all occur in an older bullet to retire that part of it. `name` is how the history calls it."""

    words: tuple[str, ...]
    name: str
    is_explicit: bool

    def hits(self, folded: str) -> bool:
        return all(word in folded for word in self.words) and all(
            re.search(rf"(?<!\w){re.escape(word)}s?(?!\w)", folded) for word in self.words
        )


_ARTICLES = r"(?:(?:the|an?|my|their|our|old|using|both) )*"
_PLACE_OF = r"(?:(?-i:[a-z])\w* (?:in|at) )?"
_X = r"(?P<x>[\w.+#&'\u00c0-\u017f-]+(?: [\w.+#&'\u00c0-\u017f-]+){0,3})"
_CHANGED = (
    r"(?:mov\w+|switch\w*|migrat\w+|chang\w+|went|relocat\w+|transferr\w+|ported|upgrad\w+|convert\w+"
    r"|renamed|schools?|jobs?)"
)
_EXPLICIT = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b{_CHANGED}\b[^,;]{{0,60}}?\bfrom {_ARTICLES}{_X} to\b",
        rf"^from {_ARTICLES}{_X} to\b",
        rf"[;.] from {_ARTICLES}{_X} to\b",
        rf"\b(?:quit|left|leave|leaving|dropped|dropping|ditched|abandoned|sold|gave up|got rid of|stopped "
        rf"using|stopped working (?:at|for)"
        rf"|replaced|moved (?:off|away from|out of)|moved from|migrated (?:off|away from)|migrated from|swapped"
        rf"|traded|used to (?:use|live in|work (?:at|for)|be)|(?:retired|resigned|stepped down|finished) (?:from|as)"
        rf"|mov\w+ on from|done with) "
        rf"{_ARTICLES}{_PLACE_OF}{_X}",
        rf"\b(?:no longer|not more|no more) (?:(?:in|at|with|on|use|uses|live in|lives in|work at|works at"
        rf"|work for|works for|work with|an?) )*{_ARTICLES}{_X}",
        rf"(?:\b(?:not|no)|n't) (?:(?:\w+ )?(?:in|at|with|on|for|to|use|using|do|an?) )*{_ARTICLES}{_X} (?:any "
        rf"?more|any longer)",
        r"\b(?P<x>(?-i:[A-Z])[\w-]+) (?:is|are) (?:gone|history|dead|no more|out|retired)\b",
        rf"^(?:The |Their )?{_X} (?:is|are) (?:being )?(?:retired|phased out|decommissioned|discontinued)\b",
        rf"\bformerly {_ARTICLES}{_X}",
        rf"\bnow instead of {_ARTICLES}{_X}",
        r"\bmoved (?:the |their |our )?(?P<x>(?-i:[a-z])[\w-]+) (?:over )?to (?-i:[A-Z])",
        rf"\b(?:now|these days),? (?:and )?not (?:(?:in|at|with|on) )?{_ARTICLES}{_X}",
    )
)
_IMPLIED = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:,| and| but) (?:not|no|never) (?:(?:in|at|with|on) )?{_ARTICLES}{_X}$",
        rf"\b(?:instead of|rather than|over) {_ARTICLES}{_X}$",
    )
)
_STOPS = frozenset(
    re.findall(
        r"\S+",
        """
        in at to for with and but on of since last this because so now any anymore as from by it's they them
        their is are was when where which who that these those before after during until while or not no if
        than then too also ago long again it he she there here much many more two three years year months
        month weeks week days
        """,
    )
)
_SEGMENT = re.compile(r"(, and |, |; | and | but | \+ | / | and (?=(?-i:[A-Z])[\w.+#-]*$))")
_PHRASE = (
    r" (?:based in|living in|at|in|for|from|with|on|to|near) (?:the |an? )?(?:[\w&.'\u00c0-\u017f-]+ "
    r"){{0,2}}?{word}(?: (?-i:[A-Z])[\w&.'\u00c0-\u017f-]*)*"
    r"(?=$|[,;:.)]| (?:as|with|in|at|for|and|on|since|but|to|from|by|near|now)\b)"
)
_DANGLING_VERB = re.compile(
    r"\b(?:everything|lives?|living|works?|working|is|are|be|with|based|located)$", re.IGNORECASE
)


def retirements_of(text: str) -> list[Retirement]:
    """Return what a statement says is no longer so."""
    found: list[Retirement] = []
    for patterns, is_explicit in ((_EXPLICIT, True), (_IMPLIED, False)):
        for pattern in patterns:
            for match in pattern.finditer(text):
                words = _words(match["x"])
                if words:
                    found.append(Retirement(tuple(word.casefold() for word in words), " ".join(words), is_explicit))
    return found


def _words(phrase: str) -> list[str]:
    kept: list[str] = []
    for word in phrase.split():
        if word.casefold() in _STOPS:
            break
        kept.append(word.strip(".'"))
    names = [word for word in kept if word[:1].isupper() or any(c.isdigit() or c in "+#" for c in word)]
    return names or [word for word in kept if len(word) > 2]


def without(text: str, retirement: Retirement) -> str | None:
    """Return the bullet without the retired part, or None if nothing of value is left."""
    parts = _SEGMENT.split(text)
    segments, separators = parts[::2], ["", *parts[1::2]]
    hit = [retirement.hits(segment.casefold()) for segment in segments]
    kept: list[tuple[str, str]] = []
    for segment, separator, is_hit in zip(segments, separators, hit, strict=True):
        cut = _without_phrase(segment, retirement) if is_hit else segment
        if cut is not None:
            kept.append((separator if kept else "", cut))
    left = "".join(separator + segment for separator, segment in kept).strip(" ,;:")
    if not left or (hit[0] and not _has_subject(text, left)) or len(left.split()) < LEAST_WORDS:
        return None
    return left[:1].upper() + left[1:]


def _without_or_place(text: str, retirement: Retirement) -> str | None:
    """Keep the place of an occupation that is over, unless the place is what was replaced."""
    left = without(text, retirement)
    if left is not None:
        return left
    place = without_occupation(text)
    return place if place != text and place is not None and not retirement.hits(place.casefold()) else None


def _has_subject(before: str, after: str) -> bool:
    """Return whether the bullet still begins as it did; a list after a label does too."""
    return before.split(" ", 1)[0].casefold() == after.split(" ", 1)[0].casefold() or after.startswith("works ")


def _without_phrase(segment: str, retirement: Retirement) -> str | None:
    """Remove "at Nordbank" from "Is a tech lead at Nordbank"; return None if the segment is about it alone."""
    word = re.escape(retirement.words[0])
    cut = re.sub(_PHRASE.format(word=word), "", segment, count=1, flags=re.IGNORECASE)
    if cut != segment:
        return cut if len(cut.split()) >= LEAST_WORDS - 1 and not _DANGLING_VERB.search(cut) else None
    place = re.match(
        rf"(?!they\b|uses\b)(?:is (?:an? |the )?)?(?:[\w-]+ ){{0,3}}?{word}(?: \w+)? (?P<rest>(?:at|for) "
        rf"(?-i:[A-Z]).+)",
        segment,
        re.IGNORECASE,
    )
    return f"works {place['rest']}" if place else None


def without_retired_parts(text: str, retirements: Iterable[Retirement]) -> str:
    """Return a correction as what is true now: "They use SAP, no Optima any more" becomes "They use SAP"."""
    for retirement in retirements:
        parts = _SEGMENT.split(text)
        segments, separators = parts[::2], ["", *parts[1::2]]
        if not retirement.is_explicit or re.search(r"\bfrom\b.+\bto\b", text) or len(segments) < 2:
            continue
        kept = [
            (separator, segment)
            for segment, separator in zip(segments, separators, strict=True)
            if not retirement.hits(segment.casefold()) or not retirements_of(segment)
        ]
        left = "".join(f"{separator if number else ''}{segment}" for number, (separator, segment) in enumerate(kept))
        if len(left.split()) >= LEAST_WORDS:
            text = left[:1].upper() + left[1:]
    return text


@dataclass(slots=True)
class CurrentStatements:
    """Statements in the order newest first: each is compared with what the newer ones have retired."""

    retirements: list[tuple[Retirement, str]]
    slots: dict[str, tuple[str, str]]
    occupation: str = ""
    """The newest statement that the occupation changed."""

    @classmethod
    def empty(cls) -> CurrentStatements:
        return cls([], {})

    def admit(self, text: str) -> tuple[str | None, list[tuple[str, str]]]:
        """Return what is still true of a statement, if anything, and what was replaced: pairs of older and newer."""
        replaced: list[tuple[str, str]] = []
        left: str | None = text
        own = retirements_of(text)
        for retirement, newer in self._newer(text):
            if left is None:
                break
            if retirement.hits(left.casefold()) and retirement.words not in {mine.words for mine in own}:
                left = _without_or_place(left, retirement)
                replaced.append((text, newer))
        if left is not None and self.occupation:
            still = without_occupation(left)
            if still != left:
                replaced.append((left, self.occupation))
                left = still
        if left is None:
            return None, replaced
        shown = without_retired_parts(left, own)
        room = MAX_RETIREMENTS - len(self.retirements)
        self.retirements += [(retirement, shown) for retirement in own][: max(0, room)]
        if not self.occupation and is_new_occupation(text):
            self.occupation = shown
        for kind, tool in new_tools(shown).items():
            self.slots.setdefault(f"kind:{kind}", (tool, shown))
        for slot, value in slots_of(left).items():
            self.slots.setdefault(slot, (value, shown))
        replaced += [(retirement.name, shown) for retirement in own if retirement.is_explicit]
        return shown, replaced

    def _newer(self, text: str) -> list[tuple[Retirement, str]]:
        """Return the retirements by newer statements: their explicit ones, and older values of their slots."""
        filled = [
            (Retirement((value.casefold(),), value, True), self.slots[slot][1])
            for slot, value in slots_of(text).items()
            if slot in self.slots and self.slots[slot][0].casefold() != value.casefold()
        ]
        home, statement = self.slots.get("home", ("", ""))
        implied = implied_place(text) if is_new_place(statement) else None
        if implied is not None and implied.casefold() != home.casefold() and "home" not in slots_of(text):
            filled.append((Retirement((implied.casefold(),), implied, True), statement))
        for kind, tool in tools_of(text):
            newest, statement = self.slots.get(f"kind:{kind}", ("", ""))
            if newest and newest.casefold() != tool.casefold():
                filled.append((Retirement((tool.casefold(),), tool, True), statement))
        return [*self.retirements, *filled]
