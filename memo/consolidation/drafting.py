"""From sessions to a screened draft: which sessions need a summary, which fail, and what the profile is made of.

Reads the store, keeps summaries, spends the budget. It never writes USER.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from memo.consolidation.budget import Budget, BudgetSpent
from memo.consolidation.ledger import SessionRevision
from memo.consolidation.page import parse
from memo.consolidation.profile import Bullet, ProfileDraft, ProfileMemory, ProfileRefused
from memo.consolidation.results import Progress
from memo.consolidation.screening import Refusal, screen, screen_summary
from memo.consolidation.settings import ConsolidationSettings
from memo.consolidation.standing import Failure, Standing
from memo.consolidation.summaries import Summaries
from memo.consolidation.summarisers.protocol import (
    ProfileRequest,
    SessionSummary,
    Summariser,
    SummariserError,
    SummariserUnavailable,
)
from memo.errors import MemoError, Timeout, Unavailable
from memo.ids import SessionId, UserRef


@dataclass(slots=True)
class Material:
    """What a profile is made of. `failures` are of the sessions that could not be summarised."""

    summaries: list[SessionSummary] = field(default_factory=list)
    failures: dict[SessionId, Failure] = field(default_factory=dict)
    new_failures: list[tuple[SessionId, str]] = field(default_factory=list)
    is_unfinished: bool = False

    @property
    def has_facts(self) -> bool:
        return any(summary.facts or summary.subjects for summary in self.summaries)


@dataclass(frozen=True, slots=True)
class Drafting:
    user: UserRef
    summaries: Summaries
    summariser: Summariser
    settings: ConsolidationSettings
    budget: Budget
    clock: Callable[[], datetime]
    observe: Callable[[Progress], None]

    async def gather(self, sessions: list[SessionRevision], standing: Standing, *, is_forced: bool) -> Material:
        """Summarise what has no valid summary, newest first. One that fails is left out and stops nobody."""
        cached = await self.summaries.cached(sessions)
        resting = set() if is_forced else set(standing.resting(self.clock()))
        missing = [s for s in sessions if s.session not in cached and s.session not in resting]
        material = Material(failures={s: f for s, f in standing.sessions.items() if s in resting})
        in_a_row = 0
        for number, session in enumerate(missing, start=1):
            try:
                cached[session.session] = await self.summaries.make(session, self.budget)
            except BudgetSpent:
                if number == 1 and not cached:
                    raise
                material.is_unfinished = True
                break
            except (SummariserUnavailable, Unavailable, Timeout):
                raise  # nobody would be served now
            except Exception as error:  # whatever a summariser does with this session, the others go on
                in_a_row += 1
                self._note(material, session, standing.sessions, error)
                if in_a_row >= self.settings.failures_in_a_row or (number == len(missing) and not cached):
                    raise  # it is not this session: nothing can be summarised
            else:
                in_a_row = 0
                self.observe(Progress("summarised", self.user, session.session, number, len(missing)))
        material.summaries = [cached[s.session] for s in sessions if s.session in cached]
        return material

    def _note(
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
        """Return a draft whose every bullet is screened and has a real source. ProfileRefused if nothing is left."""
        ours = {written.line for written in memory.written}
        own = parse(page)
        request = ProfileRequest(
            tuple(material.summaries),
            tuple(tombstone.text for tombstone in memory.tombstones),
            tuple(text for index, text in own.bullets() if own.lines[index].rstrip() not in ours),
        )
        proposed = await self.summariser.draft_profile(request, self.budget)
        bullets = _screened(proposed, material.summaries)
        if not bullets and material.has_facts and any(summary.facts for summary in material.summaries):
            raise ProfileRefused("cannot take this profile: it is empty, or nothing in it may stand")
        return ProfileDraft(screen_summary(proposed.summary), (*bullets, *_retained(memory, material.summaries)))


def _screened(draft: ProfileDraft, summaries: list[SessionSummary]) -> tuple[Bullet, ...]:
    revisions = {summary.session: summary.revision for summary in summaries}
    bullets: list[Bullet] = []
    for bullet in draft.bullets:
        text = screen(bullet.text)
        sources = tuple(s for s in bullet.sources if 1 <= s.message <= revisions.get(s.session, 0))
        if not isinstance(text, Refusal) and sources:
            bullets.append(Bullet(bullet.part, text, sources))
    return tuple(bullets)


def _retained(memory: ProfileMemory, summaries: list[SessionSummary]) -> tuple[Bullet, ...]:
    """Return what came only from sessions that were not looked at this time: nobody said that it no longer holds."""
    looked_at = {summary.session for summary in summaries}
    bullets = (written.bullet for written in memory.written)
    return tuple(b for b in bullets if not any(source.session in looked_at for source in b.sources))


def code_of(error: BaseException) -> str:
    """Return the stable code of an error of ours; of a foreign one nothing."""
    if isinstance(error, TimeoutError):
        return Timeout.code
    return error.code if isinstance(error, MemoError) else ""


def reason_of(error: BaseException) -> str:
    """Return why something failed. The text of a foreign error may hold what the user said: only its type is kept."""
    return str(error) if isinstance(error, MemoError) else f"cannot go on: {type(error).__name__}"
