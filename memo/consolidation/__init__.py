"""Consolidation: what happened in a user's sessions becomes the user's profile, USER.md.

    async with memo.open_store("sqlite:///memo.db") as store:
        service = UserMemoryConsolidationService(store)
        await service.consolidate("acme", "ann")

Pure: policy, page, profile, merging, wording, screening. It meets the store in `run`, and only there writes.
"""

from memo.consolidation.budget import Budget, BudgetSpent
from memo.consolidation.ledger import ConsolidationLedger, PendingUser, SessionRevision, Settlement
from memo.consolidation.policy import Activity, Policy, Verdict, Why, decide
from memo.consolidation.profile import Bullet, Part, ProfileDraft, ProfileRefused, Source
from memo.consolidation.results import Outcome, Progress, RunResult, UserState
from memo.consolidation.service import UserMemoryConsolidationService, UserMirrors
from memo.consolidation.settings import ConsolidationSettings
from memo.consolidation.standing import Backoff, Failure, Standing
from memo.consolidation.summarisers import EmbeddedSummariser, Summariser, SummariserSettings, make_summariser

__all__ = [
    "Activity",
    "Backoff",
    "Budget",
    "BudgetSpent",
    "Bullet",
    "ConsolidationLedger",
    "ConsolidationSettings",
    "EmbeddedSummariser",
    "Failure",
    "Outcome",
    "Part",
    "PendingUser",
    "Policy",
    "ProfileDraft",
    "ProfileRefused",
    "Progress",
    "RunResult",
    "SessionRevision",
    "Settlement",
    "Source",
    "Standing",
    "Summariser",
    "SummariserSettings",
    "UserMemoryConsolidationService",
    "UserMirrors",
    "UserState",
    "Verdict",
    "Why",
    "decide",
    "make_summariser",
]
