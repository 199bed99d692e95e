"""The summary of a conversation that replaces its oldest messages, by any summariser.

One without a model gives an outline of what the user said.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from memo.consolidation.budget import Budget
from memo.consolidation.summarisers.summariser import Summariser
from memo.consolidation.transcript import TranscriptLimits, make_transcripts
from memo.ids import SessionId
from memo.messages import Message
from memo.outline import outline

_LIMITS = TranscriptLimits(part_tokens=48_000, parts=8)


def conversation_summary(summariser: Summariser) -> Callable[[list[Message]], Awaitable[str]]:
    """Return a function that summarises messages with the summariser, part by part: a `memo.sessions.Summarize`."""
    ask = getattr(summariser, "summarise_conversation", None)

    async def summarise(messages: list[Message]) -> str:
        if ask is None:
            return outline(messages)
        parts = make_transcripts(SessionId("conversation"), len(messages), messages, _LIMITS)
        summaries = [await ask(part, Budget()) for part in parts]
        return "\n\n".join(summary.strip() for summary in summaries)

    return summarise
