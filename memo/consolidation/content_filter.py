"""The content filter: which text may become a bullet. Transcripts are untrusted data, and so is a summary of them.

A bullet is one line of plain words that states something about the user. Text with markup, addresses, commands or
secrets, or that addresses its reader, is rejected and never repaired. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

MAX_BULLET_CHARS = 240
MAX_SUMMARY_CHARS = 200


@dataclass(frozen=True, slots=True)
class Rejection:
    why: str


_FORBIDDEN = re.compile(
    r"""
    [<>\[\]{}|`~\\]                         # HTML, comments, links, tables, fences, templates
    | ^\s*(?:[#=]|[-*+>]\s|-{3}|\d+[.)]\s)  # a heading, a list, a quote, a rule
    | \$\(|&&|;\s*\w+\s+-                   # shell
    """,
    re.VERBOSE,
)
_ADDRESS = re.compile(
    r"\b(?:https?|ftp|file|data|javascript|ssh)\s*:|\bwww\.|[\w.+-]+@[\w-]+\.\w+|//\w|\b\d{1,3}(?:\.\d{1,3}){3}\b"
    r"|\b[\w-]+\.(?:com|net|org|example|test|ru|xyz|dev|app|sh|biz|info|onion|zip)\b|hxxp",
    re.IGNORECASE,
)
_COMMAND = re.compile(
    r"\b(?:curl|wget|sudo|rm\s+-|chmod|chown|eval|exec|bash|powershell|netcat|nc\s+-|ssh|scp|base64|crontab|systemctl"
    r"|os\.system|subprocess|authorized_keys|id_rsa|/etc/|/proc/|~/\.|\.env\b|pip\s+install|npm\s+install|git\s+push"
    r"|drop\s+table|delete\s+from|exfiltrat\w*)\b|(?:^|\s)(?:rm|nc|sh|dd)\s+-|(?:^|\s)/(?:etc|proc|root|home|tmp)/",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"\b(?:password|passwort|passphrase|secret|api[ _-]?key|access[ _-]?key|private[ _-]?key|token|credential\w*|pin"
    r" code)\b\s*(?:is|=|:|are)|\b(?:sk|pk|ghp|gho|xox[abp])[-_][\w-]{8,}|\bAKIA[0-9A-Z]{12,}|[A-Za-z0-9+/_-]{40,}",
    re.IGNORECASE,
)
_ADDRESSES_A_MODEL = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass|disable)\b.{0,40}\b(?:previous|prior|above|earlier"
    r"|instructions?|rules"
    r"?|prompts?|guidelines|safety|safeguards?|restrictions?|policy|policies|filters?|memory|confirmations?)\b"
    r"|\b(?:system|developer|hidden)\s+(?:prompt|message|instructions?|role|note)\b|\bjailbr\w+|\bprompt injection\b"
    r"|\byou (?:are|must|should|will|shall|can|may|have to|need to)\b|\byour (?:instructions|rules"
    r"|prompt|task|job|role)\b"
    r"|\b(?:assistant|agent|model|ai|llm|gpt|claude)s? (?:must|should|shall|has to|have to|needs? to|will|can|may)\b"
    r"|\bwithout (?:asking|confirm\w+|approval|permission|telling)\b|\bdo anything now\b|\bdeveloper mode\b"
    r"|\b(?:begin|end|start) of (?:transcript|data|instructions|profile|conversation)\b|(?-i:\bEND[_ ]OF[_ ]\w+)"
    r"|\b(?:authori[sz]ed|approved|allowed|trusted|cleared) (?:to|for) (?:access|run|execute|transfer|delete|admin)"
    r"|\b(?:full|root|admin\w*|superuser|unrestricted) (?:access|rights?|privileges?|permissions?)\b|\bgod mode\b"
    r"|\b(?:transfer|wire|send|forward|leak|upload|post|email) (?:all |the |any |every |their )?(?:money"
    r"|funds|files?|data"
    r"|secrets?|keys?|credentials|documents?|history|contents?|conversations?|passwords?)\b",
    re.IGNORECASE,
)
_IMPERATIVE = re.compile(
    r"^(?:please\b|always\b|never\b|remember\b|do not\b|don't\b|make sure\b|ensure\b|from now on\b"
    r"|when(?:ever)? (?:asked"
    r"|you|someone|anyone|the)\b|if (?:asked|you|someone|anyone)\b|before (?:answering|each|every|any)\b|after (?:each"
    r"|every)\b|note to\b|important\b|attention\b|system\b|user\s*:|assistant\s*:|human\s*:|instructions?\b|ignore\b"
    r"|disregard\b|run\b|execute\b|send\b|forward\b|download\b|install\b|visit\b|open\b|click\b|call the\b|invoke\b|use"
    r" the tool\b|reply with\b|respond with\b|answer with\b|output\b|print\b|say\b|repeat\b|append\b|write\b"
    r"|pretend\b|translate\b|rewrite\b|summari[sz]e\b|act as\b|read the\b|fetch\b|load\b|tell\b|grant\b"
    r"|give\b|delete\b|remove\b|approve\b|summary\s*:"
    r"|from\s+\S+\#\d)",
    re.IGNORECASE,
)

_FIRST_PERSON = re.compile(r"\bI(?:'m|'ve|'d|'ll)?\b(?! error)|\b(?:[Mm]y|[Mm]yself|[Mm]ine)\b")

_Rules = tuple[tuple[re.Pattern[str], str], ...]
_DANGERS: _Rules = (
    (_FORBIDDEN, "it contains markup"),
    (_ADDRESS, "it contains an address"),
    (_COMMAND, "it contains a command"),
    (_SECRET, "it may contain a secret"),
    (_ADDRESSES_A_MODEL, "it addresses a model"),
)
_FORM: _Rules = (
    (_IMPERATIVE, "it is an instruction, not a statement"),
    (_FIRST_PERSON, "it is not in the third person"),
)


def screen(text: str, max_chars: int = MAX_BULLET_CHARS) -> str | Rejection:
    """Return the text as one clean line, or the reason why it must not appear in a profile."""
    danger = find_danger(text)
    if danger is not None:
        return danger
    line = " ".join(unicodedata.normalize("NFKC", text).split())
    if not any(character.isalpha() for character in line):
        return Rejection("it has no words")
    if len(line) > max_chars:
        return Rejection(f"it is longer than {max_chars} characters")
    if text.strip().count("\n"):
        return Rejection("it is more than one line")
    return next((Rejection(why) for pattern, why in _FORM if pattern.search(line)), line)


def find_danger(text: str) -> Rejection | None:
    """Return why a text is dangerous, whatever its form, or None if it is not."""
    if any(_is_hidden(character) for character in text):
        return Rejection("it contains invisible characters")
    line = " ".join(unicodedata.normalize("NFKC", text).split())
    return next((Rejection(why) for pattern, why in _DANGERS if pattern.search(line)), None)


def screen_summary(text: str) -> str:
    """Return the summary if it is safe inside a comment, otherwise an empty string."""
    screened = screen(text, MAX_SUMMARY_CHARS)
    return "" if isinstance(screened, Rejection) or "--" in screened else screened


def _is_hidden(character: str) -> bool:
    """Return whether the character is control, format, private-use or unassigned, and not a line break or tab."""
    return unicodedata.category(character) in ("Cc", "Cf", "Co", "Cn", "Cs") and character not in "\n\t\r"
