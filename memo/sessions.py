"""The contract of a session store: messages, turns, compaction, and listing a user's sessions.

Seven methods are required. An unknown session has no messages; writing to it raises Absent. A store of another program
may answer with plain objects such as `{"sessionId": …}` and take the options of a compaction as one object: `parse`
and `compact_session` understand both forms.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, Self

from memo.compaction import CompactionOptions
from memo.errors import InvalidContent, Unavailable
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

    @classmethod
    def parse(cls, answer: object, tenant: str = "", user: str = "", agent: str = "") -> Session:
        """Parse what a store returned for a session; a Session is returned unchanged.

        What the answer lacks is taken from the arguments, with 0 for a count and now for a time.
        """
        if isinstance(answer, Session):
            return answer
        created, updated = _field(answer, "created_at", "createdAt"), _field(answer, "updated_at", "updatedAt")
        now = datetime.now(UTC)
        return cls(
            TenantId(_field(answer, "tenant", "tenantId", "tenant_id") or tenant),
            session_id_of(answer),
            UserId(_field(answer, "user", "userId", "user_id") or user),
            AgentId(_field(answer, "agent", "agentId", "agent_id") or agent or "default"),
            moment_of(created if created is not None else updated if updated is not None else now),
            moment_of(updated if updated is not None else created if created is not None else now),
            int(_field(answer, "turns") or 0),
            int(_field(answer, "tokens") or 0),
            int(_field(answer, "message_count", "messageCount") or 0),
        )


@dataclass(frozen=True, slots=True)
class SessionMeta:
    session: SessionId
    updated_at: datetime

    @classmethod
    def parse(cls, answer: object) -> Self:
        """Parse one line of a list of sessions: a SessionMeta, or an object such as `{sessionId, updatedAt}`."""
        return cls(session_id_of(answer), moment_of(_field(answer, "updated_at", "updatedAt")))


def session_id_of(answer: object) -> SessionId:
    """Return the id in what `get_or_create` returned, whatever the shape: an object, a mapping, or the id itself."""
    found = answer if isinstance(answer, str) else _field(answer, "session", "sessionId", "session_id")
    if found is None:
        raise Unavailable("cannot use the store's answer: it does not name a session")
    return SessionId(found)


def moment_of(value: object) -> datetime:
    """Parse a time: a datetime, RFC 3339, or seconds or milliseconds since 1970. Without a zone it is UTC."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = datetime.fromtimestamp(value / 1000 if abs(value) >= _MILLISECONDS else value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    if not isinstance(value, datetime):
        raise Unavailable("cannot use the store's answer: it has a time that cannot be read")
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


_MILLISECONDS = 10**11
"""A larger number counts milliseconds: in seconds it would be after the year 5000."""


def _field(value: object, *names: str) -> Any:
    """Return the first of these fields that a mapping or an object has, or None."""
    found = (value.get(name) if isinstance(value, Mapping) else getattr(value, name, None) for name in names)
    return next((field for field in found if field is not None), None)


@dataclass(frozen=True, slots=True)
class DamagedSession:
    """A session that cannot be read, and why: with its file and line."""

    tenant: TenantId
    session: SessionId
    error: str


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
        options: CompactionOptions | Mapping[str, Any] | None = None,
    ) -> bool:
        """Archive the oldest messages and replace them with a summary, if there are enough of them.

        If the summariser fails or returns nothing, nothing changes. The library's own stores take the options as
        keywords too; a store of another program may take them in either form.
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


class DamageLister(Protocol):
    """Optional addition to `list_sessions`, which leaves damaged sessions out."""

    async def list_damaged_sessions(self, tenant: str | None = None) -> list[DamagedSession]:
        """Return the sessions that cannot be read, of one tenant or of all."""


class UserSessionLister(Protocol):
    async def list_sessions_by_user(self, tenant: str, user: str) -> list[SessionMeta]:
        """Return all sessions of the user, most recently changed first."""

    async def list_users(self) -> list[UserRef]:
        """Return every user that has a session."""


async def compact_session(
    store: Any, tenant: str, session: str, summarize: Summarize, options: CompactionOptions | None = None
) -> bool:
    """Call a store's `compact_if_needed`, with the options in the form that the store takes."""
    form = compaction_arguments(store.compact_if_needed, options or CompactionOptions())
    return bool(await store.compact_if_needed(tenant, session, awaitable(summarize), *form.args, **form.kwargs))


def awaitable(summarize: Summarize) -> Callable[[list[Message]], Awaitable[str | None]]:
    """Return the summariser as a coroutine function: a store may await it without looking at what it returns."""

    async def summarise(messages: list[Message]) -> str | None:
        summary = summarize(messages)
        return await summary if inspect.isawaitable(summary) else summary

    return summarise


@dataclass(frozen=True, slots=True)
class CompactionArguments:
    """What a call to `compact_if_needed` needs after the summariser."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def compaction_arguments(method: Callable[..., Any], options: CompactionOptions) -> CompactionArguments:
    """Return the options as this method takes them: those keywords that it has, else as one object."""
    spelled = options.spelled()
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):  # a callable without a signature
        return CompactionArguments((spelled,), {})
    names = [parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_POSITIONAL]
    known = {name: spelled[name] for name in names if name in spelled}
    if known:
        return CompactionArguments((), known)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return CompactionArguments((), asdict(options))
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    takes_object = len(positional) > 3 or any(p.kind is p.VAR_POSITIONAL for p in positional)
    return CompactionArguments((spelled,) if takes_object else (), {})
