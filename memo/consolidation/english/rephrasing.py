"""Rephrasing: sentences that state a fact indirectly, as plain clauses that the tables of statements can read.

"As someone who types with one hand, I …" states "I type with one hand"; "we've dropped Helm for Kustomize" states "we
now use Kustomize, formerly Helm". It never decides what is kept. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from memo.consolidation.english import filters
from memo.consolidation.english.vocabulary import CONDITION, KNOWN_TOOL, ROLE, STATE

MAX_ROUNDS = 4

_X = r"(?P<x>[\w.+#/&'\u00c0-\u017f-]+(?: [\w.+#/&'\u00c0-\u017f-]+){0,3}?)"
_Y = r"(?P<y>[\w.+#/&'\u00c0-\u017f-]+(?: [\w.+#/&'\u00c0-\u017f-]+){0,4}?)"
_THE = r"(?:(?:the|an?|my|our|all(?: the)?) )?"
_END = r"(?=$|[,;:.!]| (?:now|instead|by the way|btw|because|since|as|after|last|this|for|in|too|these days)\b)"
_HAVE = (
    r"(?:(?:I|we)(?:'ve| have)?|have|has been|I've had to|we had to) (?:just |finally |now |also |recently |already )*"
)
_NOW = (
    r"(?:(?:I|we)(?:'re| are|'m| am)? )?(?:now |currently )?(?:on |use |using |have |run |running )?(?:it's |it is )?"
)

Rewrite = str | Callable[[re.Match[str]], list[str]]


def _plain_verb(verb: str) -> str:
    """Return the form of a verb after "I": "types" becomes "type"."""
    irregular = {"is": "am", "has": "have", "does": "do", "goes": "go", "'s": "am", "isn't": "am not"}
    irregular |= {"doesn't": "don't", "can't": "can't", "cannot": "cannot"}
    lower = verb.lower()
    if lower in irregular:
        return irregular[lower]
    if re.search(r"(?:ch|sh|ss|x|zz)es$", lower):
        return verb[:-2]
    if lower.endswith("ies") and len(lower) > 4:
        return f"{verb[:-3]}y"
    return verb[:-1] if lower.endswith("s") and not lower.endswith("ss") else verb


def _someone(match: re.Match[str]) -> list[str]:
    return [f"I {_plain_verb(match['v'])} {match['a']}", match["rest"] or ""]


def _reason(match: re.Match[str]) -> list[str]:
    """Separate a reason from what it explains, unless that is a task."""
    main = match["rest"]
    if filters.POINTS_AT.search(main) or filters.ONE_OFF.search(main) or filters.TASK.match(main):
        return [match.group()]
    return [main, match["a"]]


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


def _role_here(match: re.Match[str]) -> list[str]:
    who = match["y"].strip()
    article = "an" if who[:1].lower() in "aeiou" else "a"
    return [f"I'm {article} {re.sub(r'^an? ', '', who, flags=re.IGNORECASE)}", match["rest"] or ""]


def _replacement(match: re.Match[str]) -> list[str]:
    old, new = match["x"].strip(), match["y"].strip()
    rest = match.groupdict().get("rest") or ""
    if re.search(rf"\b{ROLE}\b", new, re.IGNORECASE) or _NOT_A_THING.match(new) or _NOT_A_THING.match(old):
        return [match.group()]
    if not any(_NAMED.search(value) for value in (old, new)):
        return [match.group()]
    subject = "we" if re.match(r"we\b|our\b", match.group(), re.IGNORECASE) else "I"
    return [f"{subject} now use {new}, formerly {old}", rest]


_NAMED = re.compile(rf"[A-Z\d]|\b(?i:{KNOWN_TOOL})\b")
_NOT_A_THING = re.compile(r"(?:it|that|this|them|those|me|you|us|him|her|now|good|ever|sure|a|an|the)\b", re.IGNORECASE)

_REWRITES: tuple[tuple[re.Pattern[str], Rewrite], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), into)
    for pattern, into in (
        # introductions
        (rf"^(?:an? )?(?P<y>[^,;:]{{0,60}}\b{ROLE}(?: [^,;:]{{1,60}})?) here\b[,.]? ?(?P<rest>.*)$", _role_here),
        (
            r"^(?!(?:right|over|up|down|out|in|from|around|i'm|it's|new|not|all)\b)[\w'-]{2,14} here[,.!:]?"
            r" (?P<rest>.+)$",
            r"\g<rest>",
        ),
        (
            r"^(?:speaking )?as (?:someone|somebody|a person|one) (?:who|that)(?P<v>'s| [\w']+) (?P<a>[^,]+?)(?:,"
            r" (?P<rest>.+))?$",
            lambda m: _someone(m) if m["v"] != "'s" else [f"I am {m['a']}", m["rest"] or ""],
        ),
        (r"^as (?:someone|somebody|a person|one) with (?P<a>[^,]+?), (?P<rest>.+)$", r"I have \g<a>|\g<rest>"),
        (rf"^(?P<a>(?:I'm |I am )?{STATE}),? so (?P<rest>.+)$", r"\g<a>|\g<rest>"),
        (rf"^(?P<a>{STATE})(?P<rest>(?:,? (?:and|&) {STATE}| since \w+)?)(?=$|, )", r"I am \g<a>\g<rest>|"),
        (rf"^(?P<a>{CONDITION})(?:,? so (?P<rest>.+)|$)", r"I have \g<a>|\g<rest>"),
        (
            r"^(?P<x>(?:can't|cannot|don't|do not|won't|never) (?:eat|drink|smoke|drive|hear well|see well|eat)\b.+)"
            r"$",
            r"I \g<x>",
        ),
        (r"^(?P<x>(?:allergic|intolerant) to .+)$", r"I am \g<x>"),
        (r"^now (?P<x>I am|I'm|we are|we're) (?P<y>.+)$", r"\g<x> now \g<y>"),
        (
            r"^(?P<x>(?!during|nothing|something|anything|everything|using|thinking|looking|trying|going|getting"
            r"|asking)[a-z]{3,}ing (?!it\b|this\b|that\b)[^,;]{3,60}) now$",
            r"I am now \g<x>",
        ),
        (r"^(?P<x>[^,;]{4,60}), (?P<y>[a-z]{3,}ing [^,;]{3,60} now)$", r"\g<x>|\g<y>"),
        # facts in subordinate clauses
        (
            r"^(?:since|because|as|given that|seeing as|now that|because of the fact that) "
            r"(?P<a>(?:I|I'm|I've|we|we're|my|our)\b(?! said| mentioned)[^,]{4,}?)(?:,| so) (?:so )?(?P<rest>.+)$",
            r"\g<a>|\g<rest>",
        ),
        (
            r"^(?P<rest>.{6,160}?),? (?:since|because|as|cos|coz|'cause|given that) "
            r"(?P<a>(?:I|I'm|I've|we|we're|my|our)\b(?! said| mentioned| do\b| did\b| always| usually).{4,})$",
            _reason,
        ),
        (
            r"^(?P<p>(?:my|our) [\w' -]{2,40}?),? (?:who|that)(?P<a>'s [^,]+| [^,]+), (?P<rest>.+)$",
            lambda m: [f"{m['p']}{m['a']}"],
        ),
        (
            r"^(?P<rest>.{4,120}? (?:with|after|from|to|and|by|of) (?P<p>(?:my|our) [\w' -]{2,40}?))"
            r", who(?P<a>(?:'s| )[^,]+)$",
            r"\g<rest>|\g<p>\g<a>",
        ),
        # what is no longer so, with what is so now
        (
            rf"^{_HAVE}(?:dropped|ditched|swapped|exchanged|abandoned|traded|binned|scrapped|left|given up|retired) "
            rf"(?:out )?{_THE}{_X} (?:for|in favou?r of) {_THE}{_Y}{_END}(?P<rest>.*)$",
            _replacement,
        ),
        (
            rf"^(?:the )?{_X} (?:is|are|got|has been|was)(?: now)? (?:out|gone|dropped|ditched|retired|history|dead"
            rf"|replaced)"
            rf"(?: (?:now|here|too))?(?: and|,| -|;| so)+ ?(?:it's |we|we're |I|I'm )?(?: went with | chose | use "
            rf"| have "
            rf"| moved to | switched to |now (?:it's |on |use )?|on |using | took ){_THE}{_Y}(?: instead| now)?$",
            _replacement,
        ),
        (
            rf"^(?:it's |it is |that's |we're on |I'm on |we use |I use |we have )(?:now )?{_THE}{_Y},? (?:now "
            rf"|these days )?"
            rf"(?:and )?(?:instead of|rather than|not|no longer|in place of) {_THE}{_X}"
            rf"(?: (?:now|any ?more|these days))?$",
            _replacement,
        ),
        (
            rf"^(?:(?:I|we) (?:don't|do not|no longer) (?:use|have|run|work with)|not|no more|no longer(?: on)?|no) "
            rf"{_THE}{_X}(?: any ?more| any longer)?(?:,|;| -| but| and)+ (?!(?:and|please|but)\b)"
            rf"(?:now (?:it )?(?:is |we use |I use |on )?|it's |it is |we're on |I'm on |we use |I use )"
            rf"{_THE}{_Y}(?: now)?$",
            _replacement,
        ),
        (
            rf"^(?:I|we) (?:used to|once) (?:use|have|run|be on) {_THE}{_X}(?:,|;| but| -)+ "
            rf"(?:(?:and )?now(?:adays)? |these days )(?:it's |we're on |I'm on |I use |we use |on )?{_THE}{_Y}$",
            _replacement,
        ),
        (
            rf"^(?:I|we) said {_THE}{_X} (?:earlier|before|last time|yesterday|the other day|once|in the beginning),? "
            rf"(?:but )?(?:it's|it is|that's|that is|make (?:that|it)|I mean(?:t)?|I am|I'm) (?:now )?{_THE}{_Y}"
            rf"(?: now| these days)?(?P<rest>$|, .*)",
            lambda m: (
                _role_or_place(m)
                if re.search(rf"\b{ROLE}\b", m["y"], re.I)
                else [f"use {m['y']} instead of {m['x']} from now on"]
            ),
        ),
        (
            rf"^(?:I |I've |I have )?(?:just )?(?:left|quit) {_THE}{_X}(?: (?:last|in|this) \w+)?(?:;|,| -| and)+ "
            rf"(?:and )?(?:now |I'm now |I am now |I'm |I now work |now I'm )(?:with |at |for )(?P<y>[^,;]+)"
            rf"(?P<rest>.*)$",
            lambda m: [f"I now work for {m['y']}, formerly {m['x']}"],
        ),
        (
            rf"^(?:actually |ok |so )?(?:scrap|forget|drop|cancel|ignore|undo|never mind) (?:that|the"
            rf"|what I said about(?: the)?) "
            rf"{_X}(?: thing| rule| bit| stuff| request| business)?(?:,|;| -)+ ?(?P<y>[^,;]{{2,60}}?)"
            rf"(?: is what .*| it is| please| instead| now| from now on)*$",
            lambda m: [f"use {m['y']} instead of {m['x']} from now on"],
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
            r"I now work at \g<y>|\g<rest>",
        ),
        (
            r"^(?:I'm |I am |we're |we are )?back in (?P<y>(?-i:[A-Z])[\w\u00c0-\u017f' -]{1,40}?)(?: again| now"
            r"| for good)*"
            r"(?P<rest>$|, .*)",
            r"I now live in \g<y>|\g<rest>",
        ),
        (
            r"^(?:I )?took over (?P<a>my \S+ (?:\w+ )?(?:company|business|firm|shop|farm|practice)),? so (?P<rest>.+)$",
            r"\g<rest>",
        ),
        (
            r"^(?P<y>(?-i:[A-Z])[\w\u00c0-\u017f-]+(?: (?-i:[A-Z])\w+)?), (?:I|we)(?:'ve| have)? (?:just )"
            r"?moved\b(?! to| from)",
            r"we moved to \g<y>|",
        ),
        (r"^(?P<x>(?:I|we)(?:'ve| have)? (?:just )?moved), (?P<y>(?:from|to) .+)$", r"\g<x> \g<y>"),
        (r"^(?P<x>(?:moved|migrated|switched) (?:the |my |our )?\w+ (?:over )?to .+)$", r"I \g<x>"),
        (
            rf"^{_HAVE}(?:moved|migrated|come|got) (?:off|away from) {_THE}{_X},(?: it's| we're on| now)"
            rf"? {_THE}{_Y}(?: now)?$",
            _replacement,
        ),
        (
            r"^(?:(?:got|been|was) (?:transferred|moved|relocated|posted),? )?(?:I'm|I am|we're|we are) in"
            r" (?P<y>(?-i:[A-Z])"
            r"[\w\u00c0-\u017f-]+) (?:from now on|now|these days|for good)$",
            r"I now live in \g<y>",
        ),
        (r"^(?:I|I've|I have) (?:just )?(?:stepped down|resigned) as (?P<y>[^,;]+)$", r"I am no longer \g<y>"),
        # prohibitions
        (
            rf"^{_THE}(?P<x>[\w' -]{{2,50}}) (?:is|are) (?:all )?(?:off the table|off[ -]limits|out of the question"
            rf"|banned"
            r"|forbidden|a no-go|no-gos?|taboo|not allowed|unwelcome|not welcome|not wanted|a no no)(?: (?:here"
            r"|for me|with us))?$",
            r"never use \g<x>",
        ),
        (
            r"^(?:please )?(?:stay|steer|keep) (?:well )?(?:away from|clear of|off(?! the table)) (?P<x>\S.+)$",
            r"avoid \g<x>",
        ),
        (
            r"^(?:enough (?:of|with)|cut out|easy on|go easy on) (?:the |all the |your )?(?P<x>\w.+)$",
            r"please avoid \g<x>",
        ),
        (
            r"^(?:I (?:really |just |absolutely |honestly )*|really )?(?:can't stand|cannot stand|hate|detest"
            r"|loathe|despise"
            r"|can't bear|am sick of|am tired of|am allergic to) (?:it )?when (?:you|people|answers|texts|replies)"
            r" (?P<x>.+)$",
            r"never \g<x>",
        ),
        (
            r"^(?:please )?(?:leave|keep) (?:all |any )?(?P<x>[\w' -]{2,40}) out(?: of (?:it|them|this|everything))?$",
            r"never use \g<x>",
        ),
        (
            r"^(?:leave out|skip|spare me|cut|drop|lose) (?:the |all the |any |your )?(?P<x>[\w'-]+(?: [\w'-]+)?"
            r" (?:stuff|talk"
            r"|speech(?:es)?|bits|crap|nonsense|part|things))$",
            r"avoid \g<x>",
        ),
        (r"^(?:don't|do not|never) (?:ever )?sugar-?coat(?: (?:it|things|anything))?$", r"don't sugarcoat anything"),
        (
            r"^(?P<x>(?:hold|skip|no|drop|lose|cut|keep|leave|use|spare) [\w' -]{3,60}?),? (?:ok|okay|please|right"
            r"|yeah|thanks)\?$",
            r"\g<x>",
        ),
        # what is wanted, with the thing as the subject
        (
            r"^(?P<x>[\w' ,/-]{3,80}?) (?:is|are|would be) (?:always |very |most |more than )?(?:welcome"
            r"|appreciated|ideal"
            r"|preferred|perfect|fine by me|best for me|enough for me|a must|mandatory|required|essential)$",
            r"I prefer \g<x>",
        ),
        (
            r"^(?:I|we) (?:really )?(?:don't|do not) (?:need|want) (?:the |any |your |all the )"
            r"(?P<x>[a-z][\w' -]{2,40})$",
            r"no \g<x>",
        ),
        (r"^(?P<x>(?:give|tell) me the [\w' ]{3,30} first\b.*)$", r"always \g<x>"),
        (r"^(?P<x>(?:talk|speak|write) to me like (?:a|an|I'm|I am) .+)$", r"always \g<x>"),
    )
)


def rephrased(sentence: str) -> list[str]:
    """Return the plain clauses of a sentence: the sentence itself unless it has a known indirect shape."""
    done: list[str] = []
    waiting = [(sentence, 0)]
    while waiting:
        text, rounds = waiting.pop(0)
        parts = _once(text) if rounds < MAX_ROUNDS else [text]
        if parts == [text]:
            done.append(text)
        else:
            waiting[:0] = [(part, rounds + 1) for part in parts]
    return done


def _once(text: str) -> list[str]:
    for pattern, into in _REWRITES:
        found = pattern.match(text)
        if found:
            parts = found.expand(into).split("|") if isinstance(into, str) else into(found)
            parts = [part.strip(" ,;.-") for part in [*parts, text[found.end() :]] if part and part.strip(" ,;.-")]
            if parts and parts != [text]:
                return parts
    return [text]
