"""Classify one clause of a user by the tables, and report it in the third person."""

from __future__ import annotations

import re
from dataclasses import dataclass

from memo.consolidation.english import filters
from memo.consolidation.english.about_self import ABOUT_SELF
from memo.consolidation.english.habits import HABITS
from memo.consolidation.english.requests import DANGLING, MANNERS, POLITE, REQUESTS, SUBJECT, RequestRule
from memo.consolidation.english.third_person import lower_first, replace_pronouns, report
from memo.consolidation.english.vocabulary import KNOWN_TOOL, ROLE, any_of
from memo.consolidation.profile import Part

DANGLES = "dangling"
REQUESTED = ("request", "fragment", DANGLES)
"""The kinds that are not statements. A dangling request points at what was said before it."""


@dataclass(frozen=True, slots=True)
class Statement:
    part: Part
    kind: str
    text: str


_TAIL = re.compile(
    r"(?:,? (?:please|thanks|thank you|btw|by the way|too|either|as well|if it matters|if that (?:helps"
    r"|matters)|if possible|fwiw|for what it's worth|ok(?:ay)?|lol|haha\w*|though|x|cheers|by default "
    r"please|if there are any|if it helps|mind you|of course|bless (?:him|her|them)|please remember"
    r"|remember|keep that in mind|keep it in mind|thanks a lot|so you know|just so you know|in case it "
    r"matters))$",
    re.IGNORECASE,
)
_FRAGMENT_VERB = re.compile(
    r"\b(?:was|were|did|had|got|went|worked|failed|said|tried|thought|looks?|seems?|sounds?|helps?|helped"
    r"|works)\b",
    re.IGNORECASE,
)
_STRONG = re.compile(
    r"\b(?:please|always|only|never|not|no|in|as|with|without|max(?:imum)?|at most|under|per|over|instead "
    r"of|rather than|first|minimal|short|easy|simple|should|like|formatted|friendly)\b|\d|→|: ",
    re.IGNORECASE,
)
_BARE_STYLE = any_of(
    """
    short brief concise terse plain simple formal informal blunt direct metric celsius british american bullets?
    bullet_points? tables tabs grams large_print si_units step_by_step typed markdown maximum harvard apa mla
    chicago vancouver ieee
    """
)
_BARE = re.compile(rf"^{_BARE_STYLE}\b", re.IGNORECASE)
_SOMEONE_ELSE = re.compile(r"\b(?:him|her)\b(?! \w)|\botherwise$", re.IGNORECASE)
"""A person named elsewhere, or a condition."""
_KNOWN = re.compile(rf"{KNOWN_TOOL}\b", re.IGNORECASE)
_TOOL_ITEM = re.compile(
    rf"(?!(?:I|We|They|You|He|She|It|My|Our|The|A|An|No|Use|Using|.*\b{ROLE})\b)"
    rf"(?:(?i:{KNOWN_TOOL})\b|[A-Z]|\d*[a-z]*[A-Z\d])"
)
_POINTS = re.compile(
    r"^(?:(?:an?|the|this|that|some|my|your|his|her|their|another) \w+|(?:section|chapter|line|page"
    r"|question|part|step|figure|table|item|number|point|option|example) \d+\b|[a-z]+ \d+$)",
    re.IGNORECASE,
)
_ONE_PIECE = re.compile(r"^(?:\w+ )?(?:summary|recap|overview|answer|reply|list|example|poem|version)$", re.IGNORECASE)
_OWN_THING = re.compile(r"it's|the (?!user|customer|client)", re.IGNORECASE)
_COUNTED = re.compile(
    r"^(?:in )?(?:an?|one|two|three|four|five|six|ten|\d+) (?:sentences?|words?|paragraphs?|lines?|pages?"
    r"|bullets?|examples?|options?)\b",
    re.IGNORECASE,
)
_NO_FRAGMENT = re.compile(
    r"^(?:I|we|it|that|you|he|she|they|there|who|what|after|before|since|during|because|with|for|about"
    r"|like|on|at|by|to|of|than|or|this|if|when|as|is|are|was|in the|show|list|give|explain|write|tell|put"
    r"|add|make|include|describe|provide|have)\b|\b(?:is|are|am|isn't|aren't|it's|that's)\b(?! (?:always"
    r"|better|never))|\b(?:contains?|includes?|shows?|costs?|takes?|returns?)\b",
    re.IGNORECASE,
)


def classify(clause: str) -> Statement | None:
    if len(clause) < 3 or filters.QUESTION.search(clause) or filters.IDIOM.search(clause) or "\u2026" in clause:
        return None
    label, colon, _value = clause.partition(": ")
    if colon and filters.FOREIGN_LABEL.search(label) and not SUBJECT.search(label):
        return None
    return _statement(clause) or _tool_list(clause) or classify_request(clause)


