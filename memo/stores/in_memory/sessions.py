"""Sessions, messages and archives in memory.

No method awaits, so each is atomic in an event loop. Messages are stored as JSON text, so that a caller cannot change
one through a value that it passed in or received.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from memo.compaction import Compaction, full_history
from memo.ids import AgentId, SessionRef, TenantId, UserId, UserRef
from memo.messages import EncodedMessage, Message, StoredMessage, decode_object, newest_within
from memo.sessions import Session, Usage
from memo.stores.options import session_taken, unknown_session


@dataclass(frozen=True, slots=True)
class _Row:
    position: int
    body: str
    tokens: int
    expands: int | None = None


@dataclass(slots=True)
class _State:
    session: Session
    visible: list[_Row] = field(default_factory=list)
    archives: dict[int, list[_Row]] = field(default_factory=dict)
    next_position: int = 1
    requests: set[str] = field(default_factory=set)


class InMemorySessions:
    def __init__(self) -> None:
        self._sessions: dict[SessionRef, _State] = {}

    def make(self, ref: SessionRef, user: UserId, agent: AgentId, now: datetime) -> Session:
        state = self._sessions.get(ref)
        if state is None:
            state = _State(Session(ref.tenant, ref.session, user, agent, now, now))
            self._sessions[ref] = state
        elif state.session.user != user:
            raise session_taken(ref)
        return state.session

    def get(self, ref: SessionRef) -> Session | None:
        state = self._sessions.get(ref)
        return None if state is None else state.session

    def revision(self, ref: SessionRef) -> int:
        """Return the number of messages ever appended to the session."""
        state = self._sessions.get(ref)
        return 0 if state is None else state.next_position - 1

    def list_all(self, tenant: TenantId | None) -> list[Session]:
        chosen = [s.session for s in self._sessions.values() if tenant in (None, s.session.tenant)]
        return sorted(chosen, key=lambda session: (session.updated_at, session.session), reverse=True)

    def list_users(self) -> list[UserRef]:
        return sorted({UserRef(s.session.tenant, s.session.user) for s in self._sessions.values()})

    def tail(self, ref: SessionRef, limit: int | None) -> list[StoredMessage]:
        rows = self._visible(ref)
        first = 0 if limit is None else max(len(rows) - limit, 0)
        return [_stored(ref, row) for row in rows[first:]]

    def within(self, ref: SessionRef, token_budget: int) -> list[StoredMessage]:
        return newest_within((_stored(ref, row) for row in reversed(self._visible(ref))), token_budget)

    def history(self, ref: SessionRef) -> list[Message]:
        archives = self._sessions[ref].archives if ref in self._sessions else {}
        expanded = {number: [_stored(ref, row) for row in rows] for number, rows in archives.items()}
        return full_history(expanded, self.tail(ref, None))

    def visible_size(self, ref: SessionRef) -> tuple[int, int]:
        rows = self._require(ref).visible
        return len(rows), sum(row.tokens for row in rows)

    def commit_turn(
        self, ref: SessionRef, messages: list[EncodedMessage], usage: Usage | None, request: str | None, now: datetime
    ) -> None:
        state = self._require(ref)
        if request is not None:
            if request in state.requests:
                return
            state.requests.add(request)
        for message in messages:
            state.visible.append(_Row(state.next_position, message.body, message.tokens))
            state.next_position += 1
        session = state.session
        state.session = replace(
            session,
            updated_at=max(now, session.updated_at),
            turns=session.turns + (usage is not None),
            tokens=session.tokens + (usage.total if usage else 0),
            message_count=len(state.visible),
        )

    def compact(self, ref: SessionRef, compaction: Compaction, summary: EncodedMessage, now: datetime) -> bool:
        state = self._require(ref)
        head = state.visible[: compaction.count]
        if len(head) < compaction.count or (head[0].position, head[-1].position) != (compaction.first, compaction.last):
            return False  # compacted by another call in the meantime
        number = len(state.archives) + 1
        state.archives[number] = head
        state.visible[: compaction.count] = [_Row(compaction.last, summary.body, summary.tokens, expands=number)]
        state.session = replace(
            state.session, updated_at=max(now, state.session.updated_at), message_count=len(state.visible)
        )
        return True

    def _visible(self, ref: SessionRef) -> list[_Row]:
        return self._sessions[ref].visible if ref in self._sessions else []

    def _require(self, ref: SessionRef) -> _State:
        state = self._sessions.get(ref)
        if state is None:
            raise unknown_session(ref)
        return state


def _stored(ref: SessionRef, row: _Row) -> StoredMessage:
    message = decode_object(row.body, f"message {row.position} of session {ref}")
    return StoredMessage(row.position, message, row.tokens, row.expands)
