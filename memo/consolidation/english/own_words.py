"""What a user typed, as sentences: without code, quotes, logs, pasted text and what follows its announcement."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memo.consolidation.english.filters import FOREIGN_LABEL, OWN_LABEL, RETRACTED

MAX_PARAGRAPH_CHARS = 1_500
"""A longer paragraph is assumed to be pasted, not typed."""
MAX_SENTENCE_CHARS = 500
MAX_MENTION_WORDS = 4
"""A longer quote is a statement of its own, not the mention of a word."""

_FENCED = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|<!--.*?(?:-->|\Z)", re.DOTALL)
_TAG = re.compile(r"<(\w+)[^<>]*>")
_CODE = re.compile(r"`([^`\n]*)`")
_MENTIONED_CODE = re.compile(r"[\w.()#+*-]{1,30}")
_QUOTE = re.compile(
    r"\"([^\"]*)\"|\u201c([^\u201d]*)\u201d|\u201e([^\u201c\u201d]*)[\u201c\u201d]|\u00ab([^\u00bb]*)\u00bb"
    r"|(?<!\w)'([^'\n]{1,300}(?:'\w[^'\n]{0,300}){0,5})'(?!\w)"
)
_FIRST_PERSON = re.compile(r"\b(?:I|we|my|our|me|you|your)\b", re.IGNORECASE)
_PASTE_BEGINS = re.compile(
    r"^(?:dear (?!me\b)\w+|-{3,}|={3,}|_{3,}|\*{3,}|(?:from|to|subject|date|cc|sent|system|assistant|human|user"
    r"|instructions?)\s*:|[#\[{<|]"
    r"|\[?pasted\b)",
    re.IGNORECASE,
)
_ANNOUNCES = re.compile(
    r"\b(?:log|logs|traceback|error|output|text|mail|email|excerpt|message|code)\W+(?:is )?(?:below|follows)\W*$"
    r"|\b(?:see|as) below\W*$",
    re.IGNORECASE,
)
_LOG_LINE = re.compile(
    r"^\W*(?:\d{4}-\d\d-\d\d[T ]\d\d:|\d\d:\d\d:\d\d|at \S+\(|File \"|Traceback|(?:\w*Error|\w*Exception"
    r"|WARN\w*|INFO|DEBUG"
    r"|ERROR|FATAL)\b[: ]|[$%>]\s|[\w./-]+:\d+:)"
)
_BRACKETED = re.compile(r"\[([^\[\]\s]{1,8})\](?!\()")
_LIST_MARK = re.compile(r"^\s*(?:[-*\u2022\u2013]|\d{1,2}[.)])\s+")
_DECORATION = re.compile("[\u2600-\u27bf\U0001f000-\U0001faff\ufe0f\u200d]|(?<!\\w)[:;]-?[)(DPp](?!\\w)|\\^\\^|<3")
_ABBREVIATION = re.compile(
    r"(?:\b(?:Dr|Mr|Mrs|Ms|Prof|St|vs|etc|e\.g|i\.e|approx|ca|incl|excl|min|max|no|nr|inc|ltd|jr|sr|dept"
    r"|est|fig)\.)$",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(
    r"(?:(?<=[!?])|(?<=[^.]\.)|(?<=\.\.\.)(?!\s+(?:(?:oh|ah|er+m?|hm+) )?(?:no\b|wait|sorry|scratch|I mean"
    r"|make that)))\s+(?=\S)|(?<=[!?.][\"')])\s+(?=[A-Z])|\n+"
)
_SPELLINGS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, flags), into)
    for pattern, flags, into in (
        (r"\b[Ii]m\b(?! Auftrag)", 0, "I'm"),
        (r"(?<![\w.])i(?=['\s])", 0, "I"),
        (r"\b[Ii]ve\b", 0, "I've"),
        (r"\bdon[`\u00b4]?t\b|\bdo n't\b", re.IGNORECASE, "don't"),
        (r"\bcant\b", re.IGNORECASE, "can't"),
        (r"\bdoesnt\b", re.IGNORECASE, "doesn't"),
        (r"\bwont\b", re.IGNORECASE, "won't"),
        (r"\bI've (?=an?\b)", 0, "I have "),
        (r"(?<=\w) > (?=\w)", 0, " over "),
        (r"\bu\b", 0, "you"),
        (r"\b(?:pls|plz)\b", re.IGNORECASE, "please"),
        (r"\bif you(?:'re| are) (?=(?:unsure|not sure|in doubt|uncertain)\b)", re.IGNORECASE, "if "),
    )
)
_CODE_ASIDE = re.compile(r" \([^()]{0,80}[:=;{}][^()]{0,80}\)")
_ASKED_RULE = re.compile(
    r"(?:can|could|would|will) (?:you|u) (?:please |kindly )?(?=(?:always|never|from now on|stop|avoid|in future)\b)",
    re.IGNORECASE,
)
"""A question in form only: "could you always include the source?"."""


def own_sentences(text: str) -> list[str]:
    """Return the sentences that the user probably typed rather than pasted or quoted."""
    text = text.replace("\u2019", "'").replace("\r", "")
    text = _without_elements(_FENCED.sub("\n\n", text))
    found: list[str] = []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        is_ended, lines = _own_lines(paragraph)
        own = _mark_quotes("\n".join(lines))
        if len(own) <= MAX_PARAGRAPH_CHARS:
            found += _sentences(own)
        if is_ended:
            break  # what follows is someone else's text
    return found


def _without_elements(text: str) -> str:
    """Remove each `<tag>…</tag>`. `find` instead of a pattern: a pattern takes quadratic time on many open tags."""
    kept: list[str] = []
    position = 0
    for tag in _TAG.finditer(text):
        if tag.start() < position:
            continue
        end = f"</{tag.group(1)}>"
        closed = text.find(end, tag.end())
        if closed >= 0:
            kept.append(text[position : tag.start()])
            position = closed + len(end)
    return "\n".join([*kept, text[position:]])


def _own_lines(paragraph: str) -> tuple[bool, list[str]]:
    """Return whether a pasted text begins in the paragraph, and the lines before it."""
    lines: list[str] = []
    for line in paragraph.split("\n"):
        said = line.strip()
        if _PASTE_BEGINS.match(said):
            return True, lines
        if line.startswith((">", "    ", "\t")) or _LOG_LINE.match(said):
            continue
        if _announces_paste(said):
            before = _SENTENCE_END.split(said)[:-1]  # "I use Go. Fix this mail:" announces only with its last sentence
            return True, [*lines, *before]
        lines.append(line)
    return False, lines


def _announces_paste(line: str) -> bool:
    if _ANNOUNCES.search(line):
        return True
    if not line.endswith(":"):
        return False
    label = line[:-1]
    return FOREIGN_LABEL.search(label) is not None or OWN_LABEL.search(label) is None


def _mark_quotes(paragraph: str) -> str:
    """Keep short mentions, such as a word not to use; remove longer quotes, and what follows a quote without an end."""
    text = _CODE.sub(lambda code: f'"{code.group(1)}"' if _MENTIONED_CODE.fullmatch(code.group(1)) else "", paragraph)
    text = _BRACKETED.sub(r"(\1)", text)
    if text.count('"') % 2:
        text = text[: text.index('"')]
    return _QUOTE.sub(_mention, text)


def _mention(quote: re.Match[str]) -> str:
    inside = next(group for group in quote.groups() if group is not None)
    if len(inside.split()) > MAX_MENTION_WORDS or len(inside) > 40 or _FIRST_PERSON.search(inside):
        return " \u2026 "
    return f'"{inside.strip()}"'


def _sentences(paragraph: str) -> Iterator[str]:
    pending = ""
    for piece in _SENTENCE_END.split(_DECORATION.sub(" ", paragraph)):
        pending = f"{pending} {_LIST_MARK.sub('', piece).strip()}".strip()
        if _ABBREVIATION.search(pending):
            continue
        if pending and len(pending) <= MAX_SENTENCE_CHARS:
            yield pending
        pending = ""
    if pending and len(pending) <= MAX_SENTENCE_CHARS:
        yield pending


def normalised(sentence: str) -> str:
    """Return the sentence in full spelling, without what the speaker takes back in it."""
    text = _CODE_ASIDE.sub("", " ".join(sentence.split()))
    for pattern, into in _SPELLINGS:
        text = pattern.sub(into, text)
    text = RETRACTED.sub("", text)
    rule = _ASKED_RULE.match(text)
    return text[rule.end() :].rstrip("?") if rule else text
