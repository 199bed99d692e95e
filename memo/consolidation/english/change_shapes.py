"""The shapes of sentences that say what changed: a tool, a job, a role or a place. Data and what fills it in.

"We've dropped Helm for Kustomize" becomes "we now use Kustomize, formerly Helm"; "new job: …" becomes "I now work …".
"""

from __future__ import annotations

import re
from collections.abc import Callable

from memo.consolidation.english.vocabulary import KNOWN_TOOL, LANGUAGE, ROLE, UNIT

_X = r"(?P<x>[\w.+#/&'\u00c0-\u017f-]+(?: [\w.+#/&'\u00c0-\u017f-]+){0,3}?)"
_Y = r"(?P<y>[\w.+#/&'\u00c0-\u017f-]+(?: [\w.+#/&'\u00c0-\u017f-]+){0,4}?)"
THE = r"(?:(?:the|an?|my|our|all(?: the)?) )?"
_END = r"(?=$|[,;:.!]| (?:now|instead|by the way|btw|because|since|as|after|last|this|for|in|too|these days)\b)"
_HAVE = (
    r"(?:(?:I|we)(?:'ve| have)?|have|has been|I've had to|we had to) (?:just |finally |now |also |recently |already )*"
)

Rewrite = str | Callable[[re.Match[str]], list[str]]
"""A template whose clauses are separated by line ends, or a function that returns the clauses."""


def _role_or_place(match: re.Match[str]) -> list[str]:
    """Return what a person has become: a role with an article, or an employer."""
    new, rest = match["y"].strip(), match.groupdict().get("rest") or ""
    old = match.groupdict().get("x")
    formerly = f", formerly {old.strip()}" if old else ""
    if re.search(rf"\b{ROLE}\b", new, re.IGNORECASE):
        article = "" if re.match(r"(?:an?|the|my|one|head|part)\b", new, re.IGNORECASE) else "a "
        return [f"I am now {article}{new}{formerly}", rest]
    if new[:1].isupper() or re.match(r"(?:an?|the)\b", new):
        return [f"I now work at {new}{formerly}", rest]
    return [match.group()]


def _other_form(match: re.Match[str]) -> list[str]:
    """Return the request for another unit, language or tool; a correction of anything else is about the task."""
    if not _ONE_KIND.fullmatch(match["x"]) or not _ONE_KIND.fullmatch(match["y"]):
        return [match.group()]
    return [f"use {match['y']} instead of {match['x']} from now on"]


def _replacement(match: re.Match[str]) -> list[str]:
    old, new = match["x"].strip(), match["y"].strip()
    rest = match.groupdict().get("rest") or ""
    if re.search(rf"\b{ROLE}\b", new, re.IGNORECASE) or _NOT_A_THING.match(new) or _NOT_A_THING.match(old):
        return [match.group()]
    if _CLAUSE.search(old) or _CLAUSE.search(new) or not any(_NAMED.search(value) for value in (old, new)):
        return [match.group()]
    subject = "we" if re.match(r"we\b|our\b", match.group(), re.IGNORECASE) else "I"
    return [f"{subject} now use {new}, formerly {old}", rest]


_ONE_KIND = re.compile(rf"(?:{UNIT}|{LANGUAGE}|{KNOWN_TOOL})(?: \w+)?", re.IGNORECASE)
_NAMED = re.compile(rf"[A-Z\d]|\b(?i:{KNOWN_TOOL})\b")
_CLAUSE = re.compile(r"\b(?:that|which|who|is|are|was|were)\b", re.IGNORECASE)
_NOT_A_THING = re.compile(r"(?:it|that|this|them|those|me|you|us|him|her|now|good|ever|sure|a|an|the)\b", re.IGNORECASE)

