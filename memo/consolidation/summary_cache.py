"""SummaryCache: summaries of sessions, each made once per revision of its session and stored as a record.

An entry may be deleted at any time. An entry from another revision or another summariser is invalid. Facts pass the
content filter before they are kept, so rejected text is never fed back to a summariser.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memo.consolidation.budget import Budget
from memo.consolidation.content_filter import Rejection, screen
from memo.consolidation.profile import Part, plain
from memo.consolidation.summarisers.summariser import Fact, SessionDraft, SessionSummary, Summariser
from memo.consolidation.transcript import TranscriptLimits, make_transcripts
from memo.ids import SessionId, UserRef
from memo.ledger import SessionRevision
from memo.records import Put, RecordScope, RecordStore
from memo.sessions import TurnStore

KIND = "session-summary"
MAX_FACTS = 100


class SummaryCache:
    """The summaries of one user's sessions. With `keep=False` nothing is written."""

    def __init__(
        self,
        store: Any,
        summariser: Summariser,
        user: UserRef,
        *,
        limits: TranscriptLimits | None = None,
        keep: bool = True,
    ) -> None:
        self._turns: TurnStore = store
        self._records: RecordStore = store
        self._summariser = summariser
        self._user = user
        self._scope = RecordScope.of(user.tenant, KIND, f"user:{user.user}")
        self._limits = limits
        self._keep = keep

    async def read_valid(self, sessions: Iterable[SessionRevision]) -> dict[SessionId, SessionSummary]:
        """Return the valid summaries of these sessions, in one query."""
        wanted = {session.session: session for session in sessions}
        found: dict[SessionId, SessionSummary] = {}
        for record in await self._records.list_records(self._scope):
            session = wanted.get(SessionId(record.id))
            if session is not None and self._is_valid(record.value, session.revision):
                found[session.session] = _decode(session, record.value)
        return found

    def _is_valid(self, value: dict[str, Any], revision: int) -> bool:
        return value.get("revision") == revision and value.get("summariser") == self._summariser.name

    async def summarise(self, session: SessionRevision, budget: Budget) -> SessionSummary:
        """Summarise the full history of the session, archives included, and keep the result."""
        history = await self._turns.load_full_history(self._user.tenant, session.session)
        drafts = [
            await self._summariser.summarise(transcript, budget)
            for transcript in make_transcripts(session.session, session.revision, history, self._limits)
        ]
        summary = _summary_of(session, drafts)
        if self._keep:
            value = _encode(summary) | {"summariser": self._summariser.name}
            await self._records.apply_records([Put(self._scope.key(session.session), value)])
        return summary


def _summary_of(session: SessionRevision, drafts: list[SessionDraft]) -> SessionSummary:
    facts: dict[tuple[Part, str], Fact] = {}
    subjects: dict[str, list[int]] = {}
    for draft in drafts:
        for fact in draft.facts:
            text = screen(fact.text)
            messages = {number for number in fact.messages if 1 <= number <= session.revision}
            if isinstance(text, Rejection) or not messages:
                continue
            key = (fact.part, plain(text))
            messages.update(facts[key].messages if key in facts else ())
            facts[key] = Fact(fact.part, text, tuple(sorted(messages)), fact.slot)
        for subject, numbers in draft.subjects:
            subjects.setdefault(subject, []).extend(numbers)
    kept = tuple(facts.values())[:MAX_FACTS]
    named = tuple((subject, tuple(numbers)) for subject, numbers in subjects.items())
    return SessionSummary(session.session, session.revision, session.updated_at, kept, named)


def _encode(summary: SessionSummary) -> dict[str, Any]:
    return {
        "version": 1,
        "revision": summary.revision,
        "facts": [[f.part.name, f.text, list(f.messages), f.slot] for f in summary.facts],
        "subjects": [[subject, list(numbers)] for subject, numbers in summary.subjects],
    }


def _decode(session: SessionRevision, value: dict[str, Any]) -> SessionSummary:
    facts = tuple(Fact(Part[part], text, tuple(messages), slot) for part, text, messages, slot in value["facts"])
    subjects = tuple((subject, tuple(numbers)) for subject, numbers in value["subjects"])
    return SessionSummary(session.session, session.revision, session.updated_at, facts, subjects)
