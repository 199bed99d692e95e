"""The contract of a session store: messages, turns, compaction, and listing a user's sessions.

Seven methods are required. An unknown session has no messages; writing to it raises Absent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from memo.errors import InvalidContent
from memo.ids import AgentId, SessionId, SessionRef, TenantId, UserId, UserRef
from memo.messages import Message

Summarize = Callable[[list[Message]], Awaitable[str | None] | str | None]


@dataclass(frozen=True, slots=True)
class Session:
    """A session and its usage so far."""

    tenant: TenantId
    session: SessionId
    user: UserId
    agent: AgentId
    created_at: datetime
    updated_at: datetime
    turns: int = 0
    tokens: int = 0
    message_count: int = 0

    @property
    def ref(self) -> SessionRef:
        return SessionRef(self.tenant, self.session)

    @property
    def session_id(self) -> SessionId:
        return self.session


@dataclass(frozen=True, slots=True)
class SessionMeta:
    session: SessionId
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one turn."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def total(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write

    @classmethod
    def parse(cls, usage: Usage | Mapping[str, Any]) -> Usage:
        """Parse a Usage or a JSON object such as `{"input": 10, "output": 2, "cacheRead": 0, "cacheWrite": 0}`."""
        if isinstance(usage, Usage):
            counts = {name: getattr(usage, name) for name in _USAGE_FIELDS}
        elif isinstance(usage, Mapping):
            counts = {name: _first(usage, spellings) for name, spellings in _USAGE_FIELDS.items()}
        else:
            raise InvalidContent("cannot record this turn: its usage is not a JSON object")
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 2**53:
                raise InvalidContent(f"cannot record this turn: its {name} tokens must be a whole number of at least 0")
        return cls(**counts)


_USAGE_FIELDS: dict[str, tuple[str, ...]] = {
    "input": ("input", "input_tokens", "inputTokens"),
    "output": ("output", "output_tokens", "outputTokens"),
    "cache_read": ("cache_read", "cacheRead", "cache_read_tokens", "cacheReadTokens"),
    "cache_write": ("cache_write", "cacheWrite", "cache_write_tokens", "cacheWriteTokens"),
}


def _first(usage: Mapping[str, Any], spellings: tuple[str, ...]) -> Any:
    return next((usage[s] for s in spellings if usage.get(s) is not None), 0)


class SessionStore(Protocol):
    async def get_or_create(self, tenant: str, user: str, agent: str, session: str | None = None) -> Session:
        """Return the session, created if it is new. Raise SessionTaken if it belongs to another user."""

    async def load_messages(self, tenant: str, session: str, limit: int | None = None) -> list[Message]:
        """Return the newest `limit` visible messages, oldest first."""

    async def load_messages_with_budget(self, tenant: str, session: str, token_budget: int = 100_000) -> list[Message]:
        """Return the newest messages that fit, oldest first: at least one, and no result without its call."""

    async def load_all_messages(self, tenant: str, session: str) -> list[Message]:
        """Return every visible message, oldest first."""

    async def append_messages(self, tenant: str, session: str, messages: Sequence[Mapping[str, Any]]) -> None:
        """Append all messages, or none if any of them is invalid."""

    async def record_turn(self, tenant: str, session: str, usage: Usage | Mapping[str, Any]) -> None:
        """Add the tokens of one turn."""

    async def compact_if_needed(
        self,
        tenant: str,
        session: str,
        summarize: Summarize,
        *,
        trigger_tokens: int = 80_000,
        compact_fraction: float = 0.5,
        min_messages: int = 20,
        force: bool = False,
        workspace_snapshot: str | None = None,
    ) -> bool:
        """Archive the oldest messages and replace them with a summary, if there are enough of them.

        If the summariser fails or returns nothing, nothing changes.
        """


class TurnStore(Protocol):
    """The methods that this library's stores have in addition to the seven."""

    async def append_turn(
        self, tenant: str, session: str, messages: Sequence[Mapping[str, Any]], usage: Usage | Mapping[str, Any]
    ) -> None:
        """`append_messages` and `record_turn` in one transaction."""

    async def load_full_history(self, tenant: str, session: str) -> list[Message]:
        """Return every message ever appended, archives expanded in place, oldest first."""

    async def get_session(self, tenant: str, session: str) -> Session | None:
        """Return the session, or None if it does not exist."""


class UserSessionLister(Protocol):
    async def list_sessions_by_user(self, tenant: str, user: str) -> list[SessionMeta]:
        """Return all sessions of the user, most recently changed first."""

    async def list_users(self) -> list[UserRef]:
        """Return every user that has a session."""
