"""MessageReader: from the messages of a user to the statements in them: split into clauses, filter, classify, join."""

from __future__ import annotations

import re

from memo.consolidation.content_filter import find_danger, screen
from memo.consolidation.english import filters
from memo.consolidation.english.classifier import (
    DANGLES,
    REQUESTED,
    Statement,
    classify,
    classify_request,
    strip_tail,
)
from memo.consolidation.english.own_words import normalised, own_sentences
from memo.consolidation.english.rephrasing import rephrased
from memo.consolidation.english.requests import ALONE, DANGLING, SUBJECT
from memo.consolidation.english.third_person import lower_first, replace_pronouns
from memo.consolidation.english.vocabulary import FAMILY
from memo.consolidation.profile import Part

MAX_CLAUSE_CHARS = 300
MAX_TEXT_CHARS = 220
MAX_ROLE_MESSAGES = 2
"""How many messages after a request for role play may be lines of a role."""


_LEAD = re.compile(
    r"^(?:(?:(?:yes|yeah|yep|no|nope|thanks?|thank you|cool|great|good|nice|perfect|lovely|right|well|sure"
    r"|first(?: of all)?|second(?:ly)?|update|news|welcome|rule|agreed|true|exactly|super|wow|again"
    r"|correction|seriously|remember)(?=[,.!:;\u2014\u2013]|-(?!\w))"
    r"|and|also|but|so|ok(?:ay)?|oh|ah|hey|hi|hello|yo|thx|ta|k|hmm+|haha\w*|lol|btw|by the way|fyi|ps"
    r"|p\.s|one more(?: thing)?|another thing|oh and|plus|actually|quick note|small note|side note|for "
    r"context|for the record|for reference|for info|to be clear|just so you know|just to let you know"
    r"|so you know|you should know(?: that)?|keep in mind(?: that)?|note(?: that)?|please note(?: that)?"
    r"|as i said|as mentioned|like i said|anyway|good (?:morning|evening|afternoon)|guten tag|salaam"
    r"|ol[aá]|hola|bonjour"
    r"|finally|lastly|i should (?:say|mention|add|warn you)(?: that)?|i must (?:say|admit)(?: that)?|i "
    r"forgot to (?:say|mention)(?: that)?|did i mention(?: that)?|turns out|in case it matters|if it "
    r"(?:matters|helps)"
    r"|(?:since|as of|starting|from) (?:(?:this|last|next) )?(?:month|week|year|now(?! on)|today|\w+day|january"
    r"|february|march|april|may|june|july|august|september|october|november|december)|nowadays|these days"
    r"|good news|big news|slight change|one correction|a correction|correction on \w+ \w+|back again|me "
    r"again|honestly|tbh|even so|besides|of course|for my part|since you ask|since you asked"
    r"|my own rule|new rule|house rule|general rule|ground rules?|as (?:always|usual|ever)|in (?:our|my) "
    r"(?:case|house)|day job update|job update)\b(?:[ ]*[,:;.!–—-]+[ ]*|[ ]+)){1,4}",
    re.IGNORECASE,
)
_NO_LEAD = re.compile(
    r"^(?:first (?:name|language|person|draft|year|thing)|good at|great britain|right-|right to|second "
    r"(?:year|language|semester)|rule of|plus (?:signs?|size))",
    re.IGNORECASE,
)
_STARTER = (
    r"(?:I|I'm|I've|I'd|we|we're|we've|my|our|please|don't|do not|use|keep|stop|avoid|skip|answer|reply"
    r"|write|explain|give me|show me|call me|leave out|can you|could you|would you|what|how|why|where"
    r"|which|should|is there|is (?:that|this|it)|are (?:they|those)|do (?:I|you)|no need)"
)
_SPLIT = re.compile(
    rf"(?:,? (?:and|but|plus|or)|;|,| [\u2013\u2014-]) (?={_STARTER}\b)|,? (?:and|but) (?=(?:never"
    rf"|always|no) )|(?<=\w): (?=(?:please|I|I'm|we|we're|my|our|never|don't)\b)|; | [\u2013\u2014] "
    rf"|(?:\.\.\.|\u2026) (?=[A-Za-z])",
    re.IGNORECASE,
)
_CONSEQUENCE = re.compile(
    r",? (?:so|therefore|thus|hence|which is why|that's why|meaning) (?!that\b|far|much|many|called|long)",
    re.IGNORECASE,
)
_SAME_PERSON = re.compile(r"^(?:he|she|they)(?:'s|'re|'ve)?\b", re.IGNORECASE)
_SAME_PLACE = re.compile(r"^it(?:'s| is) (?:in|based in|located in|near|called|named) (?-i:[A-Z])", re.IGNORECASE)
_SAME_CHANGE = re.compile(r"^from (?-i:[A-Z])[\w -]{1,40} to \S", re.IGNORECASE)
_NAME_ALONE = re.compile(r"Is \S+(?: \S+)?$")
_EXIT_ALONE = re.compile(
    r"(?:Does not|They do not)\b.{1,60}\b(?:any ?more|any longer)$|"
    r"(?:The |Their )?\w+(?: \w+)? (?:isn't|is not|aren't|are not)\b.{1,60}\b(?:any ?more|any longer)$"
    r"|(?:Has |They |They have )?(?:quit|left|dropped|ditched|sold|moved|(?:are )?not|no longer|no more|is not|is "
    r"no longer)\b.{1,60}$",
    re.IGNORECASE,
)
_COMMANDS = re.compile(
    r"(?:please |also |just )*(?:don't|do not|never|no |skip|stop|avoid|leave out|drop|use|always|keep"
    r"|answer|explain|show|write|give|assume)",
    re.IGNORECASE,
)
_KEPT_LABEL = re.compile(
    r"^(?:(?:my|our|the) )?(?:tech ?stack|stack|tools?|toolchain|setup|environment|env|os|editor|ide"
    r"|database|db|backend|frontend|cloud|ci|hosting|framework|languages?|software|hardware|gear|firm"
    r"|company|employer|job|role|position|team|school|pronouns|(?:\w+ )?format|location|city|time ?zone"
    r"|style|format|new (?:job|role|gig|position|post|employer|title)\b.{0,20})$",
    re.IGNORECASE,
)
_SCOPE_LABEL = re.compile(r"^for (?:(?:my|our|all|any|every)\b|\w+s$)", re.IGNORECASE)
MAX_LABEL_CHARS = 60
_RELATIVE = re.compile(
    rf"\b(?i:my|our) (?P<x>(?:(?i:ward|line|little) )?(?i:{FAMILY})),? (?P<name>[A-Z][a-z\u00c0-\u017f]+)\b"
)


