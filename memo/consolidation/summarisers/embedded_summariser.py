"""EmbeddedSummariser: a deterministic summariser without a model or network. English only.

It reads only what users say in their own words, not the assistant, tools, quotes, code or pasted text. It extracts
stated preferences, roles, focus, things to avoid, and recurring subjects.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import anyio.to_thread

from memo.consolidation.budget import Budget
from memo.consolidation.content_filter import find_danger, screen
from memo.consolidation.profile import Bullet, Part, ProfileDraft, Source, plain, words
from memo.consolidation.summarisers.english import CLAUSE, COMMON_WORDS, HYPOTHETICAL, PRONOUNS, RULES, TAIL
from memo.consolidation.summarisers.summariser import Fact, ProfileRequest, SessionDraft, SessionSummary
from memo.consolidation.transcript import Transcript

MAX_OWN_CHARS = 1_500
"""A longer paragraph is assumed to be pasted, not typed."""
MAX_CLAUSE_CHARS = 300
MAX_CAPTURE_CHARS = 160
RECURRING_SESSIONS = 2
RECURRING_MESSAGES = 4
MAX_SUBJECTS = 5

_FENCED = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|<(\w+)[^>]*>.*?</\1>|<!--.*?(?:-->|\Z)", re.DOTALL)
_QUOTED = re.compile(r"\"[^\"\n]{12,}\"|\u201c[^\u201d]{12,}\u201d|`[^`\n]*`")
_PASTE_BEGINS = re.compile(
    r"^(?:-{3,}|={3,}|_{3,}|\*{3,}|(?:from|to|subject|date|cc|sent|system|assistant|human|user|instructions?)\s*:|[#\[{<|]"
    r"|.{0,80}\b(?:email|article|text|log|output|page|document|readme|transcript|message|file|ticket|review|report|error"
    r"|comment|post|note|result|response)s?\b[^.!?]{0,30}:\s*$)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])|\n+")
_SUBJECT = re.compile(r"\b[A-Za-z][A-Za-z0-9+#]*(?:[.-][A-Za-z0-9+#]+)*")


class EmbeddedSummariser:
    """Stateless. Its calls cost nothing, so it does not use the budget."""

    name = "embedded/1"

    async def aclose(self) -> None:
        return None

    async def summarise(self, transcript: Transcript, budget: Budget) -> SessionDraft:
        return await anyio.to_thread.run_sync(_summarise, transcript)  # a long transcript would block the event loop

    async def draft_profile(self, request: ProfileRequest, budget: Budget) -> ProfileDraft:
        return await anyio.to_thread.run_sync(_draft_profile, request)


def _summarise(transcript: Transcript) -> SessionDraft:
    facts: dict[tuple[Part, str], Fact] = {}
    subjects: dict[str, list[int]] = {}
    for entry in transcript.entries:
        if entry.role != "user":
            continue
        own = own_words(entry.text)
        for part, text, slot in _facts(own):
            key = (part, plain(text))
            before = facts.get(key)
            messages = (*(before.messages if before else ()), entry.number)
            facts[key] = Fact(part, before.text if before else text, messages, slot)
        for subject in _subjects(own):
            subjects.setdefault(subject, []).append(entry.number)
    frequent = sorted(subjects.items(), key=lambda item: (-len(item[1]), item[0]))[:50]
    return SessionDraft(tuple(facts.values()), tuple((s, tuple(numbers)) for s, numbers in frequent))


def _draft_profile(request: ProfileRequest) -> ProfileDraft:
    bullets = [*_ranked(request.summaries), *_recurring(request.summaries)]
    roles = sorted((b for b in bullets if b.part is Part.ROLE), key=lambda b: not b.text.startswith(("Is a", "Works")))
    current = [*roles[:1], *[b for b in bullets if b.part is Part.FOCUS][:1]]
    summary = "; ".join(b.text for b in current) or "; ".join(b.text for b in bullets[:2])
    if len(current) > 1:
        sources = tuple(dict.fromkeys(source for b in current for source in b.sources[:1]))
        bullets.insert(0, Bullet(Part.CURRENT, summary, sources))
    return ProfileDraft(summary, tuple(bullets))


def own_words(text: str) -> str:
    """Return what the user probably typed rather than pasted or quoted."""
    lines: list[str] = []
    for line in _QUOTED.sub("", _FENCED.sub("\n", text)).splitlines():
        if _PASTE_BEGINS.match(line.strip()):
            break  # what follows is someone else's text
        if not line.startswith((">", "    ", "\t")):
            lines.append(line)
    paragraphs = "\n".join(lines).split("\n\n")
    return "\n".join(paragraph for paragraph in paragraphs if len(paragraph) <= MAX_OWN_CHARS)


def _facts(text: str) -> Iterator[tuple[Part, str, str]]:
    for sentence in _SENTENCE_END.split(text.replace("\u2019", "'")):
        said = sentence.strip(" \t-*\u2022")
        # Check the whole sentence: the captured part alone may look harmless.
        if HYPOTHETICAL.match(said) or find_danger(said) is not None:
            continue
        yield from _facts_of(said)


def _facts_of(sentence: str) -> Iterator[tuple[Part, str, str]]:
    for clause in CLAUSE.split(sentence):
        if clause.rstrip().endswith("?") or len(clause) > MAX_CLAUSE_CHARS:
            continue
        for rule in RULES:
            found = rule.pattern.search(clause)
            if found:
                captured = {
                    n: _reported(value if n == "x" else value.lower()) for n, value in found.groupdict().items()
                }
                reported = screen(rule.report.format(**captured))
                if captured["x"] and isinstance(reported, str):
                    yield rule.part, reported, rule.slot
                break


def _reported(captured: str) -> str:
    text = TAIL.sub("", captured.strip())
    if len(text) > MAX_CAPTURE_CHARS:
        text = text[:MAX_CAPTURE_CHARS].rsplit(" ", 1)[0]
    for pattern, into in PRONOUNS:
        text = pattern.sub(into, text)
    return text.strip(" .,;:!")


def _subjects(text: str) -> set[str]:
    """Return the words that look like names: capitalised inside a sentence, or containing a digit, `+` or `#`."""
    found: set[str] = set()
    for sentence in _SENTENCE_END.split(text):
        for match in _SUBJECT.finditer(sentence):
            word = match.group()
            is_name = (
                word[0].isupper() and match.start() > 0 and not sentence[: match.start()].rstrip().endswith((".", ":"))
            )
            if (is_name or re.search(r"[0-9+#]", word)) and len(word) > 2 and word.casefold() not in COMMON_WORDS:
                found.add(word)
    return {word for word in found if isinstance(screen(f"Recurring subject: {word}"), str)}


def _ranked(summaries: Iterable[SessionSummary]) -> list[Bullet]:
    """Merge equal facts across sessions and rank them by how many sessions state them, then by recency.

    Among facts in one slot, and among facts that differ only in word order, the newest wins.
    """
    merged: dict[tuple[Part, str], tuple[str, list[Source]]] = {}
    slots: set[str] = set()
    orders: dict[tuple[Part, frozenset[str]], str] = {}
    for summary in summaries:
        for fact in sorted(summary.facts, key=lambda f: -max(f.messages, default=0)):
            key = (fact.part, plain(fact.text))
            if orders.setdefault((fact.part, words(fact.text)), key[1]) != key[1]:
                continue
            if key not in merged and fact.slot:
                if fact.slot in slots:
                    continue
                slots.add(fact.slot)
            sources = [Source(summary.session, number) for number in sorted(fact.messages, reverse=True)]
            merged.setdefault(key, (fact.text, []))[1].extend(sources)
    ordered = sorted(merged.items(), key=lambda item: -len({s.session for s in item[1][1]}))
    return [Bullet(part, text, tuple(sources)) for (part, _), (text, sources) in ordered]


def _recurring(summaries: Iterable[SessionSummary]) -> Iterator[Bullet]:
    sessions: Counter[str] = Counter()
    sources: dict[str, list[Source]] = {}
    names: dict[str, str] = {}
    for summary in summaries:
        for subject, numbers in summary.subjects:
            key = subject.casefold()
            names.setdefault(key, subject)
            sessions[key] += 1
            sources.setdefault(key, []).extend(Source(summary.session, n) for n in sorted(numbers, reverse=True))
    often = [k for k in sessions if sessions[k] >= RECURRING_SESSIONS and len(sources[k]) >= RECURRING_MESSAGES]
    for key in sorted(often, key=lambda k: (-sessions[k], -len(sources[k]), k))[:MAX_SUBJECTS]:
        yield Bullet(Part.FOCUS, f"Recurring subject: {names[key]}", tuple(sources[key]))
