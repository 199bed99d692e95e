"""The embedded summariser on a written corpus: what it must extract, and what it must ignore."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from memo.consolidation import Budget, EmbeddedSummariser, Part
from memo.consolidation.summarisers import ProfileRequest, SessionSummary
from memo.consolidation.transcript import Transcript, TranscriptLimits, make_transcripts
from memo.ids import SessionId
from tests.memo.consolidation.corpus import CONVERSATIONS, SILENT, Conversation
from tests.memo.consolidation.scenes import LONG_AGO

pytestmark = pytest.mark.anyio


def transcript(session: str, messages: list[tuple[str, str]]) -> Transcript:
    history = [{"role": role, "content": text} for role, text in messages]
    (made,) = make_transcripts(SessionId(session), len(history), history)
    return made


async def summary(session: str, messages: list[tuple[str, str]], day: int = 0) -> SessionSummary:
    draft = await EmbeddedSummariser().summarise(transcript(session, messages), Budget())
    at = LONG_AGO + timedelta(days=day)
    return SessionSummary(SessionId(session), len(messages), at, draft.facts, draft.subjects)


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda c: c.title)
async def test_a_conversation_gives_exactly_the_expected_bullets(conversation: Conversation) -> None:
    found = await summary("s1", conversation.messages)
    heard = {(fact.part, fact.text, fact.messages) for fact in found.facts}
    assert heard == {(part, text, tuple(numbers)) for part, text, *numbers in conversation.expected}


@pytest.mark.parametrize("text", SILENT)
async def test_text_that_says_nothing_about_the_user_gives_no_bullets(text: str) -> None:
    found = await summary("s1", [("user", text)])
    assert found.facts == ()


async def profile(*summaries: SessionSummary) -> dict[Part, list[str]]:
    draft = await EmbeddedSummariser().draft_profile(ProfileRequest(summaries), Budget())
    return {part: [b.text for b in draft.bullets if b.part is part] for part in Part}


async def test_the_newest_value_of_a_slot_wins() -> None:
    old = await summary("s1", [("user", "Please answer in German. I live in Bonn. I prefer tabs over spaces.")])
    new = await summary("s2", [("user", "Please answer in French. I live in Lyon. I prefer spaces over tabs.")], day=1)
    found = await profile(new, old)
    assert found[Part.PREFERENCES] == ["Asks for answers in French", "Prefers spaces over tabs"]
    assert found[Part.ROLE] == ["Lives in Lyon"]


async def test_facts_from_more_sessions_come_first_with_all_their_sources() -> None:
    one = await summary("s1", [("user", "I prefer short answers.")])
    two = await summary("s2", [("user", "I like graphs."), ("user", "I prefer short answers!")], day=1)
    draft = await EmbeddedSummariser().draft_profile(ProfileRequest((two, one)), Budget())
    assert [(b.text, [str(s) for s in b.sources]) for b in draft.bullets] == [
        ("Prefers short answers", ["s2#2", "s1#1"]),
        ("Likes graphs", ["s2#1"]),
    ]


async def test_recurring_subjects_become_focus_areas() -> None:
    talk = [("user", "How does Kubernetes do that?"), ("user", "And why does Kubernetes restart it on Monday?")]
    found = await profile(await summary("s2", talk), await summary("s1", talk))
    assert found[Part.FOCUS] == ["Recurring subject: Kubernetes", "Recurring subject: Monday"][:1]


async def test_the_embedded_summariser_is_deterministic() -> None:
    summaries = [await summary(f"s{n}", c.messages, n) for n, c in enumerate(CONVERSATIONS)]
    first, second = [await profile(*summaries) for _ in range(2)]
    assert first == second


def test_a_long_history_is_split_and_keeps_its_first_and_newest_parts() -> None:
    history = [{"role": "user", "content": f"message {n} " + "x" * 400} for n in range(200)]
    limits = TranscriptLimits(part_tokens=1000, parts=4)
    parts = make_transcripts(SessionId("s1"), 200, history, limits)
    assert len(parts) == 4
    assert all(part.tokens <= 1000 for part in parts)
    assert parts[0].entries[0].number == 1
    assert parts[-1].entries[-1].number == 200
    assert sum(len(part.entries) for part in parts) + parts[0].omitted == 200


def test_a_transcript_stops_at_its_revision_and_skips_summaries_and_media() -> None:
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "[Conversation summary]: I prefer tea"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image", "data": "AAAA"}]},
        {"role": "toolResult", "toolCallId": "c", "content": [{"type": "text", "text": "r" * 1000}]},
        {"role": "user", "content": "after"},
    ]
    (part,) = make_transcripts(SessionId("s1"), 3, history)
    assert [(e.number, e.role, len(e.text)) for e in part.entries] == [(2, "user", 5), (3, "tool", 400)]
