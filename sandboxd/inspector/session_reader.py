"""SessionReader: sessions and what they contain, from a store of any kind. It never writes.

A store is third-party code: what it returns is checked, a part that it lacks is Unsupported, and one damaged session is
one item with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from anyio import to_thread

from memo.errors import MemoError
from memo.ids import AgentId, SessionId, SessionRef, TenantId
from memo.sessions import Session
from sandboxd.errors import StoreUnavailable
from sandboxd.memory.store_calls import PartFactory
from sandboxd.memory.store_client import StoreClient
from sandboxd.models.inspector import InspectedSession
from sandboxd.models.trace import JsonObject

_SPELLINGS = {
    "tenant": ("tenant", "tenantId", "tenant_id"),
    "session": ("session", "sessionId", "session_id"),
    "user": ("user", "userId", "user_id"),
    "agent": ("agent", "agentId", "agent_id"),
    "created_at": ("created_at", "createdAt"),
    "updated_at": ("updated_at", "updatedAt", "lastActive"),
    "turns": ("turns",),
    "tokens": ("tokens",),
    "message_count": ("message_count", "messageCount"),
}
_MOST_ERROR_CHARS = 300
_PARSED_INLINE = 200
"""A longer list of sessions is parsed in a thread."""


class SessionReader:
    def __init__(self, store: StoreClient | None) -> None:
        self._store = store

    async def list_sessions(self, tenant: TenantId | None) -> list[InspectedSession]:
        """Return every session that the store lists, in the store's order."""
        store = self._required()
        if not store.has("list_sessions"):
            return await self._list_by_user(store, tenant)
        try:
            found = await store.call("list sessions", "list_sessions", tenant)
        except (StoreUnavailable, MemoError):
            if not (store.has("list_users") and store.has("list_sessions_by_user")):
                raise
            return await self._list_by_user(store, tenant)  # one damaged session must not hide the others
        listed = _items(found, "sessions")

        def parse() -> list[InspectedSession]:
            return [item for item in map(session_item, listed) if tenant in (None, item.tenant)]

        return parse() if len(listed) <= _PARSED_INLINE else await to_thread.run_sync(parse)

    async def list_damaged(self, tenant: TenantId | None) -> list[InspectedSession]:
        """Return the sessions that the store cannot read, if it can tell them, each with its error."""
        store = self._required()
        if not store.has("list_damaged_sessions"):
            return []
        found = await store.call("list damaged sessions", "list_damaged_sessions", tenant)
        return [session_item(one) for one in _items(found, "sessions")]

    async def count_sessions(self) -> int:
        """Return how many sessions the store lists."""
        return len(_items(await self._required().call("list sessions", "list_sessions", None), "sessions"))

    async def find(self, ref: SessionRef) -> InspectedSession | None:
        """Return the session; None if the store does not have it or keeps no sessions."""
        store = self._required()
        if not store.has("get_session"):
            return None
        found = await store.call("get session", "get_session", ref.tenant, ref.session)
        return None if found is None else session_item(found, ref)

    async def messages(self, ref: SessionRef) -> list[JsonObject]:
        """Return every message of the session, archived ones included if the store can."""
        store = self._required()
        verb = "load_full_history" if store.has("load_full_history") else "load_all_messages"
        return _objects(await store.call(verb.replace("_", " "), verb, ref.tenant, ref.session), "messages")

    async def envelopes(self, ref: SessionRef) -> list[JsonObject]:
        return _objects(await self._part("session_trace_store", ref, "load_envelopes"), "trace envelopes")

    async def orchestration_events(self, ref: SessionRef) -> list[JsonObject]:
        return _objects(await self._part("orchestration_persistence", ref, "load_events"), "events")

    async def orchestration_state(self, ref: SessionRef) -> Any:
        return await self._part("orchestration_persistence", ref, "recover_state")

    async def mailbox_state(self, ref: SessionRef, agent: AgentId) -> JsonObject:
        state = await self._part("orchestration_persistence", ref, "load_mailbox_state", agent)
        return state if isinstance(state, dict) else {}

    async def _part(self, factory: PartFactory, ref: SessionRef, method: str, *args: str) -> Any:
        return await self._required().call_part(factory, ref, method, *args)

    async def _list_by_user(self, store: StoreClient, tenant: TenantId | None) -> list[InspectedSession]:
        items: list[InspectedSession] = []
        for user in _items(await store.call("list users", "list_users"), "users"):
            if tenant not in (None, user.tenant):
                continue
            found = await store.call("list sessions", "list_sessions_by_user", user.tenant, user.user)
            metas = _items(found, "sessions")
            items += [await self._try_find(str(user.tenant), str(user.user), meta) for meta in metas]
        return items

    async def _try_find(self, tenant: str, user: str, meta: Any) -> InspectedSession:
        known = session_item(meta).model_copy(update={"tenant": tenant, "user": user})
        if known.session is None or known.error is not None:
            return known
        try:
            return await self.find(SessionRef.of(tenant, known.session)) or known
        except (StoreUnavailable, MemoError) as error:
            return known.model_copy(update={"error": str(error)[:_MOST_ERROR_CHARS]})

    def _required(self) -> StoreClient:
        if self._store is None:
            raise StoreUnavailable("cannot read sessions: this daemon has no store; serve with --store")
        return self._store


