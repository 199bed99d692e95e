"""Slots: what a person has one of at a time, such as a home or an employer; a newer value replaces an older one.

Some changes replace what an older statement only implies: "is now a pilot" also replaces "skipper on a fishing boat".
Pure; works on bullets in the third person.
"""

from __future__ import annotations

import re

from memo.consolidation.english.vocabulary import LANGUAGE, ROLE, TOOL_KINDS, TOOL_PURPOSE

_SLOTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (slot, re.compile(pattern, re.IGNORECASE))
    for slot, pattern in (
        (
            "home",
            r"\b(?:lives?|living|based|located|moved|relocated|settled)(?: \w+)? (?:in|to|out of) "
            r"(?P<x>(?-i:[A-Z][\w\u00c0-\u017f-]+))",
        ),
        (
            "employer",
            r"\b(?:works?|working|started|starts?|job|employed|joined|engineer|developer|lead|manager|designer"
            r"|analyst|is)(?: as [\w -]{2,40}?)? (?:at|for) (?P<x>(?-i:[A-Z][\w&.\u00c0-\u017f-]+))",
        ),
        ("employer", r"\bjoined (?P<x>(?-i:[A-Z][\w&.\u00c0-\u017f-]+))"),
        ("employer", r"^(?:Works|Is)\b[^,;]{2,60}? (?:at|for) (?P<x>(?-i:[A-Z][\w&.\u00c0-\u017f-]+))"),
        ("language", rf"^Asks for answers in (?P<x>{LANGUAGE})"),
        ("name", r"^Is called (?P<x>.+)"),
        ("call", r"^Wants to be called (?P<x>.+)"),
        ("zone", r"\btime ?zone(?: is|:)? (?P<x>\S+)"),
        (
            "tool",
            rf"^(?:The |Their )?(?P<purpose>{TOOL_PURPOSE}) (?:is|are|runs?)(?: now)?(?: on| in| with| at)? "
            rf"(?P<x>(?-i:[A-Z][\w.+#-]+))",
        ),
    )
)
_ADDS = re.compile(r"\b(?:also|too|as well|second|on the side|besides|additionally|part-time)\b", re.IGNORECASE)
_KINDS = tuple((kind, re.compile(rf"\b(?P<x>{names})\b", re.IGNORECASE)) for kind, names in TOOL_KINDS)
_NEW_TOOL = re.compile(
    r"\b(?:switched|moved|migrated|went|gone|changed|ported)(?: \w+){0,2}? to\b|\bnow (?:uses?|on|runs?|have)\b"
    r"|^(?:Is|It's|They are)"
    r" (?:now )?on \S+ now\b|\b(?:adopted)\b|\bnow$",
    re.IGNORECASE,
)
_NEW_PLACE = re.compile(
    r"\b(?:moved|relocated|transferred|back|settled|now (?:lives?|living|based)|(?:lives?|living|based|be|is|are) "
    r"(?:now )?in (?-i:[A-Z])[\w-]+(?: \w+)? (?:now|these days)|(?:will|going to) (?:be|live) in)\b",
    re.IGNORECASE,
)
_PLACE_IMPLIED = re.compile(
    r"^(?!Their\b|Asks|Wants|Prefers|Likes|Speaks|Uses)[^;]{3,120}? (?:in|near|outside|out of|from) "
    r"(?:the |rural |north |south |east |west |central )?(?P<x>(?-i:[A-Z][\w\u00c0-\u017f-]+))(?=$|[,;.]| (?:and"
    r"|with|for|since)\b)",
    re.IGNORECASE,
)
_NEW_OCCUPATION = re.compile(
    rf"(?:^|; )(?:(?:Is|Are) now (?:an? |the |in |head |\w+ ){{0,3}}?[^,;]{{0,40}}?\b{ROLE}\b"
    rf"|(?:Is|They are) (?:(?:an?|the) )?[^,;]{{0,60}}?\b{ROLE}\b[^,;]* (?:now|these days|from this (?:week|month)"
    rf"|since \w+)\b"
    r"|(?:(?:Has been|Was|Got) )?(?:appointed|elected|promoted) (?:to|as)\b"
    r"|(?:Has )?(?:accepted|got|taken) an? [^,;]{2,50} (?:position|job|role|post)\b)",
    re.IGNORECASE,
)
_NAME = re.compile(r"[A-Z][\w\u00c0-\u017f-]{2,}")
_BESIDE = re.compile(
    r"\b(?:owner|parent|father|mother|mum|mom|dad|volunteer|maintainer|beginner|gamer|streamer|blogger)\b",
    re.IGNORECASE,
)
"""Roles that people have beside an occupation."""
_OCCUPATION = re.compile(
    rf"^(?:Is (?:(?-i:[A-Z])\w+, )?(?:an? |the |one of |head of )?|Works? as |Used to be |They are )"
    rf"?(?:[\w/&'-]+,? ){{0,5}}?\b{ROLE}\b",
    re.IGNORECASE,
)


def slots_of(text: str) -> dict[str, str]:
    """Return the slots that a statement fills: of each, a person has one at a time."""
    found: dict[str, str] = {}
    if _ADDS.search(text) or (
        text.startswith("Their ")
        and not text.startswith(("Their team", "Their time"))
        and not _SLOTS[-1][1].search(text)
    ):
        return found
    for slot, pattern in _SLOTS:
        match = pattern.search(text)
        if match:
            name = f"tool:{match['purpose'].casefold()}" if slot == "tool" else slot
            found.setdefault(name, match["x"])
    return found


def is_new_occupation(text: str) -> bool:
    return _NEW_OCCUPATION.search(text) is not None and not _BESIDE.search(text) and not _ADDS.search(text)


def without_occupation(text: str) -> str | None:
    """Return what is left of a statement of an older occupation: the place, if it names one. Others stay whole."""
    if not _OCCUPATION.match(text) or text.startswith(("Their ", "Asks", "Wants", "Prefers")) or _BESIDE.search(text):
        return text
    place = implied_place(text) or _listed_place(text)
    return f"Lives in or near {place}" if place else None


def _listed_place(text: str) -> str | None:
    """Return the place in a list such as "Apprentice plumber, second year, Cork"."""
    last = text.rsplit(", ", 1)[-1]
    return last if ", " in text and _NAME.fullmatch(last) and not tools_of(last) else None


def is_new_place(text: str) -> bool:
    return _NEW_PLACE.search(text) is not None


def implied_place(text: str) -> str | None:
    """Return the place in a statement about something else, such as a job."""
    found = _PLACE_IMPLIED.match(text)
    return found["x"] if found else None


def new_tools(text: str) -> dict[str, str]:
    """Return the tools that a statement says the user changed to, by kind."""
    if not _NEW_TOOL.search(text) or _ADDS.search(text):
        return {}
    found = {kind: list(pattern.finditer(text)) for kind, pattern in _KINDS}
    return {kind: matches[-1]["x"] for kind, matches in found.items() if len(matches) == 1}


def tools_of(text: str) -> list[tuple[str, str]]:
    return [(kind, match["x"]) for kind, pattern in _KINDS for match in pattern.finditer(text)]
