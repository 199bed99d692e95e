"""Summarising with a language model: ask, validate, let it repair its answer once. Knows no wire format.

A model behind some endpoint implements `complete`; what is asked and what counts as an answer is the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from memo.consolidation.budget import Budget
from memo.consolidation.profile import ProfileDraft
from memo.consolidation.summarisers import answers, questions
from memo.consolidation.summarisers.protocol import BadAnswer, ProfileRequest, SessionDraft
from memo.consolidation.transcripts import Transcript
from memo.tokens import estimate_tokens

A = TypeVar("A", bound=answers.SessionAnswer | answers.ProfileAnswer)
TRIES = 2
MOST_REPEATED_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class Turn:
    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class Completion:
    """`tokens` are those of question and answer, None if the endpoint did not say."""

    text: str
    tokens: int | None


class ModelSummariser(ABC):
    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    async def complete(self, turns: Sequence[Turn], schema: dict[str, Any]) -> Completion:
        """Ask the model. Raise SummariserError."""

    @abstractmethod
    async def aclose(self) -> None: ...

    async def summarise(self, transcript: Transcript, budget: Budget) -> SessionDraft:
        material = questions.session_material(transcript)
        answer = await self._ask(questions.SESSION_TASK, material, answers.SessionAnswer, budget)
        return answers.session_draft(answer, transcript)

    async def draft_profile(self, request: ProfileRequest, budget: Budget) -> ProfileDraft:
        material = questions.profile_material(request)
        answer = await self._ask(questions.PROFILE_TASK, material, answers.ProfileAnswer, budget)
        return answers.profile_draft(answer, request)

    async def _ask(self, task: str, material: dict[str, Any], kind: type[A], budget: Budget) -> A:
        schema = answers.schema_of(kind)
        turns = [Turn("user", questions.prompt_for(task, material, schema))]
        problem: BadAnswer | None = None
        for _ in range(TRIES):
            estimate = sum(estimate_tokens(turn.text) for turn in turns)
            budget.begin_call(estimate)
            completion = await self.complete(turns, schema)
            spent = completion.tokens
            budget.end_call(estimate + estimate_tokens(completion.text) if spent is None else spent)
            try:
                return answers.parse_answer(kind, completion.text)
            except BadAnswer as error:
                problem = error
                said = completion.text[:MOST_REPEATED_CHARS] or "(nothing)"
                turns += [Turn("assistant", said), Turn("user", _repair(error))]
        raise problem or BadAnswer("cannot use the answer")


def _repair(error: BadAnswer) -> str:
    return f"That was not a valid answer ({error}). Answer again with one JSON object of the schema, and nothing else."