def session_item(found: Any, ref: SessionRef | None = None) -> InspectedSession:
    """Return a session as a store describes it: our own type, or a mapping with the usual spellings."""
    if isinstance(found, Session) and isinstance(found.tenant, TenantId) and isinstance(found.session, SessionId):
        return _own_session(found)
    read: Callable[[str], Any] = found.get if isinstance(found, Mapping) else lambda name: getattr(found, name, None)
    values = {field: _first(read, names) for field, names in _SPELLINGS.items()}
    tenant = values["tenant"] if ref is None else ref.tenant
    session = values["session"] if ref is None else ref.session
    own_error = _first(read, ("error",))
    try:
        if own_error is None:
            SessionRef.of(tenant or "default", session)
        return InspectedSession(
            tenant=None if tenant is None else str(tenant),
            session=None if session is None else str(session),
            user=_text(values["user"]),
            agent=_text(values["agent"]),
            turns=_count(values["turns"]),
            tokens=_count(values["tokens"]),
            message_count=_count(values["message_count"]),
            created_at=moment(values["created_at"]),
            updated_at=moment(values["updated_at"]),
            error=None if own_error is None else str(own_error)[:_MOST_ERROR_CHARS],
        )
    except (MemoError, ValueError, TypeError, AttributeError):
        shown = session if isinstance(session, str) else None
        return InspectedSession(
            tenant=tenant if isinstance(tenant, str) else None,
            session=None if shown is None else shown[:128],
            error="cannot show this session: the store's record of it cannot be used",
        )


def _own_session(found: Session) -> InspectedSession:
    """Return a session of our own type. A list may have many thousands, so its ids are not parsed again."""
    return InspectedSession.model_construct(
        tenant=str(found.tenant),
        session=str(found.session),
        user=_text(found.user),
        agent=_text(found.agent),
        turns=_count(found.turns),
        tokens=_count(found.tokens),
        message_count=_count(found.message_count),
        created_at=moment(found.created_at),
        updated_at=moment(found.updated_at),
    )


def moment(value: Any) -> datetime | None:
    """Return a time given as a datetime, as RFC 3339, or as (milli)seconds since 1970; None if it is none of them."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            value = datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
        if not isinstance(value, datetime):
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _first(read: Callable[[str], Any], names: Iterable[str]) -> Any:
    return next((value for name in names if (value := read(name)) is not None), None)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)[:128]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _items(found: Any, noun: str) -> list[Any]:
    if not isinstance(found, list | tuple):
        raise StoreUnavailable(f"cannot use the store's answer: it is not a list of {noun}")
    return list(found)


def _objects(found: Any, noun: str) -> list[JsonObject]:
    items = _items(found, noun)
    if not all(isinstance(item, dict) for item in items):
        raise StoreUnavailable(f"cannot use the store's answer: it is not a list of {noun}")
    return items


def unsupported_parts(store: StoreClient) -> list[str]:
    """Return what the inspector shows and this store cannot provide."""
    needs = {
        "sessions": ("list_sessions", "list_users"),
        "messages": ("load_full_history", "load_all_messages"),
        "traces": ("session_trace_store",),
        "orchestration": ("orchestration_persistence",),
    }
    lacking = [part for part, methods in needs.items() if not any(map(store.has, methods))]
    return [*lacking, *store.capabilities.missing()]
