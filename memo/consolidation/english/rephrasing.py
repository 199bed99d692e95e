"""Rephrasing: sentences that state a fact indirectly, as plain clauses that the tables of statements can read.

"As someone who types with one hand, I …" states "I type with one hand"; "we've dropped Helm for Kustomize" states "we
now use Kustomize, formerly Helm". It never decides what is kept. Pure.
"""

from __future__ import annotations

import re

from memo.consolidation.english import filters
from memo.consolidation.english.change_shapes import CHANGES, Rewrite
from memo.consolidation.english.vocabulary import CONDITION, ROLE, STATE

MAX_ROUNDS = 4


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
    return [f"I {_plain_verb(match['v'].strip())} {match['a']}", match["rest"] or ""]


def _reason(match: re.Match[str]) -> list[str]:
    """Separate a reason from what it explains, unless that is a task."""
    main = match["rest"]
    if filters.POINTS_AT.search(main) or filters.ONE_OFF.search(main) or filters.TASK.match(main):
        return [match.group()]
    return [main, match["a"]]


def _role_here(match: re.Match[str]) -> list[str]:
    who = match["y"].strip()
    article = "an" if who[:1].lower() in "aeiou" else "a"
    return [f"I'm {article} {re.sub(r'^an? ', '', who, flags=re.IGNORECASE)}", match["rest"] or ""]


_SHAPES: tuple[tuple[re.Pattern[str], Rewrite], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), into)
    for pattern, into in (
        # introductions
        (
            rf"^(?:an? )?(?P<y>(?!(?:the|was|were|is|are|this|that|our|my|your|his|her|any|no|one|every)\b)"
            rf"[^,;:]{{0,60}}"
            rf"\b{ROLE}(?: [^,;:]{{1,60}})?) here(?:$|[,.] ?(?P<rest>.*)$)",
            _role_here,
        ),
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
        (r"^as (?:someone|somebody|a person|one) with (?P<a>[^,]+?), (?P<rest>.+)$", r"I have \g<a>\n\g<rest>"),
        (rf"^(?P<a>(?:I'm |I am )?{STATE}),? so (?P<rest>.+)$", r"\g<a>\n\g<rest>"),
        (
            rf"^(?P<a>(?!remote|single|disabled|located|based|native|responsible|in charge){STATE})(?P<rest>(?:,?"
            rf" (?:and|&) {STATE}| since \w+)?)(?=$|, )",
            r"I am \g<a>\g<rest>\n",
        ),
        (rf"^(?P<a>{CONDITION})(?:,? so (?P<rest>.+)|$)", r"I have \g<a>\n\g<rest>"),
        (
            r"^(?P<x>(?:can't|cannot|don't|do not|won't|never) (?:eat|drink|smoke|drive|hear well|see well|eat)\b.+)"
            r"$",
            r"I \g<x>",
        ),
        (r"^(?P<x>(?:allergic|intolerant) to .+)$", r"I am \g<x>"),
        (r"^now (?P<x>I am|I'm|we are|we're) (?P<y>.+)$", r"\g<x> now \g<y>"),
        (
            r"^(?P<x>(?:driving|working|teaching|living|studying|renting|freelancing|nursing|farming|selling"
            r"|managing|cooking"
            r"|lecturing|training|volunteering) (?!it\b|this\b|that\b)[^,;]{3,60}) now$",
            r"I am now \g<x>",
        ),
        (
            r"^(?P<x>[^,;]{4,60}), (?P<y>(?:driving|working|teaching|living|renting|freelancing|selling)"
            r" [^,;]{3,60} now)$",
            r"\g<x>\n\g<y>",
        ),
        # facts in subordinate clauses
        (
            r"^(?:since|because|as|given that|seeing as|now that|because of the fact that) "
            r"(?P<a>(?:I|I'm|I've|we|we're|my|our)\b(?! said| mentioned)[^,]{4,}?)(?:,| so) (?:so )?(?P<rest>.+)$",
            r"\g<a>\n\g<rest>",
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
            r", who(?P<a>(?:'s| )(?!was|were|had|would|said|asked|wants?)[^,]+)$",
            r"\g<rest>\n\g<p>\g<a>",
        ),
        # prohibitions
        (
            r"^(?:all )?(?P<x>(?!the|this|that|it|an?\b)[\w' -]{2,50}) (?:is|are) (?:all )?(?:off the table"
            r"|off[ -]limits|out of the question"
            r"|banned"
            r"|forbidden|a no-go|no-gos?|taboo|not allowed|unwelcome|not welcome|not wanted|a no no)(?: (?:here"
            r"|for me|with us))?$",
            r"never use \g<x>",
        ),
        (
            r"^(?:please )?(?:stay|steer|keep) (?:well )?(?:away from|clear of|off(?! the table)) (?P<x>(?!the|this"
            r"|that|it|my|our|me)\b\S.+)$",
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
            r"^(?:please )?(?:leave|keep) (?:all |any )?(?P<x>(?-i:[a-z])[\w' -]{1,40}s) out(?: of (?:it|them"
            r"|everything))?$",
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
            r"^(?:I|we) (?:really )?(?:don't|do not) (?:need|want) (?:any |your |all the )"
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
    for pattern, into in (*_SHAPES, *CHANGES):
        found = pattern.match(text)
        if found:
            parts = found.expand(into).split("\n") if isinstance(into, str) else into(found)
            parts = [part.strip(" ,;.-") for part in [*parts, text[found.end() :]] if part and part.strip(" ,;.-")]
            if parts and parts != [text]:
                return parts
    return [text]
