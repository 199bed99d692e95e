"""Consolidation: turns what happened in a user's sessions into the user's profile, USER.md.

    async with memo.open_store("sqlite:///memo.db") as store:
        service = UserMemoryConsolidationService(store)
        await service.consolidate("acme", "ann")

`policy`, `page`, `profile`, `profile_merge` and `content_filter` are pure; only `run` writes to the store.
"""

from memo.backoff import Backoff
from memo.consolidation.budget import Budget, BudgetSpent
from memo.consolidation.config import ServiceConfig
from memo.consolidation.ledgered_store import LedgeredStore, with_ledger
from memo.consolidation.policy import Activity, Failure, Policy, Standing, Verdict, Why, decide
from memo.consolidation.profile import Bullet, Correction, Part, ProfileDraft, ProfileRefused, Source
from memo.consolidation.results import Outcome, Progress, RunResult, UserState
from memo.consolidation.service import UserMemoryConsolidationService, UserMirrors
from memo.consolidation.settings import ConsolidationSettings
from memo.consolidation.summarisers import (
    EmbeddedSummariser,
    Summariser,
    SummariserSettings,
    conversation_summary,
    make_summariser,
)
from memo.ledger import ConsolidationLedger, PendingUser, SessionRevision, Settlement, SettlementWriter

__all__ = [
    "Activity",
    "Backoff",
    "Budget",
    "BudgetSpent",
    "Bullet",
    "ConsolidationLedger",
    "ConsolidationSettings",
    "Correction",
    "EmbeddedSummariser",
    "Failure",
    "LedgeredStore",
    "Outcome",
    "Part",
    "PendingUser",
    "Policy",
    "ProfileDraft",
    "ProfileRefused",
    "Progress",
    "RunResult",
    "ServiceConfig",
    "SessionRevision",
    "Settlement",
    "SettlementWriter",
    "Source",
    "Standing",
    "Summariser",
    "SummariserSettings",
    "UserMemoryConsolidationService",
    "UserMirrors",
    "UserState",
    "Verdict",
    "Why",
    "conversation_summary",
    "decide",
    "make_summariser",
    "with_ledger",
]
