"""The table of lasting requests to the assistant: prohibitions, style, units and languages. Data only.

A request is reported, never repeated as an instruction: "never use emojis" becomes "Asks to never use emojis". A
request to run, fetch, send or delete something has no pattern here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from memo.consolidation.english.vocabulary import LANGUAGE, MEASURED, STYLE, UNIT, any_of
from memo.consolidation.profile import Part


@dataclass(frozen=True, slots=True)
class RequestRule:
    """`needs` says what else must be in the clause: a marker such as "always", a word of style, or nothing."""

    part: Part
    pattern: re.Pattern[str]
    report: str
    needs: str = ""


def _rule(part: Part, pattern: str, report: str, needs: str = "") -> RequestRule:
    return RequestRule(part, re.compile(pattern, re.IGNORECASE), report, needs)


POLITE = re.compile(
    r"^(?:(?:please|pls|plz|kindly|just|maybe|also|and|but|so|then|oh)[, ]+"
    r"|(?:can|could|would|will) (?:you|u) (?:please |always |kindly )?(?=(?:always|never|please|from now "
    r"on|stop|not|keep|avoid|answer|reply|write|use|call|speak|be)\b)"
    r"|please to |I(?:'d| would| should) be (?:very )?grateful if you (?:would |could )?"
    r"|I(?:'d| would) (?:really )?(?:like|love|prefer|appreciate) (?:it if you (?:would |could )?|you to "
    r"|if you (?:would |could )?)"
    r"|(?:I )?want you to |(?:I )?need you to (?=always|never)|you (?:should|can|may) (?=always|never)"
    r"|try to |be sure to |make sure (?:to |that you |you )?"
    r"|remember to |remember,? |let's |(?:from now on|in (?:the )?future|going forward|in general|as a "
    r"rule|by default|generally),? (?:please,? )?|ensure (?:that )?(?:you )?)",
    re.IGNORECASE,
)
SUBJECT = re.compile(rf"\b(?:{STYLE}|{UNIT}|{MEASURED}|{LANGUAGE})\b", re.IGNORECASE)
"""What a request about form is about."""
_STARTS_WITH_SUBJECT = (
    rf"(?:(?:all|any|every|each|only|my|our|your|the|more|fewer|less|\w+|\w+-\w+),? ){{0,3}}?(?:{STYLE}"
    rf"|{UNIT}|{MEASURED}|{LANGUAGE})\b"
)

_VERB = any_of(
    """
    use keep answer reply respond speak talk address cite format spell sign_off assume treat stick_to prefer
    default_to capitali[sz]e indent refer_to quote round number mark label limit avoid express respect follow
    favou?r switch_(?:from|to) stay_(?:with|in) be say return lead_with open_with
    """
)
_FREE_VERB = any_of(
    """
    write show give explain include end start begin name comment document structure mention present provide
    state wrap phrase have highlight link separate break
    """
)
_MARKED_VERB = any_of(
    """
    put list add make ask correct order group convert describe bring leave return set check count measure
    translate suggest propose summari[sz]e tell offer alphabeti[sz]e keep
    run_(?:the_|all_|our_|unit_|integration_)*(?:tests|linter|formatter|type_checker)
    """
)
"""Verbs of tasks: a rule only with a marker such as "always"."""
_ANSWERS = (
    r"(?:your |the |all |all your )?(?:answers?|repl(?:y|ies)|responses?|explanations?|summaries|messages"
    r"|code)"
)
_MANNER = any_of("short brief concise simple terse detailed formal informal friendly to_the_point factual plain")
_ONE_THING = (
    r"(?!\S+ (?:me |us |him |her )?(?:an?|one|two|three|four|five|\d+|some|another|my|the (?:\w+ )?(?:mail"
    r"|email|letter|title|table|list|text|story|report|essay|code|function|file|test|tests|bug|script|page"
    r"|post|quiz|poem|plan|section|intro|paragraph|sentence))\b)"
)

_NOUN = rf"(?:(?:local|any|raw|fancy|long) )?(?:{STYLE}|{UNIT}|{MEASURED})(?! (?:your|the|my|me|us)\b)"

REQUESTS: tuple[RequestRule, ...] = (
    # prohibitions
    _rule(Part.AVOID, rf"^never (?:ever )?(?:in )?(?P<x>(?:(?-i:[A-Z])|\"|{_NOUN}\b).*)", "Asks to never use {x}"),
    _rule(
        Part.AVOID,
        r"^(?:always )?never (?:ever )?(?P<x>(?!(?:did|was|were|had|has|will|would|does|is|are|been|got|went"
        r"|really|\w+ed)\b)[a-z]\w* ?.+)",
        "Asks to never {x}",
    ),
    _rule(
        Part.AVOID,
        r"^(?:don't|do not) (?:ever |please )?(?P<x>[a-z]\w* .+|lecture.*|sugar-?coat.*|apologi[sz]e.*"
        r"|moralise.*|preach.*)",
        "Asks not to {x}",
    ),
    _rule(Part.AVOID, r"^not to (?P<x>[a-z]\w* .+)", "Asks not to {x}"),
    _rule(Part.AVOID, r"^(?P<v>stop|avoid|quit|cease) (?P<x>[a-z]\w*.*)", "Asks to {v} {x}"),
    _rule(Part.AVOID, r"^(?:refrain from) (?P<x>\w+.*)", "Asks to refrain from {x}"),
    _rule(
        Part.AVOID,
        r"^(?P<v>skip|drop|omit|leave out|cut out|cut|lose|ditch|spare me|hold) (?P<x>(?:the|all|any|your"
        r"|every|those|with the)? ?\"?\w.*)",
        "Asks to leave out {x}",
        "subject",
    ),
    _rule(
        Part.AVOID,
        r"^(?:leave|keep) (?P<x>(?:the |all |any )?\w+(?: \w+)? out of \w.*|(?:the |all |any )?\w+ out)$",
        "Asks to leave {x}",
    ),
    _rule(Part.AVOID, r"^(?:spare|save) (?:me|us) (?P<x>.+)", "Asks to leave out {x}"),
    _rule(Part.AVOID, r"^(?:skip|drop|ditch) (?P<x>the (?:\"[^\"]+\" )?\w+(?: \w+){0,3})$", "Asks to leave out {x}"),
    _rule(Part.AVOID, r"^under no circumstances (?P<x>[a-z].+)", "Asks to under no circumstances {x}"),
    _rule(
        Part.AVOID, r"^you (?:don't need to|don't have to|needn't|need not) (?P<x>[a-z].+)", "Asks not to {x}", "marker"
    ),
    _rule(
        Part.AVOID,
        r"^(?:absolutely |strictly |and )?no (?:more )?(?P<x>(?!(?:need|time|of|more|it|that|longer"
        r"|matter)\b)[\w\"'#°].*)",
        "Wants no {x}",
    ),
    _rule(
        Part.AVOID,
        r"^(?P<x>(?:less|fewer|nothing|zero|not too much) (?!else|about it|is|was|worked"
        r"|changed)[\w\"'].*)",
        "Wants {x}",
    ),
    _rule(Part.AVOID, r"^without (?P<x>(?:any )?[a-z][\w -]{2,40})$", "Wants no {x}"),
    _rule(Part.AVOID, r"^no need to (?P<x>[a-z].+)", "Asks not to {x}"),
    # language and manner
    _rule(
        Part.PREFERENCES,
        rf"^(?:always )?(?:answer|reply|respond|write|talk|speak)(?: to me| with me| back)? (?:only )?in "
        rf"(?P<x>{LANGUAGE}\b.*)",
        "Asks for answers in {x}",
    ),
    _rule(
        Part.PREFERENCES,
        rf"^(?:always )?(?:keep|make) {_ANSWERS} (?P<x>(?:\w+ )?{_MANNER}\b.*)",
        "Asks for answers that are {x}",
    ),
    # requests that are rules by their verb, by a marker, or by their subject
    _rule(
        Part.PREFERENCES, rf"^(?:always|only) (?P<x>(?:{_VERB}|{_FREE_VERB}|{_MARKED_VERB})\b.+)", "Asks to always {x}"
    ),
    _rule(
        Part.PREFERENCES,
        rf"^{_ONE_THING}(?P<x>(?:use|cite|number|mark|label|stick to|default to|assume|treat|address|format"
        rf"|spell|capitali[sz]e|indent|round|refer to|sign off|follow|respect|prefer|switch (?:from|to))\b .+)",
        "Asks to {x}",
    ),
    _rule(Part.PREFERENCES, r"^use (?P<x>.+)", "Asks to use {x}", "subject"),
    _rule(
        Part.PREFERENCES,
        r"^(?P<x>(?:ask|check with|consult|tell|warn) (?:me|us) (?:first )?before .+)",
        "Asks that the assistant {x}",
    ),
    _rule(Part.PREFERENCES, rf"^{_ONE_THING}(?P<x>{_VERB}\b .+)", "Asks to {x}", "subject"),
    _rule(Part.PREFERENCES, rf"^(?P<x>(?:{_FREE_VERB}|{_VERB}|{_MARKED_VERB})\b .+)", "Asks to {x}", "marker"),
    _rule(Part.PREFERENCES, rf"^{_ONE_THING}(?P<x>{_FREE_VERB}\b .+)", "Asks to {x}", "subject"),
    _rule(
        Part.PREFERENCES,
        r"^(?P<x>be (?:direct|blunt|honest|brief|concise|brutal\w*|frank|gentle|kind|patient|critical|formal"
        r"|polite|precise|specific|straight\w*|terse|thorough)\b.*)",
        "Asks to {x}",
    ),
    _rule(
        Part.PREFERENCES,
        r"^(?P<x>(?:give it to me straight|tell it like it is|(?:get|come|cut) (?:straight )?to the (?:point"
        r"|chase))\b.*)",
        "Asks to {x}",
    ),
    _rule(
        Part.PREFERENCES,
        rf"^{_ONE_THING}(?P<x>(?:critique|review|judge|answer|reply|respond|speak|explain|correct)(?: me| my \w+)"
        rf"? \w+ly"
        r"(?: and \w+ly)?)$",
        "Asks to {x}",
    ),
    # requests without a verb
    _rule(
        Part.PREFERENCES,
        rf"^(?P<x>{UNIT}(?: and {UNIT})?,? (?:obviously|only|always|everywhere|throughout)|{UNIT} and {UNIT}"
        rf"|{MEASURED} (?:as |in |like )?{UNIT}(?: and {UNIT})?|everything (?:vegan|vegetarian|halal|kosher)"
        r"|(?:vegan|vegetarian|halal|kosher|[\w-]+-free) (?:everything|only|food only))$",
        "Wants {x}",
    ),
    _rule(
        Part.PREFERENCES,
        r"^(?P<x>all (?:my |our |the )?(?:code|examples|snippets|scripts|samples|texts|emails) (?:in|should be"
        r"|must be) .+)",
        "Wants {x}",
    ),
    _rule(
        Part.PREFERENCES,
        r"^(?P<x>(?:each|every|all(?: of)?(?: my| our| the)?) (?:\w+ ){1,3}?(?:ends?|starts?|begins?|gets?"
        r"|goes|go|needs?|comes?|must|should) .+)",
        "Wants {x}",
    ),
    _rule(
        Part.PREFERENCES,
        r"^(?P<x>(?!(?:the|this|that|it|you|I|we|he|she|they|what|who|a|an)\b)[\w\"'/ -]{2,40} (?:should"
        r"|shouldn't|must|mustn't|has to|have to|needs to|need to) (?:always |never |not |only )*[a-z]+\b.*)",
        "Wants {x}",
        "subject",
    ),
    _rule(Part.PREFERENCES, rf"^(?P<x>{_STARTS_WITH_SUBJECT}.*)", "Wants {x}", "fragment"),
    _rule(Part.PREFERENCES, r"^(?P<x>.+)", "Wants {x}", "fragment and marker"),
)

DANGLING = re.compile(
    r"\b(?:about|on|of|for|with) (?:that|this|it)$|\b(?:that|this|it) up$|\b(?:that|this)$", re.IGNORECASE
)
"""The end of a prohibition that points at what was said before: "don't lecture me about that"."""
ALONE = re.compile(
    r"\b(?:lectur\w*|nag\w*|judg\w*|morali[sz]\w*|preach\w*|mother\w*|patroni[sz]\w*|scold\w*|pity|mock\w*"
    r"|teas\w*)\b",
    re.IGNORECASE,
)
"""Manners that say enough without what they are about."""
MANNERS = re.compile(
    r"^(?:lectur\w*|nag\w*|judg\w*|morali[sz]\w*|preach\w*|mother\w*|patroni[sz]\w*|scold\w*|comment\w*"
    r"|jok\w*|remind\w*|ask\w*|bring|mention\w*|tell|give|pity|correct\w*|mock\w*|tease\w*|talk\w*)\b",
    re.IGNORECASE,
)
"""What a person may ask an assistant not to do to them."""
