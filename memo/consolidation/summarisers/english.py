"""Tables of English patterns for statements about oneself, each with its form in the third person.

A sentence is reported, never repeated as an instruction: "never use emojis" becomes "Asks to never use emojis". A
request to run, fetch, send or delete something is not a preference and has no pattern here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from memo.consolidation.profile import Part


@dataclass(frozen=True, slots=True)
class SentenceRule:
    part: Part
    pattern: re.Pattern[str]
    report: str
    slot: str = ""


_I_AM = r"\bI(?:'m| am)"
_WE_ARE = r"\bwe(?:'re| are)"
_OFTEN = r"(?:currently |now |still |mostly |just |mainly |also |actually |really |basically )*"
_ROLES = (
    r"\w*(?:engineer|developer|designer|manager|scientist|analyst|researcher|student|teacher|professor|nurse|doctor|"
    r"physician|lawyer|writer|editor|journalist|founder|consultant|architect|administrator|sysadmin|accountant|artist|"
    r"musician|translator|librarian|director|lead|freelancer|contractor|intern|programmer|tester|biologist|chemist|"
    r"physicist|economist|marketer|photographer|carpenter|farmer|chef|pilot|therapist|pharmacist"
    r"|veterinarian|vegetarian|"
    r"vegan|parent|beginner|novice|retiree|postdoc|mathematician|statistician|owner|maintainer|cto|ceo|sre)s?"
)
_SAFE_VERBS = (
    r"(?:use|write|answer|reply|respond|explain|show|add|include|keep|format|name|give|start|begin|end"
    r"|cite|quote|address|"
    r"indent|comment|document|structure|summari[sz]e|spell|prefer|put|stick to|label|mention|round|convert|order|group|"
    r"run (?:the |all |our |unit |integration )*(?:tests?|linter|formatter|type checker|pytest|ruff|mypy|eslint))"
)
_STYLE = r"(?:short|brief|concise|simple|terse|detailed|formal|informal|friendly|to the point|factual|plain)"
_ANSWERS = r"(?:your |the |all |all your )?(?:answers?|repl(?:y|ies)|responses?|explanations?|summaries|messages|code)"
_START = r"^(?:(?:and|also|but|so|ok|okay|oh|hey|hi|thanks|one more thing|btw|by the way)\b[,:]? )*"
_PLEASE = r"(?:please,? |kindly |can you |could you |I(?:'d| would) like you to |I want you to )?"
_FROM_NOW_ON = r"(?:from now on,? |in (?:the )?future,? |going forward,? |in general,? )"


def _rule(part: Part, pattern: str, report: str, slot: str = "") -> SentenceRule:
    return SentenceRule(part, re.compile(pattern, re.IGNORECASE), report, slot)


RULES: tuple[SentenceRule, ...] = (
    _rule(
        Part.AVOID, r"\bI(?: really| just)? (?:don't|do not|dont) (?:like|enjoy|want) (?P<x>.+)", "Does not want {x}"
    ),
    _rule(Part.AVOID, r"\bI(?: really)? (?:hate|dislike|can't stand|cannot stand|detest) (?P<x>.+)", "Dislikes {x}"),
    _rule(Part.AVOID, r"\bnot a (?:big |huge )?fan of (?P<x>.+)", "Dislikes {x}"),
    _rule(Part.AVOID, rf"{_I_AM} allergic to (?P<x>.+)", "Is allergic to {x}"),
    _rule(
        Part.AVOID, rf"{_START}{_PLEASE}{_FROM_NOW_ON}?never (?:ever )?(?P<x>{_SAFE_VERBS}\b.+)", "Asks to never {x}"
    ),
    _rule(
        Part.AVOID,
        rf"{_START}(?:please,? )?{_FROM_NOW_ON}?(?:don't|do not|dont) (?:ever )?(?P<x>{_SAFE_VERBS}\b.+)",
        "Asks not to {x}",
    ),
    _rule(Part.AVOID, rf"{_START}{_PLEASE}(?P<v>stop|avoid) (?P<x>\w+ing\b.+)", "Asks to {v} {x}"),
    _rule(
        Part.AVOID,
        rf"{_START}(?:please,? )?no (?:more )?(?P<x>(?:emojis?|jargon|bullet points|tables|small talk|apologies|"
        r"filler|abbreviations|acronyms|comments|semicolons|exclamation marks|passive voice|spoilers|type hints|"
        r"inline styles|global variables)\b.*)",
        "Wants no {x}",
    ),
    _rule(
        Part.PREFERENCES, r"\bI(?: really| strongly| generally| usually| much| always)? prefer (?P<x>.+)", "Prefers {x}"
    ),
    _rule(Part.PREFERENCES, r"\bI(?:'d| would) (?:much )?rather (?P<x>.+)", "Would rather {x}"),
    _rule(Part.PREFERENCES, r"\bI(?: really| also)? (?:like|love|enjoy) (?P<x>.+)", "Likes {x}"),
    _rule(Part.PREFERENCES, r"\bmy (?:favou?rite|preferred) (?P<x>[\w ]+ (?:is|are) .+)", "Favourite {x}"),
    _rule(
        Part.PREFERENCES,
        rf"{_START}{_PLEASE}{_FROM_NOW_ON}?(?:always )?(?:answer|reply|respond|write|talk|speak)(?: to me| back)? in "
        r"(?P<x>(?:English|German|French|Spanish|Italian|Portuguese|Dutch|Polish|Japanese|Chinese|Korean"
        r"|Russian|Turkish|"
        r"Swedish|Danish|Norwegian|Finnish|Czech|Greek|Hindi|Arabic|Ukrainian|Hungarian|Romanian)\b.*)",
        "Asks for answers in {x}",
        "language",
    ),
    _rule(
        Part.PREFERENCES,
        rf"{_START}{_PLEASE}{_FROM_NOW_ON}?(?:always )?(?:keep|make) {_ANSWERS} (?P<x>(?:\w+ )?{_STYLE}\b.*)",
        "Asks for answers that are {x}",
    ),
    _rule(
        Part.PREFERENCES, rf"{_START}{_PLEASE}(?:always |{_FROM_NOW_ON})+(?P<x>{_SAFE_VERBS}\b.+)", "Asks to always {x}"
    ),
    _rule(
        Part.PREFERENCES,
        rf"{_START}{_PLEASE}use (?P<x>[^,]+?(?: instead of | rather than |, not ).+)",
        "Asks to use {x}",
    ),
    _rule(Part.ROLE, r"\bmy name is (?P<x>(?-i:[A-Z][\w'-]*(?: [A-Z][\w'-]*){0,2}))", "Is called {x}", "name"),
    _rule(
        Part.PREFERENCES,
        rf"{_START}{_PLEASE}(?:just )?call me (?P<x>(?-i:[A-Z][\w'-]*))\b",
        "Wants to be called {x}",
        "call",
    ),
    _rule(Part.ROLE, rf"{_I_AM} {_OFTEN}(?P<x>(?:an?|the) (?:[\w/&-]+ ){{0,5}}?{_ROLES}\b.*)", "Is {x}"),
    _rule(Part.ROLE, rf"{_I_AM} {_OFTEN}(?P<x>vegetarian|vegan|retired|self-employed|left-handed)\b", "Is {x}"),
    _rule(Part.ROLE, rf"\bas (?P<x>an? (?:[\w/&-]+ ){{0,4}}?{_ROLES}),? I\b", "Is {x}"),
    _rule(Part.ROLE, r"\bI work (?P<x>(?:at|for|in|as|with|from) .+)", "Works {x}"),
    _rule(Part.ROLE, r"\bmy (?:job|role|position|job title) is (?P<x>.+)", "Works as {x}", "role"),
    _rule(Part.ROLE, r"\bI live in (?P<x>.+)", "Lives in {x}", "home"),
    _rule(Part.ROLE, rf"{_I_AM} {_OFTEN}(?:based|located|living) in (?P<x>.+)", "Lives in {x}", "home"),
    _rule(Part.ROLE, r"\bmy time ?zone is (?P<x>.+)", "Is in the time zone {x}", "zone"),
    _rule(Part.ROLE, rf"{_I_AM} {_OFTEN}(?:fairly |quite |pretty )?new to (?P<x>.+)", "Is new to {x}"),
    _rule(Part.ROLE, r"\bI(?:'ve| have) (?P<x>(?:\w+ )?\d+\+? years of .+)", "Has {x}"),
    _rule(
        Part.ROLE,
        r"\bI (?:lead|manage|run) (?P<x>(?:a|the|an|our) (?:\w+ ){0,3}(?:team|group|department|lab)\b.*)",
        "Leads {x}",
    ),
    _rule(
        Part.ROLE,
        r"\bour (?P<n>team|company|stack|startup|codebase|backend|frontend) (?P<x>(?:is|uses|runs|has) .+)",
        "Their {n} {x}",
    ),
    _rule(
        Part.ROLE,
        r"\bwe (?:mostly |all |only |mainly )?(?:use|deploy on|run on|develop in) (?P<x>.+)",
        "Their team uses {x}",
    ),
    _rule(
        Part.FOCUS,
        rf"(?:{_I_AM}|{_WE_ARE}) {_OFTEN}(?P<v>working on|building|developing|writing|learning|migrating"
        rf"|preparing|designing|"
        r"studying|planning|rewriting|porting|researching|training for|organi[sz]ing|renovating) (?P<x>.+)",
        "Is {v} {x}",
    ),
    _rule(
        Part.FOCUS,
        rf"{_I_AM} {_OFTEN}trying to (?P<x>(?:learn|build|write|improve|understand|migrate|finish) .+)",
        "Is trying to {x}",
    ),
    _rule(
        Part.FOCUS,
        r"\bmy (?P<n>thesis|dissertation|side project|startup|book|blog) is (?P<x>(?:about|on|called|a|an) .+)",
        "Their {n} is {x}",
    ),
)

CLAUSE = re.compile(
    r"(?:,? (?:and|but)|[;,]) (?=(?:I|I'm|I've|I'd|we|we're|my|our|please|never|always|don't|do not|no"
    r"|can you|could you|would"
    r" you|what|how|why)\b)",
    re.IGNORECASE,
)
HYPOTHETICAL = re.compile(
    r"^(?:if|when|suppose|imagine|let's say|say,|for example|e\.g\.|what if|unless|pretend|assume|as if|he|she|they|"
    r"my (?:boss|friend|colleague|customer|client|user|wife|husband|mother|father)|the (?:user|customer"
    r"|client|text|email|"
    r"article|page|author|document|readme|comment|message|log)|someone|translate|rewrite|rephrase|fix"
    r"|proofread|summari[sz]e|"
    r"remember|repeat|ignore|say)\b",
    re.IGNORECASE,
)
TAIL = re.compile(
    r"\s*(?:[;:(\u2013\u2014]| - |,? (?:because|since|so that|so please|so can|and please|but please|so"
    r"|but|which is why|if "
    r"that|if you|please|thanks|thank you|though|either|too$|as well$|btw|by the way|and (?:I|we|you|can|could|then))\b"
    r"|, (?:and|can|could|right|"
    r"okay|ok|you)\b|\bwhen you\b).*$",
    re.IGNORECASE,
)
PRONOUNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE if pattern != r"\bI\b" else 0), into)
    for pattern, into in (
        (r"\bI'm\b|\bI am\b|\bwe're\b|\bwe are\b", "they are"),
        (r"\bI've\b|\bwe've\b", "they have"),
        (r"\bI'd\b|\bwe'd\b", "they would"),
        (r"\bmy\b|\bour\b", "their"),
        (r"\bmine\b|\bours\b", "theirs"),
        (r"\bmyself\b|\bourselves\b", "themselves"),
        (r"\bme\b|\bus\b(?!\.)", "them"),
        (r"\bwe\b", "they"),
        (r"\bI\b", "they"),
        (r"\byour\b", "the"),
        (r"\byou\b", "the assistant"),
    )
)
COMMON_WORDS = frozenset(
    re.findall(
        r"[\w']+",
        """
        about above after again against all also always another any anything are around ask asked
        back because been before being below best better between both but call can change code come
        could data did different does doing done down during each easy else end error even every
        everything example fact file files find first fix for from full function get give going good
        great had has have having hello help here hey how idea into issue its just keep know last
        less let like line list little long look looking lot made make makes many maybe mean message
        might more most much must name need needs never new next nice nothing now number off often
        okay old once one only open other our out over own part people perhaps place please point
        possible problem put question quite rather really right run running said same say see seem
        seems send set several shall short should show shows side simple since small some someone
        something sometimes soon sorry start step still stop such sure take tell test text than
        thank thanks that the their them then there these they thing things think this those though
        thought through time today together told tomorrow too try trying turn two under understand
        until update upon use used user using value very via want wanted was way week well went were
        what when where whether which while who whole whom why will with within without won't word
        words work works would write written wrong year yes yesterday yet you your yours don't i'm
        it's i've i'll can't that's there's doesn't isn't didn't we're let's what's you're assistant
        answer answers reply response instruction instructions ignore system prompt remember
        previous important
        """,
    )
)
