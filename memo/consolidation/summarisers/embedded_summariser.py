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
from memo.consolidation.content_filter import screen
from memo.consolidation.english import CurrentStatements, MessageReader, own_sentences
from memo.consolidation.english.corrections import MAX_STATEMENTS
from memo.consolidation.english.vocabulary import COMMON_WORDS
from memo.consolidation.profile import Bullet, Correction, Part, ProfileDraft, Source, plain, words
from memo.consolidation.summarisers.summariser import Fact, ProfileRequest, SessionDraft, SessionSummary
from memo.consolidation.transcript import Transcript

RECURRING_SESSIONS = 2
RECURRING_MESSAGES = 4
MAX_SUBJECTS = 5

_SUBJECT = re.compile(r"\b[A-Za-z][A-Za-z0-9+#]*(?:[.-][A-Za-z0-9+#]+)*")


class EmbeddedSummariser:
    """Stateless. Its calls cost nothing, so it does not use the budget."""

    name = "embedded/3"

    async def aclose(self) -> None:
        return None

    async def summarise(self, transcript: Transcript, budget: Budget) -> SessionDraft:
        return await anyio.to_thread.run_sync(_summarise, transcript)  # a long transcript would block the event loop

    async def draft_profile(self, request: ProfileRequest, budget: Budget) -> ProfileDraft:
        return await anyio.to_thread.run_sync(_draft_profile, request)


def _summarise(transcript: Transcript) -> SessionDraft:
    facts: dict[tuple[Part, str], Fact] = {}
    subjects: dict[str, list[int]] = {}
    reader = MessageReader()
    for entry in transcript.entries:
        if entry.role != "user":
            continue
        for statement in reader.read(entry.text):
            key = (statement.part, plain(statement.text))
            before = facts.get(key)
            messages = (*(before.messages if before else ()), entry.number)
            facts[key] = Fact(statement.part, before.text if before else statement.text, messages)
        for subject in _subjects(own_sentences(entry.text)):
            subjects.setdefault(subject, []).append(entry.number)
    frequent = sorted(subjects.items(), key=lambda item: (-len(item[1]), item[0]))[:50]
    return SessionDraft(tuple(facts.values()), tuple((s, tuple(numbers)) for s, numbers in frequent))


def _draft_profile(request: ProfileRequest) -> ProfileDraft:
    ranked, replaced = _ranked(request.summaries)
    bullets = [*ranked, *_recurring(request.summaries)]
    roles = sorted((b for b in bullets if b.part is Part.ROLE), key=lambda b: not b.text.startswith(("Is a", "Works")))
    current = [*roles[:1], *[b for b in bullets if b.part is Part.FOCUS][:1]]
    summary = "; ".join(b.text for b in current) or "; ".join(b.text for b in bullets[:2])
    if len(current) > 1:
        sources = tuple(dict.fromkeys(source for b in current for source in b.sources[:1]))
        bullets.insert(0, Bullet(Part.CURRENT, summary, sources))
    return ProfileDraft(summary, tuple(bullets), replaced)


def _subjects(sentences: Iterable[str]) -> set[str]:
    """Return the words that look like names: capitalised inside a sentence, or containing a digit, `+` or `#`."""
    found: set[str] = set()
    for sentence in sentences:
        for match in _SUBJECT.finditer(sentence):
            word = match.group()
            is_name = (
                word[0].isupper() and match.start() > 0 and not sentence[: match.start()].rstrip().endswith((".", ":"))
            )
            if (is_name or re.search(r"[0-9+#]", word)) and len(word) > 2 and word.casefold() not in COMMON_WORDS:
                found.add(word)
    return {word for word in found if isinstance(screen(f"Recurring subject: {word}"), str)}


def _ranked(summaries: Iterable[SessionSummary]) -> tuple[list[Bullet], tuple[Correction, ...]]:
    """Merge equal facts across sessions and rank them by how many sessions state them, then by recency.

    A newer fact replaces what it corrects, and among facts that differ only in word order the newest wins.
    """
    current = CurrentStatements.empty()
    bullets: dict[tuple[Part, str], tuple[Bullet, tuple[int, ...]]] = {}
    orders: dict[tuple[Part, frozenset[str]], str] = {}
    replaced: list[Correction] = []
    for fact, sources, place in _newest_first(summaries):
        if orders.setdefault((fact.part, words(fact.text)), plain(fact.text)) != plain(fact.text):
            continue
        text, pairs = current.admit(fact.text)
        replaced += [Correction(older, newer) for older, newer in pairs]
        if text is not None:
            bullets.setdefault((fact.part, plain(text)), (Bullet(fact.part, text, sources), place))
    ordered = sorted(bullets.values(), key=lambda found: (-len({s.session for s in found[0].sources}), found[1]))
    return [bullet for bullet, _ in ordered], tuple(dict.fromkeys(replaced))


def _newest_first(
    summaries: Iterable[SessionSummary],
) -> list[tuple[Fact, tuple[Source, ...], tuple[int, ...]]]:
    """Return each fact once, at its newest statement, with all its sources and its place on the page.

    Of one message the last statement is the newest, but the page has them in the order in which they were said.
    """
    merged: dict[tuple[Part, str], tuple[Fact, list[Source], tuple[int, ...]]] = {}
    for age, summary in enumerate(summaries):
        facts = sorted(enumerate(summary.facts), key=lambda item: (-max(item[1].messages, default=0), -item[0]))
        for number, fact in facts:
            key = (fact.part, plain(fact.text))
            if key not in merged and len(merged) < MAX_STATEMENTS:
                merged[key] = (fact, [], (age, -max(fact.messages, default=0), number))
            if key in merged:
                merged[key][1].extend(Source(summary.session, n) for n in sorted(fact.messages, reverse=True))
    return [(fact, tuple(sources), place) for fact, sources, place in merged.values()]


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
