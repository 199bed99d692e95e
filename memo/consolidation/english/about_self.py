"""The table of statements about who the user is: name, health, people, role, place and what changed. Data only.

A rule says which clause it accepts and in which section it belongs; the first that matches wins. The bullet is the
clause itself in the third person, or `report` filled with the named groups.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from memo.consolidation.english.third_person import ADVERB
from memo.consolidation.english.vocabulary import FAMILY, NATIONALITY, PAST_VERB, RELATION, ROLE, STATE, any_of
from memo.consolidation.profile import Part


@dataclass(frozen=True, slots=True)
class StatementRule:
    kind: str
    part: Part
    pattern: re.Pattern[str]
    report: str = ""


def rule(kind: str, part: Part, pattern: str, report: str = "") -> StatementRule:
    return StatementRule(kind, part, re.compile(pattern, re.IGNORECASE), report)


OFTEN = rf"(?:{ADVERB} )*"
I_AM = rf"(?:(?:I'm|I am|me|am|I) {OFTEN}(?:not {OFTEN})?)"
AM = rf"(?:(?:I'm|I am|am|me) {OFTEN})"
WE_ARE = rf"(?:(?:we're|we are|we) {OFTEN})"
HERE = (
    r"(?:(?:here|at work|at home|at (?:the|our|my) \w+|in (?:the|our|my) \w+|in \w+|for \w+|personally"
    r"|professionally|by day|by night),? )?"
)
_NAME = r"(?-i:[A-Z][\w'\u00c0-\u017f-]+)"
_TRANSIENT_STATE = any_of(
    """
    a_bit a_little a_lot a_(?:big_|huge_
    |great_)?fan a_mess an_idiot a_moron the_one the_same a_step a_while a_minute a_few a_day
    a_week
    """
)

ABOUT_SELF: tuple[StatementRule, ...] = (
    # names
    rule("name", Part.ROLE, rf"^my name(?:'s| is) (?P<x>{_NAME}(?: {_NAME}){{0,2}})", "Is called {x}"),
    rule(
        "name",
        Part.PREFERENCES,
        rf"^(?:actually,? |please,? |just |you can |everyone calls me |people call me |friends call me |most "
        rf"people call me |i go by |i'm known as )*(?:call me |(?<=by )|(?<=me )|(?<=as ))(?P<x>{_NAME})(?:$"
        rf"|[,.!]| instead| please| now)",
        "Wants to be called {x}",
    ),
    rule("name", Part.ROLE, r"^(?:my )?pronouns(?: are|:)? \w+"),
    rule(
        "name",
        Part.ROLE,
        rf"^{AM}(?!(?:Sure|Sorry|Fine|Done|Back|Stuck|Happy|Glad|Good|Okay|Not|Just|Also|Still|So|Very|Really"
        rf"|Using|Trying)\b)(?-i:[A-Z][a-z\u00c0-\u017f]{{2,}})(?: {_NAME})?(?=,|$| and | from | at | here)",
    ),
    rule("name", Part.ROLE, rf"^it's (?P<x>{_NAME} {_NAME}) (?:now|these days)(?:$|,).*", "Is called {x}"),
    # health and diet
    rule(
        "health",
        Part.ROLE,
        rf"^{I_AM}(?:\w+ (?:and )?)?(?:allergic|intolerant|lactose intolerant|gluten intolerant)\b",
    ),
    rule(
        "health",
        Part.ROLE,
        rf"^{HERE}(?:I|we) {OFTEN}(?:don't|do not|can't|cannot|can not|never|no longer)(?: \w+)? (?:eat|drink"
        rf"|smoke|cook with|touch|digest|tolerate|have dairy|do dairy|do gluten)\b",
    ),
    rule(
        "health",
        Part.ROLE,
        r"^(?:my|our) (?:\w+ )?(?:eyesight|vision|eyes|hearing|memory|back|knees?|health|diet|mobility|hands?"
        r"|handwriting|dyslexia|adhd|wrist) ",
    ),
    # people
    rule(
        "person",
        Part.ROLE,
        rf"^{HERE}(?:my|our) (?:(?:\w+|\w+-\w+) ){{0,2}}?{RELATION}(?:'s)?\b(?! (?:question|code|problem|email"
        rf"|mail)).* ?(?:'s|\b(?:is|are|has|have|had|can|can't|cannot|does|doesn't|do|don't|works?|lives?"
        rf"|reads?|uses?|needs?|hates?|goes|observes?|speaks?|only|never|always|turns?|starts?|suffers?|plays?"
        rf"|studies|teaches|runs?|keeps?|wears?|eats?|drinks?|takes?|gets?|comes?|was|just|will|handles?"
        rf"|manages?|named|called|died|passed|moved|prefers? to be|\w+s))\b",
    ),
    rule(
        "person",
        Part.ROLE,
        rf"^(?:the |our |my )?{FAMILY}(?:'s|,? (?-i:[A-Z])\w+,? is| is) {STATE}\b.*|^(?:the |our |my )?{FAMILY}"
        rf" (?:is called|is named|has|is allergic|can't|cannot|doesn't) \S.*",
    ),
    rule(
        "person",
        Part.ROLE,
        rf"^(?:I'm|I am) (?:married|engaged) to\b|^(?:I|we) (?:live|share \S+ \w+) with (?:my|our) {RELATION}",
    ),
    rule("person", Part.ROLE, rf"^(?:I|we) {OFTEN}share (?:an?|the|my|our) \w+(?: \w+)? with\b"),
    rule(
        "person",
        Part.ROLE,
        r"^(?-i:[A-Z])[a-z\u00c0-\u017f]+(?:'s (?:had|got|been)?| (?:is|has|suffers|can't|cannot|doesn't|eats"
        r"|observes|keeps|uses|needs|only|never|was|had)\b).*\b(?:allerg\w+|vegan|vegetarian|coeliac|celiac"
        r"|diabet\w+|deaf|blind|asthma\w*|adhd|autis\w+|dyslex\w+|intoleran\w+|kosher|halal|ramadan|lent"
        r"|shabbat|sabbath|pregnant|wheelchair|eggs?|dairy|nuts?|fish|pork|sugar|disease|syndrome|disorder|heart"
        r"|stroke|surgery|cancer|operation"
        r"|diagnosed|dementia|gluten|lactose|screen reader|hearing aids?|on \w+days|(?:can't|cannot|doesn't"
        r"|never) (?:work|eat|drink|drive|come|meet))\b.*",
    ),
    rule(
        "person",
        Part.ROLE,
        r"^(?:the |our |my )?(?:\w+ ){0,2}?(?:guy|person|contact|lead|manager|admin|boss|owner|deputy|foreman"
        r"|secretary|clerk|driver|assistant) (?:is|is called|is named) (?-i:[A-Z])\w+\b.*",
    ),
    rule(
        "person",
        Part.ROLE,
        r"^(?:my|our) (?:\w+ ){1,2}?(?-i:[A-Z][a-z]+)(?:'s)? (?:is|has|can't|cannot|doesn't|works|lives|reads"
        r"|uses|needs|only"
        r"|never|observes|suffers|speaks|handles|manages)\b .+",
    ),
    rule(
        "person",
        Part.ROLE,
        r"^(?:(?:little|young|old|baby) )?(?-i:[A-Z])[a-z\u00c0-\u017f]+ (?:can't|cannot|doesn't|never) "
        r"(?:eat|drink|drive|have|smoke|speak|see|hear|walk|read)\b .+",
    ),
    # roles
    rule("role", Part.ROLE, rf"^as (?P<x>an? (?:[\w/&-]+ ){{0,4}}?{ROLE})\b,? (?:I|we|my|you)\b", "Is {x}"),
    rule(
        "role",
        Part.ROLE,
        rf"^{AM}(?!{_TRANSIENT_STATE}\b)(?:(?:more of )?an?|one of|part of|head of|president of|the (?:\S+ "
        rf"){{0,3}}?{ROLE}\b|the \w+ (?:of|at|for)|in (?:my|the) \w+ year) \S.*",
    ),
    rule("role", Part.ROLE, rf"^{AM}(?:[\w-]+ ){{0,3}}?{ROLE}\b"),
    rule("role", Part.ROLE, rf"^{WE_ARE}(?:are )?(?:an?|one of|in the) (?!(?:bit|little|lot|mess|hurry|middle)\b)\S.*"),
    rule("role", Part.ROLE, rf"^{I_AM}{STATE}\b"),
    rule("role", Part.ROLE, rf"^{I_AM}(?:a )?{NATIONALITY}\b(?!\?)"),
    rule(
        "role",
        Part.ROLE,
        rf"^{AM}(?:on (?:\w+ )?(?:medication|thinners|insulin|antidepressants|statins|beta blockers|dialysis|chemo"
        rf"|warfarin|steroids|(?:parental|maternity|paternity|sick) leave|a pension|benefits)|(?:driving|flying|cooking"
        rf"|nursing|lecturing|sailing|farming) (?:for|at|with)|doing [\w ]{{3,40}} now$|working|recovering from"
        rf"|saving for|caring for|raising|expecting|fasting|breastfeeding"
        rf"|undergoing|employed|freelancing|volunteering|teaching|studying|training|doing (?:an?|my) "
        rf"(?:phd|master'?s?|degree|apprenticeship|internship)|doing accounting|interning|living|staying|based"
        rf"|running (?:an?|the|my) (?!tests?\b|script|build|query|server|command|code|migration|job\b|program|suite)"
        rf"\w+)\b",
    ),
    rule("role", Part.ROLE, r"^I (?:am )?(?:doing|working|studying|teaching|living) \S+"),
    rule(
        "role",
        Part.ROLE,
        rf"^{AM}(?:from|at|with|in|on) (?:(?-i:[A-Z])|(?:the |an? )?(?:\w+ )?(?:team|sales|marketing|finance"
        rf"|hr|it|logistics|healthcare|education|academia|construction|retail|consulting|insurance|banking"
        rf"|customer support|support)\b)",
    ),
    rule(
        "role",
        Part.ROLE,
        r"^(?:my|our) (?:current |new |day |main |side )?(?:job|role|position|job title|title|profession"
        r"|occupation|background|degree|major|field|speciality|specialty|trade|employer|company|firm|business"
        r"|startup|department|industry|office|desk|headquarters|hq|practice|studio|shop|school|university|club"
        r"|gig)(?:'s| (?:is|are|was|makes|sells|does|builds|has))\b",
    ),
    rule(
        "role",
        Part.ROLE,
        r"^(?:firm|company|employer|job|role|position|occupation|profession|title|team|school|university"
        r"|department)(?: is|:) \S",
    ),
    rule(
        "role",
        Part.ROLE,
        rf"^(?!(?:the|this|that|any|no|dear|hire|find|ask|for|need|as|which|use|be|make|write|act|get|tell|give"
        rf"|show|explain|become|like|prefer|never|always|please|don't|do|call|email|I|I'm|we|my|our|you|your|he"
        rf"|she|they|it|it's|there|could|can|what|how|to|if|when|and|or|a|an)\b)(?:(?!(?:is|are|was|for|the|to"
        rf"|need|hire)\b)[\w/&'+.-]+ ){{0,5}}?{ROLE}(?: (?:here|by (?:trade|training|day)))?(?:$|,| (?:at|in"
        rf"|from|for|with|of|and|based|out of|over in|over at|near|outside|on an?)\b.*| @ .*| -+>? .*| \(.*)",
    ),
    rule(
        "passing",
        Part.ROLE,
        r"^(?:for|since|over|about|almost|nearly)? ?(?:the (?:last|past) )?(?:\d+|ten|five|twenty|fifteen"
        r"|several) years (?:of|in|as|at|with)\b",
    ),
    # places
    rule(
        "place",
        Part.ROLE,
        rf"^{HERE}(?:based|living|located|born|raised|residing|now living) (?:in|near|out of|outside) \S+",
    ),
    rule("place", Part.ROLE, r"^(?-i:[A-Z])\w+ time ?zone\b.*"),
    rule("place", Part.ROLE, r"^(?:my )?(?:time ?zone|location|city|home ?town|country|address)(?: is|:|'s) \S+"),
    rule("place", Part.ROLE, rf"^{WE_ARE}(?:based|located|in (?-i:[A-Z])|from (?-i:[A-Z]))"),
    # lasting events
    rule(
        "event",
        Part.ROLE,
        rf"^(?:I|we|I've|we've|I have|we have) {OFTEN}{PAST_VERB}\b(?! (?:to (?:the|this|that)|at(?! "
        rf"(?-i:[A-Z]))|this|that|it|with the|by|on(?! "
        rf"(?:from|to))|off(?! (?-i:[A-Z]))|out|up|an?|the (?!\w+ team|house|flat|car|\S+ (?:to|from) "
        rf"(?-i:[A-Z])))\b) \S.*",
    ),
    rule(
        "event",
        Part.ROLE,
        rf"^(?:I|we) (?:did |have |had to )?{OFTEN}(?:sold (?:the|my|our)|left|leave|quit|move|switch|drop) "
        rf"(?!(?:this|that|it|the"
        rf"|an?|on|off|out|up)\b)\S.*",
    ),
    rule(
        "event",
        Part.ROLE,
        r"^(?:just |recently |finally |now )*(?:moved|relocated|switched|migrated|quit|left|joined|promoted|retired"
        r"|transferred"
        r"|changed jobs) (?:(?:from|to|away|over|off|out|jobs|my|our|the|in)\b|(?-i:[A-Z]))\S*.*",
    ),
    rule(
        "event",
        Part.ROLE,
        rf"^I(?:'ve| have)? {OFTEN}(?:was|got|been|have been) (?:appointed|promoted|elected|hired|seconded|transferred"
        rf"|posted|diagnosed|ordained|commissioned) .*|^I(?:'ve| have)? {OFTEN}(?:accepted|got|taken|landed|found"
        rf"|started) an? (?:[\w-]+ ){{0,4}}?(?:job|position|role|post|apprenticeship|internship|gig)\b.*",
    ),
    rule("event", Part.ROLE, r"^I am now [a-z]+ing \S.*"),
    rule(
        "event",
        Part.ROLE,
        r"^I(?:'ve| have)? (?:stepped down|resigned|retired) (?:as|from)\b.*|^(?:the |our )?[\w +#.-]{2,30} (?:is|are) "
        r"(?:being )?(?:phased out|retired|decommissioned|discontinued)\b.*",
    ),
    rule("event", Part.ROLE, r"^(?:I|we)(?:'ve| have)? (?:just |finally )?quit (?:the|my|our) \w+(?: \w+)?$"),
    rule("event", Part.ROLE, rf"^(?:I|we) {OFTEN}start(?:ing)? (?:at|as|with|my|a new)\b.*"),
    rule(
        "event",
        Part.ROLE,
        rf"^(?:I've|I have|we've|we have) {OFTEN}(?:been|worked|lived|taught|used|written|played|known|never"
        rf"|taken|had|run|owned|studied|coded|programmed|got (?!an? (?:question|error|problem|issue|idea|bug)"
        rf"|this|the|to\b))\b.*",
    ),
    rule(
        "event",
        Part.ROLE,
        r"^(?:I|we|I'm|we're|I am|we are) (?:no longer|not more|no more)\b.*|^(?:I'm|I am|we're|we are|it's"
        r"|it is) not \S.* (?:any ?more|any longer)\b.*|^(?:I|we) (?:don't|do not) .*\b(?:any ?more|any "
        r"longer)\b.*|^(?:the |my |our )?\w+(?: \w+)? (?:isn't|is not|aren't|are not) .*\b(?:any ?more|any "
        r"longer)\b.*",
    ),
    rule(
        "event",
        Part.ROLE,
        r"^no longer (?:an? |the |in |at |on |with )?\w+.*|^(?:not|no|no more) (?:an? )?\S+(?: \S+)? (?:any ?more"
        r"|any longer|these days)\b.*|^no (?:more|longer) "
        r"(?-i:[A-Z])\w+.*",
    ),
    rule(
        "event",
        Part.ROLE,
        r"^(?:\S+ ){0,6}?(?:switched|changed|moved|renamed|migrated|went|converted|transferred)\b[^,;]{0,60}? from"
        r" (?-i:[A-Z])\S* to (?-i:[A-Z])\S*.*",
    ),
    rule(
        "event",
        Part.ROLE,
        r"^(?:the |our |my )?(?:[\w-]+ ){1,2}(?:has |have )?(?:moved|switched|migrated|changed|relocated) "
        r"(?:over )?(?:to|from)"
        r" (?-i:[A-Z]).*",
    ),
    rule("event", Part.ROLE, r"^(?:switching|moving|migrating|changing) from (?-i:[A-Z])\S* to \S.*"),
    rule("event", Part.ROLE, r"^(?:leaving|quitting|dropping|ditching) (?-i:[A-Z])\S*.*"),
)