class MessageReader:
    """Reads the messages of one session in order, because a role play lasts longer than one message."""

    def __init__(self) -> None:
        self._role_messages = 0

    def read(self, text: str) -> list[Statement]:
        """Return the statements of a message of the user."""
        sentences = [normalised(sentence) for sentence in own_sentences(text)]
        if any(map(filters.UNREMEMBERED.search, sentences)):
            return []
        is_role_line = self._is_in_role(" ".join(sentences[:1]), sentences)
        found: list[Statement] = []
        is_task = False
        for sentence in sentences:
            before = len(found)
            _read_sentence(sentence, found)
            if is_task:  # "Put it in a table. Seven columns." is one task
                found[before:] = [s for s in found[before:] if s.kind != "fragment"]
            is_task = is_task or _is_task(sentence)
        return [s for s in found if not is_role_line or s.kind in REQUESTED]

    def _is_in_role(self, text: str, sentences: list[str]) -> bool:
        if any(map(filters.ROLE_PLAY.search, sentences)):
            self._role_messages = MAX_ROLE_MESSAGES
            return True
        if self._role_messages == 0 or filters.ROLE_ENDS.search(text):
            self._role_messages = 0
            return False
        self._role_messages -= 1
        return True


def _is_task(sentence: str) -> bool:
    said = _stripped(sentence)
    points = filters.POINTS_AT.search(said) or filters.ONE_OFF.search(said)
    return filters.TASK.match(said) is not None and points is not None


def _read_sentence(sentence: str, found: list[Statement]) -> None:
    """Add the statements of one sentence to those found before it in the message."""
    said = _without_label(_stripped(sentence))
    label, colon, _ = said.partition(": ")
    if colon and (filters.TASK.match(label) or filters.FOREIGN_LABEL.search(label)) and not _is_about_form(label):
        return
    # Check the whole sentence: one clause alone may look harmless.
    if find_danger(said) is not None or filters.SECRET.search(said) or filters.ABOUT_ASSISTANT.search(said):
        return
    condition = filters.ASKED_WHEN.match(said)
    if condition:
        rule = classify_request(said[condition.end() :], is_rule=True)
        if rule is not None:
            when = lower_first(replace_pronouns(condition.group().strip(" ,")))
            _keep(found, Statement(rule.part, rule.kind, f"{rule.text}, {when}"))
        return
    if filters.HYPOTHETICAL.search(said):
        return
    for part in rephrased(said):
        for clause in _SPLIT.split(part):
            _read_clause(clause.strip(), found)
    _name_relative(said, found)


def _is_about_form(label: str) -> bool:
    return SUBJECT.search(label) is not None and not filters.TASK.match(label)


def _without_label(sentence: str) -> str:
    """Remove a label that announces a statement, as in "ground rules: …"."""
    label, colon, value = sentence.partition(": ")
    if not colon or len(label) > MAX_LABEL_CHARS or _KEPT_LABEL.search(label):
        return sentence
    is_own = filters.OWN_LABEL.search(label) and not filters.FOREIGN_LABEL.search(label)
    return _stripped(value) if is_own or _SCOPE_LABEL.match(label) else sentence


