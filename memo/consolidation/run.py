"""ConsolidationRun: one run for one user. Take the lease, check again that the user is due, draft, merge, settle.

The only place that writes USER.md, always with a fencing token and compare-and-swap. A failure is never raised: it
becomes a result, and a backoff for this user alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from memo.consolidation.budget import Budget, BudgetSpent
from memo.consolidation.held_lease import HeldLease, hold_lease
from memo.consolidation.policy import Activity, Standing, Why, decide
from memo.consolidation.profile import ProfileDraft, ProfileMemory, ProfileRefused
from memo.consolidation.profile_drafter import Material, ProfileDrafter
from memo.consolidation.profile_merge import MergedProfile, merge_profile
from memo.consolidation.results import Outcome, Progress, RunResult, code_of, reason_of
from memo.consolidation.settings import ConsolidationSettings
from memo.consolidation.summarisers.summariser import Summariser, SummariserError
from memo.consolidation.summary_cache import SummaryCache
from memo.content import number_of
from memo.documents import ABSENT, USER, Author, Document, DocumentKey, sha256_of, unified_diff
from memo.errors import MemoError, RevisionConflict
from memo.ids import UserRef
from memo.leases import Held, LeaseLost
from memo.ledger import DocumentChange, LedgerEntry, Settlement, SettlementWriter

ACTOR = "consolidation"


@dataclass(frozen=True, slots=True)
class ConsolidationRun:
    """`store` holds documents, sessions, records and a ledger; `writer`, usually the store itself, commits the run."""

    store: Any
    writer: SettlementWriter
    summariser: Summariser
    user: UserRef
    settings: ConsolidationSettings
    budget: Budget
    clock: Callable[[], datetime]
    observe: Callable[[Progress], None]
    holder: str
    is_forced: bool = False
    is_dry: bool = False
    is_busy: Callable[[UserRef], bool] = lambda _: False

    @property
    def key(self) -> DocumentKey:
        return DocumentKey.of_user(self.user.tenant, self.user.user, USER)

    async def perform(self) -> RunResult:
        if self.is_dry:
            return await self._attempt(None)
        if self.is_forced and not await self.store.list_session_revisions(self.user):
            return self._result(Outcome.NOTHING, "the user has no session with messages")
        granted = await self.store.acquire_lease(self.user, self.holder, self.settings.lease_s)
        if isinstance(granted, Held):
            return self._result(Outcome.HELD, f"held by {granted.holder}", until=granted.until)
        result: RunResult | None = None
        try:
            async with hold_lease(self.store, granted, self.settings.lease_s) as held:
                result = await self._attempt(held)
        except LeaseLost as lost:
            return result or self._result(Outcome.LOST, str(lost), code=lost.code)
        return result

    async def _attempt(self, held: HeldLease | None) -> RunResult:
        standing = Standing()
        try:
            with anyio.fail_after(self.settings.run_timeout_s):
                entry: LedgerEntry = await self.store.read_ledger(self.user)
                standing = Standing.parse(entry.standing)
                why = self._why(entry, standing)
                if why is None:
                    return self._result(Outcome.NOT_DUE)
                self.observe(Progress("started", self.user))
                return await self._work(held, standing, ProfileMemory.parse(entry.memory), why)
        except LeaseLost as lost:
            return self._result(Outcome.LOST, str(lost), code=lost.code)
        except BudgetSpent as spent:
            return self._result(Outcome.POSTPONED, str(spent), code=spent.code)
        except Exception as error:  # noqa: BLE001  # it affects this user only; the reason is recorded and shown
            return await self._failed(held, standing, error)

    def _why(self, entry: LedgerEntry, standing: Standing) -> Why | None:
        """Decide again under the lease: its previous holder may have done the work."""
        if self.is_forced:
            return Why.DEMAND
        activity = Activity(entry.changed, entry.last_activity, self.is_busy(self.user))
        verdict = decide(activity, standing, self.clock(), self.settings.policy)
        return verdict.why if verdict.is_due else None

    async def _work(self, held: HeldLease | None, standing: Standing, memory: ProfileMemory, why: Why) -> RunResult:
        sessions = await self.store.list_session_revisions(self.user)
        drafter = self._drafter()
        considered = sessions[: self.settings.sessions]
        material = await drafter.gather(considered, standing, is_forced=self.is_forced)
        before = await self.store.read_document(self.key)
        draft = ProfileDraft("", ())
        if material.has_facts or memory.written:
            draft = await drafter.draft(material, memory, before.content if before else "")
        summarised = {summary.session for summary in material.summaries}
        too_old = {s.session for s in sessions[self.settings.sessions :]}
        settled = {s.session: s.revision for s in sessions if s.is_pending and s.session in summarised | too_old}
        after = replace(
            standing,
            runs=standing.runs + 1,
            last_run_at=self.clock(),
            is_unfinished=material.is_unfinished,
            failure=None,
            sessions=material.failures,
        )
        result = await self._merge_and_settle(held, after, memory, draft, settled)
        return replace(
            result,
            why=why,
            sessions=tuple(summary.session for summary in material.summaries),
            failed=tuple(material.new_failures),
            reason=_remark(material),
        )

    async def _merge_and_settle(
        self, held: HeldLease | None, standing: Standing, memory: ProfileMemory, draft: ProfileDraft, settled: Any
    ) -> RunResult:
        """Merge the draft into the current page and commit; if the page changes in the meantime, merge again."""
        for _ in range(self.settings.write_tries):
            before: Document | None = await self.store.read_document(self.key)
            page = before.content if before else ""
            merged = MergedProfile(page, memory, 0, 0, 0)
            if draft.bullets or memory.written:
                work = partial(merge_profile, page, memory, draft, self.clock(), self.settings.merge)
                merged = await anyio.to_thread.run_sync(work)  # a long page would block the event loop
            change = None
            if merged.text != page:
                expected = before.revision if before else ABSENT
                change = DocumentChange(self.key, merged.text, expected, Author(ACTOR, reason=_reason(merged)))
            outcome = Outcome.WRITTEN if change else Outcome.UNCHANGED if merged.memory.written else Outcome.NOTHING
            revision = self._revision_after(before, change)
            if held is None:
                return self._result(outcome, revision=revision, diff=self._diff(before, merged.text))
            noted = replace(
                standing, last_outcome=str(outcome), revision=revision if change is not None else standing.revision
            )
            settlement = Settlement(noted.encode(), merged.memory.encode(), settled, change)
            try:
                written = await self.writer.settle(held.lease, settlement)
            except RevisionConflict:
                continue
            diff = self._diff(before, merged.text)
            return self._result(
                outcome, revision=written.revision if written else revision, diff=diff, document=written
            )
        raise ProfileRefused(f"cannot write {USER}: it changed during each of {self.settings.write_tries} attempts")

    def _revision_after(self, before: Document | None, change: DocumentChange | None) -> int:
        """Return the revision that a change has, or would have in a dry run."""
        if change is not None and getattr(self.store, "numbers_by_content", False):
            return number_of(sha256_of(change.content.encode()))
        return (before.revision if before else 0) + (change is not None)

    async def _failed(self, held: HeldLease | None, standing: Standing, error: Exception) -> RunResult:
        is_refused = isinstance(error, ProfileRefused)
        reason = (
            f"cannot finish within {self.settings.run_timeout_s:g} s"
            if isinstance(error, TimeoutError)
            else reason_of(error)
        )
        retry_after_s = error.retry_after_s if isinstance(error, SummariserError) else None
        if held is not None:
            noted = standing.failed(reason, self.clock(), self.settings.policy.backoff, retry_after_s)
            try:
                await self.writer.settle(held.lease, Settlement(noted.encode()))
            except MemoError as settling:
                reason = f"{reason}; the failure could not be recorded: {settling}"
        outcome = Outcome.REFUSED if is_refused else Outcome.FAILED
        return self._result(outcome, reason, code=code_of(error), retry_after_s=retry_after_s)

    def _drafter(self) -> ProfileDrafter:
        limits = self.settings.transcripts
        summaries = SummaryCache(self.store, self.summariser, self.user, limits=limits, keep=not self.is_dry)
        return ProfileDrafter(
            self.user, summaries, self.summariser, self.settings, self.budget, self.clock, self.observe
        )

    def _diff(self, before: Document | None, text: str) -> str:
        if before is not None and before.content == text:
            return ""
        return unified_diff(USER, before, Document(text, (before.revision if before else 0) + 1, "")) if text else ""

    def _result(self, outcome: Outcome, reason: str = "", **fields: Any) -> RunResult:
        calls, tokens = self.budget.spent_calls, self.budget.spent_tokens
        return RunResult(self.user, outcome, reason, is_dry=self.is_dry, calls=calls, tokens=tokens, **fields)


def _reason(merged: MergedProfile) -> str:
    counts = f"{merged.added} new, {merged.changed} changed, {merged.gone} gone"
    return "; ".join((counts, *map(str, merged.replaced)))


def _remark(material: Material) -> str:
    remarks = ["stopped at its budget and continues later"] if material.is_unfinished else []
    if material.new_failures:
        remarks.append(f"{len(material.new_failures)} sessions could not be summarised")
    return "; ".join(remarks)