def _tool_list(clause: str) -> Statement | None:
    """Read "Unity 2022 LTS, C#, Jira": short names of which one at least is a known tool."""
    listed = re.sub(
        r" \([^()]*\)",
        "",
        re.sub(
            r"^(?:think|mostly|mainly|basically|currently|namely)"
            r" ",
            "",
            strip_tail(clause),
        ),
    )
    items = re.split(r", and |, | and | \+ |/", listed)
    if not 2 <= len(items) <= 12 or any(len(item.split()) > 3 or not _TOOL_ITEM.match(item) for item in items):
        return None
    is_known = any(_KNOWN.match(item) for item in items)
    return Statement(Part.ROLE, "stack", f"Uses {strip_tail(clause)}") if is_known else None


def _statement(clause: str) -> Statement | None:
    if any(one.search(clause) for one in (filters.ONE_OFF, filters.HYPOTHETICAL, filters.PROBLEM, filters.PASSING_ACT)):
        return None
    is_own = (
        re.match(r"(?:I|I'm|I've|we|we're|we've|me|am|(?:people|friends|everyone) calls? me)\b", clause, re.IGNORECASE)
        is not None
    )
    is_reported = filters.REPORTED.search(clause) is not None
    if not is_own and (is_reported or (filters.OTHER_SUBJECT.search(clause) and not _OWN_THING.match(clause))):
        return None
    for rule in (*ABOUT_SELF, *HABITS):
        found = rule.pattern.match(clause)
        if found:
            text = rule.report.format(**found.groupdict()) if rule.report else clause
            if rule.kind in ("habit", "preference", "stack") and _SOMEONE_ELSE.search(strip_tail(clause)):
                return None
            reported = replace_pronouns(strip_tail(text)) if rule.report else report(strip_tail(text))
            return Statement(rule.part, rule.kind, reported)
    return None


def classify_request(clause: str, *, is_rule: bool = False) -> Statement | None:
    head = strip_tail(clause)
    is_polite = "please" in clause.lower()
    is_marked = is_rule or filters.RULE_MARKER.search(clause) is not None
    while (polite := POLITE.match(head)) and polite.end():
        head = head[polite.end() :]
    if filters.UNSAFE_RULE.search(head) or filters.IDIOM.search(head) or filters.SAID.search(head):
        return None
    for rule in REQUESTS:
        found = rule.pattern.match(head)
        if found and _is_met(rule, head, is_marked, is_polite):
            is_one_thing = filters.THE_THING.search(head) and (rule.part is Part.PREFERENCES or head.startswith("no "))
            if is_one_thing and not filters.LASTING.search(clause) and not is_rule:
                return None
            return _reported_request(rule, found, head, is_rule=is_rule)
    if is_rule and not filters.TASK.match(head) and re.match(r"[a-z]+ \w", head):
        return Statement(Part.PREFERENCES, "request", replace_pronouns(f"Asks to {head.strip(' ,.;:!')}"))
    return None


def _is_met(rule: RequestRule, head: str, is_marked: bool, is_polite: bool) -> bool:
    match rule.needs:
        case "marker":
            return is_marked
        case "subject":
            return SUBJECT.search(head) is not None
        case "fragment":
            is_strong = is_marked or is_polite or _STRONG.search(head) is not None or _BARE.match(head) is not None
            return is_strong and _is_fragment(head, 14)
        case "fragment and marker":
            return (is_marked or is_polite) and SUBJECT.search(head) is not None and _is_fragment(head, 10)
    return True


def _is_fragment(head: str, most_words: int) -> bool:
    """Return whether the clause may be a request without a verb, such as "short answers"."""
    if (_COUNTED.match(head) or _ONE_PIECE.match(head)) and not filters.RULE_MARKER.search(head):
        return False
    others = (_POINTS.match, _NO_FRAGMENT.search, _FRAGMENT_VERB.search, filters.TASK.match, filters.DELIVERABLE.search)
    return len(head.split()) <= most_words and not any(is_other(head) for is_other in others)


def _reported_request(rule: RequestRule, found: re.Match[str], head: str, *, is_rule: bool) -> Statement | None:
    groups = {name: (value or "").lower() if name == "v" else value or "" for name, value in found.groupdict().items()}
    wanted = filters.REASON.sub("", groups["x"]).strip(" ,.;:!")
    if rule.part is Part.AVOID and MANNERS.match(wanted) and DANGLING.search(wanted):
        return Statement(rule.part, DANGLES, replace_pronouns(rule.report.format(**{**groups, "x": wanted})))
    if (
        len(wanted) < 2
        or filters.ONE_OFF.search(wanted)
        or (filters.POINTS_AT.search(wanted) and not is_rule and "straight" not in wanted)
        or filters.COMPARATIVE.search(wanted)
    ):
        return None
    if (
        rule.part is Part.AVOID
        and rule.report.startswith("Wants no")
        and (len(wanted.split()) > 12 or _FRAGMENT_VERB.search(wanted))
    ):
        return None
    text = rule.report.format(**{**groups, "x": lower_first(wanted)})
    return Statement(rule.part, "fragment" if rule.needs.startswith("fragment") else "request", replace_pronouns(text))


def strip_tail(text: str) -> str:
    text = text.strip(" ,.;:!")
    for _ in range(3):
        text = _TAIL.sub("", text).strip(" ,.;:!")
    return text
