"""ProfileDrafter: from sessions to a filtered draft of a profile.

It reads the store, caches summaries and spends the budget. It never writes USER.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from memo.consolidation.budget import Budget, BudgetSpent
from memo.consolidation.content_filter import Rejection, screen, screen_summary
from memo.consolidation.page import parse_page
from memo.consolidation.policy import Failure, Standing
from memo.consolidation.profile import Bullet, Correction, ProfileDraft, ProfileMemory, ProfileRefused
from memo.consolidation.results import Progress, reason_of
from memo.consolidation.settings import ConsolidationSettings
from memo.consolidation.summarisers.summariser import (
    ProfileRequest,
    SessionSummary,
    Summariser,
    SummariserError,
    SummariserUnavailable,
)
from memo.consolidation.summary_cache import SummaryCache
from memo.errors import Timeout, Unavailable
from memo.ids import SessionId, UserRef
from memo.ledger import SessionRevision


@dataclass(slots=True)
class Material:
    """The input of a profile, and the sessions that could not be summarised: all of them, and those new in this run."""

    summaries: list[SessionSummary] = field(default_factory=list)
    failures: dict[SessionId, Failure] = field(default_factory=dict)
    new_failures: list[tuple[SessionId, str]] = field(default_factory=list)
    is_unfinished: bool = False

    @property
    def has_facts(self) -> bool:
        return any(summary.facts or summary.subjects for summary in self.summaries)


@dataclass(frozen=True, slots=True)
class ProfileDrafter:
    user: UserRef
    summaries: SummaryCache
    summariser: Summariser
    settings: ConsolidationSettings
    budget: Budget
    clock: Callable[[], datetime]
    observe: Callable[[Progress], None]

    async def gather(self, sessions: list[SessionRevision], standing: Standing, *, is_forced: bool) -> Material:
        """Summarise the sessions without a valid summary, newest first, and skip those that fail."""
        valid = await self.summaries.read_valid(sessions)
        resting = set() if is_forced else set(standing.resting(self.clock()))
        missing = [s for s in sessions if s.session not in valid and s.session not in resting]
        material = Material(failures={s: f for s, f in standing.sessions.items() if s in resting})
        in_a_row = 0
        for number, session in enumerate(missing, start=1):
            try:
                valid[session.session] = await self.summaries.summarise(session, self.budget)
            except BudgetSpent:
                if number == 1 and not valid:
                    raise
                material.is_unfinished = True
                break
            except (SummariserUnavailable, Unavailable, Timeout):
                raise  # every later session would fail too
            except Exception as error:  # a summariser may raise anything for one session; the others continue
                in_a_row += 1
                self._note_failure(material, session, standing.sessions, error)
                if in_a_row >= self.settings.failures_in_a_row or (number == len(missing) and not valid):
                    raise  # the summariser is at fault, not this session
            else:
                in_a_row = 0
                self.observe(Progress("summarised", self.user, session.session, number, len(missing)))
        material.summaries = [valid[s.session] for s in sessions if s.session in valid]
        return material

    def _note_failure(
        self, material: Material, session: SessionRevision, before: Mapping[SessionId, Failure], error: Exception
    ) -> None:
        reason = reason_of(error)
        retry_after_s = error.retry_after_s if isinstance(error, SummariserError) else None
        material.failures[session.session] = Failure.after(
            before.get(session.session), reason, self.clock(), self.settings.policy.backoff, retry_after_s
        )
        material.new_failures.append((session.session, reason))
        self.observe(Progress("session_failed", self.user, session.session))

    async def draft(self, material: Material, memory: ProfileMemory, page: str) -> ProfileDraft:
        """Return a draft of filtered bullets, each with an existing source. Raise ProfileRefused if none are left."""
        generated = {written.line for written in memory.written} | set(memory.history)
        current = parse_page(page)
        request = ProfileRequest(
            tuple(material.summaries),
            tuple(tombstone.text for tombstone in memory.tombstones),
            tuple(text for index, text in current.bullets() if current.lines[index].rstrip() not in generated),
        )
        proposed = await self.summariser.draft_profile(request, self.budget)
        bullets = _filtered(proposed, material.summaries)
        if not bullets and material.has_facts and any(summary.facts for summary in material.summaries):
            raise ProfileRefused("cannot use this profile: it is empty, or the content filter rejected all of it")
        kept = (*bullets, *_retained(memory, material.summaries))
        return ProfileDraft(screen_summary(proposed.summary), kept, _screened(proposed.replaced))


def _filtered(draft: ProfileDraft, summaries: list[SessionSummary]) -> tuple[Bullet, ...]:
    revisions = {summary.session: summary.revision for summary in summaries}
    bullets: list[Bullet] = []
    for bullet in draft.bullets:
        text = screen(bullet.text)
        sources = tuple(s for s in bullet.sources if 1 <= s.message <= revisions.get(s.session, 0))
        if not isinstance(text, Rejection) and sources:
            bullets.append(Bullet(bullet.part, text, sources))
    return tuple(bullets)


def _screened(replaced: Iterable[Correction]) -> tuple[Correction, ...]:
    return tuple(r for r in replaced if isinstance(screen(r.older), str) and isinstance(screen(r.newer), str))


def _retained(memory: ProfileMemory, summaries: list[SessionSummary]) -> tuple[Bullet, ...]:
    """Return the bullets that remain valid: all their sources are in sessions that this run did not read."""
    read = {summary.session for summary in summaries}
    bullets = (written.bullet for written in memory.written)
    return tuple(b for b in bullets if not any(source.session in read for source in b.sources))
