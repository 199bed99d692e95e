"""The JSON of the questions to a model or command summariser and of its answers: schema, and conversion to values.

Answers are strict in form and untrusted in content: a source must be a message that was in the question. The text
passes the content filter later, like that of every summariser.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memo.consolidation.profile import Bullet, Part, ProfileDraft, Source
from memo.consolidation.summarisers.summariser import BadAnswer, Fact, ProfileRequest, SessionDraft
from memo.consolidation.transcript import Transcript

MAX_ANSWER_BYTES = 1024 * 1024
SectionName = Literal["current_profile", "preferences", "focus_areas", "role_and_context", "avoid"]
_PARTS: dict[str, Part] = {
    "current_profile": Part.CURRENT,
    "preferences": Part.PREFERENCES,
    "focus_areas": Part.FOCUS,
    "role_and_context": Part.ROLE,
    "avoid": Part.AVOID,
}
_NAMES = {part: name for name, part in _PARTS.items()}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class FactAnswer(_Strict):
    section: SectionName
    text: str = Field(min_length=1, max_length=2000)
    messages: list[int] = Field(min_length=1, max_length=200)


class SessionAnswer(_Strict):
    facts: list[FactAnswer] = Field(max_length=200)


class SourceAnswer(_Strict):
    session: str = Field(max_length=128)
    message: int


class BulletAnswer(_Strict):
    section: SectionName
    text: str = Field(min_length=1, max_length=2000)
    sources: list[SourceAnswer] = Field(min_length=1, max_length=200)


class ProfileAnswer(_Strict):
    summary: str = Field(max_length=2000)
    bullets: list[BulletAnswer] = Field(max_length=200)


class ConversationAnswer(_Strict):
    summary: str = Field(min_length=1, max_length=100_000)


A = TypeVar("A", bound=_Strict)


def session_question(transcript: Transcript) -> dict[str, Any]:
    return {
        "session": transcript.session,
        "messages": [{"number": e.number, "role": e.role, "text": e.text} for e in transcript.entries],
    }


def conversation_question(transcript: Transcript) -> dict[str, Any]:
    return {"messages": [{"role": entry.role, "text": entry.text} for entry in transcript.entries]}


def profile_question(request: ProfileRequest) -> dict[str, Any]:
    return {
        "sessions": [
            {
                "session": summary.session,
                "updated_at": summary.updated_at.isoformat(),
                "facts": [
                    {"section": _NAMES[fact.part], "text": fact.text, "messages": list(fact.messages)}
                    for fact in summary.facts
                ],
            }
            for summary in request.summaries
        ],
        "rejected": list(request.rejected),
        "own": list(request.own),
    }


def schema_of(answer: type[A]) -> dict[str, Any]:
    """Return the JSON schema without references and without keywords that strict endpoints reject."""
    schema = answer.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolved(node: Any) -> Any:
        if isinstance(node, list):
            return [resolved(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return resolved(definitions[node["$ref"].rpartition("/")[2]])
        rejected = ("title", "minLength", "maxLength", "minItems", "maxItems")
        return {key: resolved(value) for key, value in node.items() if key not in rejected or key == "properties"}

    found: dict[str, Any] = resolved(schema)
    return found


def parse_answer(answer: type[A], text: str) -> A:
    """Parse an answer, or raise BadAnswer, which describes the problems of its form and quotes none of its content."""
    if len(text) > MAX_ANSWER_BYTES:
        raise BadAnswer(f"cannot use the answer: it is longer than {MAX_ANSWER_BYTES} bytes")
    try:
        value = json.loads(_unfenced(text))
    except (ValueError, RecursionError):
        raise BadAnswer("cannot use the answer: it is not valid JSON") from None
    try:
        return answer.model_validate(value)
    except ValidationError as error:
        places = [f"{'.'.join(map(str, e['loc'])) or 'answer'}: {e['type']}" for e in error.errors()[:5]]
        raise BadAnswer(f"cannot use the answer: {'; '.join(places)}") from None


def _unfenced(text: str) -> str:
    """Remove the code fence that models often put around JSON."""
    stripped = text.strip()
    if stripped.startswith("```") and stripped.endswith("```"):
        return stripped.removesuffix("```").partition("\n")[2]
    return stripped


def session_draft(answer: SessionAnswer, transcript: Transcript) -> SessionDraft:
    facts = []
    for fact in answer.facts:
        known = tuple(sorted({number for number in fact.messages if transcript.has(number)}))
        if known:
            facts.append(Fact(_PARTS[fact.section], fact.text, known))
    return SessionDraft(tuple(facts))


def profile_draft(answer: ProfileAnswer, request: ProfileRequest) -> ProfileDraft:
    known = {
        (str(summary.session), number): Source(summary.session, number)
        for summary in request.summaries
        for fact in summary.facts
        for number in fact.messages
    }
    bullets = []
    for bullet in answer.bullets:
        cited = ((source.session, source.message) for source in bullet.sources)
        sources = tuple(dict.fromkeys(known[pair] for pair in cited if pair in known))
        if sources:
            bullets.append(Bullet(_PARTS[bullet.section], bullet.text, sources))
    return ProfileDraft(answer.summary, tuple(bullets))