CHANGES: tuple[tuple[re.Pattern[str], Rewrite], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), into)
    for pattern, into in (
        # what is no longer so, with what is so now
        (
            rf"^{_HAVE}(?:dropped|ditched|swapped|exchanged|abandoned|traded|binned|scrapped|left|given up|retired) "
            rf"(?:out )?{THE}{_X} (?:for|in favou?r of) {THE}{_Y}{_END}(?P<rest>.*)$",
            _replacement,
        ),
        (
            rf"^(?:the )?{_X} (?:is|are|got|has been|was)(?: now)? (?:out|gone|dropped|ditched|retired|history|dead"
            rf"|replaced)"
            rf"(?: (?:now|here|too))?(?: and|,| -|;| so)+ ?(?:it's |we|we're |I|I'm )?(?: went with | chose | use "
            rf"| have "
            rf"| moved to | switched to |now (?:it's |on |use )?|on |using | took ){THE}{_Y}(?: instead| now)?$",
            _replacement,
        ),
        (
            rf"^(?:it's |it is |that's |we're on |I'm on |we use |I use |we have )(?:now )?{THE}{_Y},? (?:now "
            rf"|these days )?"
            rf"(?:and )?(?:instead of|rather than|not|no longer|in place of) {THE}{_X}"
            rf"(?: (?:now|any ?more|these days))?$",
            _replacement,
        ),
        (
            rf"^(?:(?:I|we) (?:don't|do not|no longer) (?:use|have|run|work with)|not|no more|no longer(?: on)?|no) "
            rf"{THE}{_X}(?: any ?more| any longer)?(?:,|;| -| but| and)+ (?!(?:and|please|but)\b)"
            rf"(?:now (?:it )?(?:is |we use |I use |on )?|it's |it is |we're on |I'm on |we use |I use )"
            rf"{THE}{_Y}(?: now)?$",
            _replacement,
        ),
        (
            rf"^(?:I|we) (?:used to|once) (?:use|have|run|be on) {THE}{_X}(?:,|;| but| -)+ "
            rf"(?:(?:and )?now(?:adays)? |these days )(?:it's |we're on |I'm on |I use |we use |on )?{THE}{_Y}$",
            _replacement,
        ),
        (
            rf"^(?:I|we) said {THE}{_X} (?:earlier|before|last time|yesterday|the other day|once|in the beginning),? "
            rf"(?:but )?(?:it's|it is|that's|that is|make (?:that|it)|I mean(?:t)?|I am|I'm) (?:now )?{THE}{_Y}"
            rf"(?: now| these days)?(?P<rest>$|, .*)",
            lambda m: _role_or_place(m) if re.search(rf"\b{ROLE}\b", m["y"], re.I) else _other_form(m),
        ),
        (
            rf"^(?:I |I've |I have )?(?:just )?(?:left|quit) {THE}{_X}(?: (?:last|in|this) \w+)?(?:;|,| -| and)+ "
            rf"(?:and )?(?:now |I'm now |I am now |I'm |I now work |now I'm )(?:with |at |for )(?P<y>[^,;]+)"
            rf"(?P<rest>.*)$",
            lambda m: [f"I now work for {m['y']}, formerly {m['x']}"],
        ),
        (
            rf"^(?:actually |ok |so )?(?:scrap|forget|drop|cancel|ignore|undo|never mind) (?:that|the"
            rf"|what I said about(?: the)?) "
            rf"{_X}(?: thing| rule| bit| stuff| request| business)?(?:,|;| -)+ ?(?P<y>[^,;]{{2,60}}?)"
            rf"(?: is what .*| it is| please| instead| now| from now on)*$",
            _other_form,
        ),
        # a new job, role or place
        (
            r"^(?:my )?new (?:job|role|gig|position|post|employer|title|job title)\b[^:,\u2013\u2014-]{0,20}?"
            r"(?::|,| -| \u2013| \u2014| is) ?(?:as )?(?P<y>[^;]+)$",
            _role_or_place,
        ),
        (
            r"^(?:I )?(?:just |recently )?(?:got|been|was|am|'ve been|have been|I've been) promoted(?: to|:|,| -)"
            r"? (?P<y>[^,;]+?)(?: now)?$",
            _role_or_place,
        ),
        (
            r"^(?:they've|they have|they|I've been|I have been|I was|I got|I've just been) (?:made|named|appointed"
            r"|elected)"
            r"(?: me| as)?(?: to)? (?P<y>[^,;]+)$",
            lambda m: (
                [f"I am now {m['y']}"] if not m["y"].lower().startswith("the ") else [f"I was appointed to {m['y']}"]
            ),
        ),
        (
            rf"^(?:so )?(?P<y>(?:(?!I\b|we\b)[\w/'-]+ ){{0,3}}?{ROLE}(?: (?:at|in|for|with) [^,;]+)?) now$",
            _role_or_place,
        ),
        (
            r"^(?:(?:I'm|I am|we're|we are) )?(?:at|with) an? (?:different|new|another) [\w ]{2,30}? now,"
            r" (?P<y>(?-i:[A-Z])[^,;]*)(?P<rest>.*)$",
            r"I now work at \g<y>\n\g<rest>",
        ),
        (
            rf"^(?:I'm |I am |we're |we are )?back in (?P<y>(?!{KNOWN_TOOL}\b)(?-i:[A-Z])"
            rf"[\w\u00c0-\u017f' -]{{1,40}}?)(?: again| now"
            r"| for good)*"
            r"(?P<rest>$|, .*)",
            r"I now live in \g<y>\n\g<rest>",
        ),
        (
            r"^(?:I )?took over (?P<a>my \S+ (?:\w+ )?(?:company|business|firm|shop|farm|practice)),? so (?P<rest>.+)$",
            r"\g<rest>",
        ),
        (
            r"^(?P<y>(?-i:[A-Z])[\w\u00c0-\u017f-]+(?: (?-i:[A-Z])\w+)?), (?:I|we)(?:'ve| have)? (?:just )"
            r"?moved\b(?! to| from)",
            r"we moved to \g<y>\n",
        ),
        (r"^(?P<x>(?:I|we)(?:'ve| have)? (?:just )?moved), (?P<y>(?:from|to) .+)$", r"\g<x> \g<y>"),
        (r"^(?P<x>(?:moved|migrated|switched) (?:the |my |our )?\w+ (?:over )?to .+)$", r"I \g<x>"),
        (
            rf"^{_HAVE}(?:moved|migrated|come|got) (?:off|away from) {THE}{_X},(?: it's| we're on| now)"
            rf"? {THE}{_Y}(?: now)?$",
            _replacement,
        ),
        (
            r"^(?:(?:got|been|was) (?:transferred|moved|relocated|posted),? )?(?:I'm|I am|we're|we are) in"
            r" (?P<y>(?-i:[A-Z])"
            r"[\w\u00c0-\u017f-]+) (?:from now on|now|these days|for good)$",
            r"I now live in \g<y>",
        ),
        (r"^(?:I|I've|I have) (?:just )?(?:stepped down|resigned) as (?P<y>[^,;]+)$", r"I am no longer \g<y>"),
    )
)
