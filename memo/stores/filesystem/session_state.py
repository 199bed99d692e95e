"""SessionRecord and SessionState: a session and its totals, as values, and how a line of session.jsonl holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memo.ids import AgentId, SessionRef, UserId
from memo.sessions import Session
from memo.stores.timestamps import from_micros


@dataclass(frozen=True, slots=True)
class SessionState:
    """Totals. Visible messages are numbered from `first`; if `archive` is not 0, the first is its summary."""

    updated_at: int
    turns: int = 0
    tokens: int = 0
    count: int = 0
    message_tokens: int = 0
    bytes: int = 0
    first: int = 1
    archive: int = 0


@dataclass(frozen=True, slots=True)
class SessionRecord:
    ref: SessionRef
    user: UserId
    agent: AgentId
    created_at: int
    state: SessionState

    def session(self) -> Session:
        return Session(
            self.ref.tenant,
            self.ref.session,
            self.user,
            self.agent,
            from_micros(self.created_at),
            from_micros(self.state.updated_at),
            self.state.turns,
            self.state.tokens,
            self.state.count,
        )


def head_of(line: Mapping[str, Any], ref: SessionRef) -> SessionRecord:
    """Return the session of a first line, without its totals. Raise KeyError, TypeError or InvalidKey if it is none."""
    if line.get("type") == "init":  # written by another program, in milliseconds
        created_at = int(line["createdAt"]) * 1000
        user, agent = UserId(str(line["userId"])), AgentId(str(line.get("agentId") or "default"))
    else:
        created_at, user, agent = int(line["created_at"]), UserId(line["user"]), AgentId(line["agent"])
    return SessionRecord(ref, user, agent, created_at, SessionState(updated_at=created_at))


def state_of(line: Mapping[str, Any]) -> SessionState:
    return SessionState(**line["state"])