def _read_clause(clause: str, found: list[Statement]) -> None:
    clause = _stripped(clause)
    if not clause or len(clause) > MAX_CLAUSE_CHARS or _is_continued(clause, found):
        return
    main, *rest = _CONSEQUENCE.split(clause, maxsplit=1)
    statement = classify(_stripped(main))
    if statement is None:
        is_one_thing = filters.THE_THING.search(clause) is not None and not filters.LASTING.search(clause)
        for piece in rest or _pieces(clause):
            smaller = classify(_stripped(piece))
            if smaller is not None and not (is_one_thing and smaller.kind in REQUESTED):
                _keep(found, smaller)
        return
    consequence = strip_tail(rest[0]) if rest else ""
    rule = classify_request(_stripped(consequence)) if consequence and _COMMANDS.match(consequence) else None
    if rule is None and consequence:
        statement = _with_consequence(statement, consequence)
    _keep(found, statement)
    if rule is not None:
        _keep(found, rule)


def _with_consequence(statement: Statement, consequence: str) -> Statement:
    longer = f"{statement.text}, so {replace_pronouns(consequence)}"
    is_fit = len(longer) <= MAX_TEXT_CHARS and isinstance(screen(longer), str)
    is_lasting = not filters.QUESTION.search(consequence) and not filters.ONE_OFF.search(consequence)
    return Statement(statement.part, statement.kind, longer) if is_fit and is_lasting else statement


def _is_continued(clause: str, found: list[Statement]) -> bool:
    """Add to the last statement a clause that says more about its person, its place or its change."""
    if not found or filters.REPORTED.search(clause) or filters.QUESTION.search(clause):
        return False
    last = found[-1]
    is_same = (
        (last.kind == "person" and _SAME_PERSON.match(clause))
        or (last.kind in ("role", "habit", "place") and _SAME_PLACE.match(clause))
        or (last.kind == "event" and _SAME_CHANGE.match(clause))
    )
    if not is_same:
        return False
    text = f"{last.text}; {replace_pronouns(lower_first(strip_tail(clause)))}"
    if len(text) <= MAX_TEXT_CHARS and isinstance(screen(text), str):
        found[-1] = Statement(last.part, last.kind, text)
    return True


def _pieces(clause: str) -> list[str]:
    """Return the parts of a clause that was not understood as a whole."""
    label, colon, value = clause.partition(": ")
    if colon:
        return [value] if filters.OWN_LABEL.search(label) and not filters.FOREIGN_LABEL.search(label) else []
    return clause.split(", ") if ", " in clause else []


def _keep(found: list[Statement], statement: Statement) -> None:
    """Add a statement, joined with the one before if that only introduces it: a name, or what is no longer so."""
    if statement.kind == DANGLES:
        _keep_dangling(found, statement)
        return
    text = statement.text.strip(" ,.;:!-")
    if len(text) > MAX_TEXT_CHARS:
        text = text[:MAX_TEXT_CHARS].rsplit(" ", 1)[0]
    if not isinstance(screen(text), str) or any(text == other.text for other in found):
        return
    is_joined = found and statement.part is found[-1].part is Part.ROLE
    if is_joined and (_is_introduction(found[-1]) or _is_leaving(statement)):
        joined = f"{found[-1].text}; {text[:1].lower()}{text[1:]}"
        if len(joined) <= MAX_TEXT_CHARS:
            found[-1] = Statement(Part.ROLE, statement.kind, joined)
            return
    found.append(Statement(statement.part, statement.kind, text))


def _keep_dangling(found: list[Statement], statement: Statement) -> None:
    """Keep "don't lecture me about that" with the statement it refers to, or without its last words."""
    if found and len(found[-1].text) + len(statement.text) < MAX_TEXT_CHARS:
        last = found[-1]
        found[-1] = Statement(last.part, last.kind, f"{last.text}; {lower_first(statement.text)}")
    elif ALONE.search(statement.text):
        found.append(Statement(statement.part, "request", DANGLING.sub("", statement.text).strip()))


def _is_introduction(statement: Statement) -> bool:
    is_name = statement.kind == "name" and _NAME_ALONE.match(statement.text) is not None
    return is_name or (statement.kind == "event" and _EXIT_ALONE.match(statement.text) is not None)


def _is_leaving(statement: Statement) -> bool:
    return statement.kind == "event" and statement.text.startswith(("Leaving", "No more", "No longer"))


def _name_relative(sentence: str, found: list[Statement]) -> None:
    """Keep the name of a relative, also from a sentence that is not kept, such as what the relative said."""
    for match in _RELATIVE.finditer(sentence):
        name = match["name"]
        if not any(name in statement.text for statement in found) and not filters.QUESTION.search(sentence):
            _keep(found, Statement(Part.ROLE, "person", f"Their {match['x']} is called {name}"))


def _stripped(clause: str) -> str:
    text = clause.strip(" ,.;:!-\u2013\u2014")
    for _ in range(3):
        lead = None if _NO_LEAD.match(text) else _LEAD.match(text)
        if not lead:
            break
        text = text[lead.end() :].strip()
    return text
