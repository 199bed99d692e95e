"""Summarisers turn conversations into facts, and facts into a profile. The embedded one is the default."""

from memo.consolidation.summarisers.conversation import conversation_summary
from memo.consolidation.summarisers.embedded_summariser import EmbeddedSummariser
from memo.consolidation.summarisers.settings import SummariserSettings, make_summariser
from memo.consolidation.summarisers.summariser import (
    BadAnswer,
    Fact,
    ProfileRequest,
    SessionDraft,
    SessionSummary,
    Summariser,
    SummariserError,
    SummariserUnavailable,
)

__all__ = [
    "BadAnswer",
    "EmbeddedSummariser",
    "Fact",
    "ProfileRequest",
    "SessionDraft",
    "SessionSummary",
    "Summariser",
    "SummariserError",
    "SummariserSettings",
    "SummariserUnavailable",
    "conversation_summary",
    "make_summariser",
]
