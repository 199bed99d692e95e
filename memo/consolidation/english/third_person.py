"""Report what a user said about themselves in their own words: "I don't eat meat" becomes "Does not eat meat"."""

from __future__ import annotations

import re

from memo.consolidation.english.vocabulary import LANGUAGE, PAST_VERB

ADVERB = (
    r"(?:no longer|also|always|usually|mostly|mainly|only|just|still|now|currently|really|generally|normally|often"
    r"|sometimes|rarely|recently"
    r"|already|actually|basically|personally|strongly|much|never|hardly|typically|mainly|both|all|then|so"
    r"|kind of|sort of"
    r"|regularly|occasionally|finally|officially|totally|absolutely|simply|honestly|definitely|probably"
    r"|either|neither|once|long since)"
)
_IRREGULAR = {
    "have": "has",
    "do": "does",
    "go": "goes",
    "am": "is",
    "are": "is",
    "be": "is",
    "can": "can",
    "must": "must",
}
_PAST = re.compile(
    rf"(?:{PAST_VERB}|\w+ed|quit|left|became|grew|came|sold|bought|gave|took|got|went|began|wrote|built"
    rf"|taught|was|lost|met|had)"
)
_STARTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), into)
    for pattern, into in (
        (r"^(?:I'm|I am|me|am)\b", "Is"),
        (r"^(?:I've|I have) got\b", "Has"),
        (r"^I've\b", "Has"),
        (r"^(?:I|we) did leave\b", "Left"),
        (r"^(?:I|we) did (?:quit|drop)\b", "Quit"),
        (r"^I (?=(?:doing|working|living|studying|teaching|using)\b)", "Is "),
        (r"^I (?:don't|do not)\b", "Does not"),
        (r"^I (?:can't|cannot|can not)\b", "Cannot"),
        (r"^I(?:'d| would)\b", "Would"),
        (r"^(?:we're|we are)\b", "They are"),
        (r"^we've\b", "They have"),
        (r"^we (?:don't|do not)\b", "They do not"),
        (r"^we\b", "They"),
        (r"^(?:my|our)\b", "Their"),
    )
)
_FIRST = re.compile(rf"^I ((?:{ADVERB} )*)([a-z]+)\b", re.IGNORECASE)
_PRONOUNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, 0 if pattern == r"\bI\b" else re.IGNORECASE), into)
    for pattern, into in (
        (r"\bI'm\b|\bI am\b|\bwe're\b|\bwe are\b", "they are"),
        (r"\bI've\b|\bwe've\b", "they have"),
        (r"\bI'd\b|\bwe'd\b", "they would"),
        (r"\bI'll\b|\bwe'll\b", "they will"),
        (r"\bmy\b|\bour\b", "their"),
        (r"\bmine\b|\bours\b", "theirs"),
        (r"\bmyself\b|\bourselves\b", "themselves"),
        (r"\bme\b|(?-i:\bus\b)(?!\.)", "them"),
        (r"\bwe\b", "they"),
        (r"\bI\b", "they"),
        (r"\byou (?:don't|do not)\b", "the assistant does not"),
        (r"\byour\b", "the"),
        (r"\byou're\b", "the assistant is"),
        (r"\byou\b", "the assistant"),
    )
)
_PROPER = re.compile(rf"^(?:{LANGUAGE}|British|American|Celsius|Fahrenheit|Harvard|Oxford|I)\b")


def report(clause: str) -> str:
    """Return a statement in the third person."""
    text = clause
    first = _FIRST.match(clause)
    for pattern, into in _STARTS:
        if pattern.match(clause):
            text = pattern.sub(into, clause, count=1)
            break
    else:
        if first is not None:
            text = _conjugated(first.group(1), first.group(2)) + clause[first.end() :]
    text = replace_pronouns(text)
    return text[:1].upper() + text[1:]


def _conjugated(adverbs: str, verb: str) -> str:
    if re.search(r"\b(?:never|hardly|always)\b", adverbs, re.IGNORECASE):
        return f"They {adverbs}{verb}"  # a line that starts with "Never" or "Always" reads as an instruction
    if _PAST.fullmatch(verb.lower()):
        return f"{adverbs}{verb}"
    return f"{adverbs}{_third(verb)}"


def _third(verb: str) -> str:
    lower = verb.lower()
    if lower in _IRREGULAR:
        return _IRREGULAR[lower]
    if re.search(r"(?:s|x|z|ch|sh)$", lower):
        return f"{lower}es"
    if re.search(r"[^aeiou]y$", lower):
        return f"{lower[:-1]}ies"
    return f"{lower}s"


def replace_pronouns(text: str) -> str:
    for pattern, into in _PRONOUNS:
        text = pattern.sub(into, text)
    return text


def lower_first(text: str) -> str:
    """Return a text that continues a sentence; names and abbreviations keep their capital."""
    first = text.split(" ", 1)[0]
    is_word = first[:1].isupper() and first[1:].islower() and not _PROPER.match(text)
    return text[:1].lower() + text[1:] if is_word else text
