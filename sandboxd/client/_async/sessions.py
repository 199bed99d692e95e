"""Session calls: the records and messages of sessions in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sandboxd.client._async.calls import AsyncCalls
from sandboxd.client.request import STORE_S, given, json_request, with_query
from sandboxd.models.message import Appended, Compaction, MessageList, ShortenedMessages
from sandboxd.models.session import Session, SessionList

Messages = Sequence[Mapping[str, Any]]


class AsyncSessionCalls(AsyncCalls):
    async def ensure_session(
        self,
        session: str,
        user: str = "default",
        *,
        agent: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Session:
        """Create a session without a sandbox, or return the existing one."""
        target, content = self._session_path(session, tenant), given(user=user, agent=agent)
        return await self._ask(Session, json_request("PUT", target, content, key=idempotency_key, is_idempotent=True))

    async def get_session(self, session: str, *, tenant: str | None = None) -> Session:
        return await self._ask(Session, json_request("GET", self._session_path(session, tenant)))

    async def list_sessions(self, user: str | None = None, *, tenant: str | None = None) -> list[Session]:
        target = with_query(f"{self._tenant_path(tenant)}/sessions", user=user)
        return (await self._ask(SessionList, json_request("GET", target))).items

    async def append_messages(
        self,
        session: str,
        messages: Messages,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Append all messages or none; return how many."""
        target = f"{self._session_path(session, tenant)}/messages"
        request = json_request("POST", target, {"messages": _plain(messages)}, key=idempotency_key)
        return (await self._ask(Appended, request)).appended

    async def load_messages(
        self,
        session: str,
        *,
        limit: int | None = None,
        budget: int | None = None,
        full: bool = False,
        tenant: str | None = None,
    ) -> list[dict[str, Any]]:
        """Return messages, oldest first: the newest `limit`, those within a token budget, or with `full` all."""
        path = f"{self._session_path(session, tenant)}/messages"
        target = with_query(path, limit=limit, budget=budget, full="true" if full else None)
        return (await self._ask(MessageList, json_request("GET", target))).items

    async def append_turn(
        self,
        session: str,
        messages: Messages,
        usage: Mapping[str, int] | None = None,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        target = f"{self._session_path(session, tenant)}/turns"
        content = {"messages": _plain(messages), "usage": dict(usage or {})}
        return (await self._ask(Appended, json_request("POST", target, content, key=idempotency_key))).appended

    async def compact_session(
        self,
        session: str,
        *,
        force: bool = False,
        trigger_tokens: int | None = None,
        compact_fraction: float | None = None,
        min_messages: int | None = None,
        workspace_snapshot: str | None = None,
        summary: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Compaction:
        """Replace the oldest messages with a summary, if due. Without `summary`, an outline is generated."""
        content = given(
            force=force or None,
            trigger_tokens=trigger_tokens,
            compact_fraction=compact_fraction,
            min_messages=min_messages,
            workspace_snapshot=workspace_snapshot,
            summary=summary,
        )
        target = f"{self._session_path(session, tenant)}/compaction"
        return await self._ask(
            Compaction, json_request("POST", target, content, key=idempotency_key, timeout_s=STORE_S)
        )

    async def compact_tool_results(
        self,
        session: str,
        messages: Messages,
        *,
        max_tokens: int | None = None,
        keep_recent: int | None = None,
        recent_max_tokens: int | None = None,
        tenant: str | None = None,
    ) -> ShortenedMessages:
        """Store long tool results as artifacts, and return the messages with stubs in their place."""
        content = given(
            messages=_plain(messages),
            max_tokens=max_tokens,
            keep_recent=keep_recent,
            recent_max_tokens=recent_max_tokens,
        )
        target = f"{self._session_path(session, tenant)}/tool-results"
        return await self._ask(ShortenedMessages, json_request("POST", target, content, timeout_s=STORE_S))


def _plain(messages: Messages) -> list[dict[str, Any]]:
    return [dict(message) for message in messages]
