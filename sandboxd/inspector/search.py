"""Search over sessions, messages, documents and artifacts: literal, without regard to case, bounded in work and time.

It reads the newest sessions first and stops at its bounds; the result says whether it saw everything.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from datetime import datetime

import anyio
from anyio import to_thread

from memo.documents import ArtifactKey, DocumentKey, Scope
from memo.errors import MemoError
from memo.ids import OwnerId, SessionRef, TenantId, UserId
from memo.messages import message_text
from sandboxd.errors import StoreUnavailable
from sandboxd.inspector.session_reader import SessionReader, moment
from sandboxd.inspector.timeline import plain
from sandboxd.memory.store_client import StoreClient
from sandboxd.models.inspector import InspectedSession, SearchHit, SearchResult
from sandboxd.models.trace import JsonObject

DEADLINE_S = 5.0
MOST_CHARS = 64 * 1024 * 1024
"""How much text one search looks at."""
_AROUND = 80
_SEARCHED_INLINE = 65_536
"""A longer text is searched in a thread."""
_HITS_OF_SESSION = 20
"""The most messages of one session in a result, so that one session does not hide the others."""


@dataclass
class _Search:
    needle: re.Pattern[str]
    limit: int
    hits: list[SearchHit] = field(default_factory=list)
    chars: int = 0
    is_incomplete: bool = False

    @property
    def is_over(self) -> bool:
        if len(self.hits) >= self.limit or self.chars > MOST_CHARS:
            self.is_incomplete = True
            return True
        return False

    def add(self, hit: SearchHit) -> None:
        if len(self.hits) < self.limit:
            self.hits.append(hit)
        else:
            self.is_incomplete = True

    def snippet(self, text: str) -> str | None:
        """Return the text around the first match; None without one."""
        self.chars += len(text)
        found = self.needle.search(text)
        if found is None:
            return None
        start, end = max(0, found.start() - _AROUND), found.end() + _AROUND
        return f"{'…' if start else ''}{plain(text[start:end])}{'…' if end < len(text) else ''}"


class StoreSearch:
    def __init__(self, reader: SessionReader, store: StoreClient) -> None:
        self._reader = reader
        self._store = store

    async def find(
        self, text: str, sessions: list[InspectedSession], limit: int, deadline_s: float = DEADLINE_S
    ) -> SearchResult:
        """Search in these sessions, their users' documents, and what they contain."""
        search = _Search(re.compile(re.escape(text), re.IGNORECASE), limit)
        with anyio.move_on_after(deadline_s) as scope:
            self._search_sessions(search, sessions)
            users: set[tuple[str, str]] = set()
            for session in sessions:
                if search.is_over:
                    break
                if session.tenant is not None and session.session is not None and session.error is None:
                    await self._search_session(search, session, SessionRef.of(session.tenant, session.session), users)
        incomplete = search.is_incomplete or scope.cancelled_caught
        return SearchResult(items=search.hits, incomplete=incomplete)

    def _search_sessions(self, search: _Search, sessions: Iterable[InspectedSession]) -> None:
        for session in sessions:
            for name in (session.session, session.user, session.agent):
                if name and session.tenant and (found := search.snippet(name)) is not None:
                    search.add(
                        SearchHit(
                            type="session",
                            tenant=session.tenant,
                            session=session.session,
                            user=session.user,
                            at=session.updated_at,
                            snippet=found,
                        )
                    )
                    break

    async def _search_session(
        self, search: _Search, session: InspectedSession, ref: SessionRef, users: set[tuple[str, str]]
    ) -> None:
        try:
            messages = await self._reader.messages(ref)
            await to_thread.run_sync(_search_messages, search, ref, session.user, messages, abandon_on_cancel=True)
        except (StoreUnavailable, MemoError):
            search.is_incomplete = True
        await self._search_documents(search, ref.tenant, OwnerId(ref.session), Scope.SESSION, session)
        if session.user is not None and (ref.tenant, session.user) not in users:
            users.add((ref.tenant, session.user))
            await self._search_documents(search, ref.tenant, OwnerId(session.user), Scope.USER, session)
        await self._search_artifacts(search, ref, session)

    async def _search_documents(
        self, search: _Search, tenant: TenantId, owner: OwnerId, scope: Scope, session: InspectedSession
    ) -> None:
        try:
            listed = await self._store.list_documents(tenant, owner, scope)
        except (StoreUnavailable, MemoError):
            search.is_incomplete = True
            return
        for one in listed:
            if search.is_over:
                return
            assert isinstance(one.key, DocumentKey)  # noqa: S101  # a list of documents
            name = str(one.key.name)
            found = search.snippet(name) or await self._snippet(search, one.key)
            if found is not None:
                is_of_session = scope is Scope.SESSION
                search.add(
                    SearchHit(
                        type="document",
                        tenant=tenant,
                        session=owner if is_of_session else None,
                        user=session.user if is_of_session else UserId(owner),
                        name=name,
                        at=one.at,
                        snippet=found,
                    )
                )

    async def _search_artifacts(self, search: _Search, ref: SessionRef, session: InspectedSession) -> None:
        async for key in self._artifacts(search, ref):
            if search.is_over:
                return
            found = search.snippet(str(key.tool_call)) or await self._snippet(search, key)
            if found is not None:
                search.add(
                    SearchHit(
                        type="artifact",
                        tenant=ref.tenant,
                        session=ref.session,
                        user=session.user,
                        name=str(key.tool_call),
                        snippet=found,
                    )
                )

    async def _artifacts(self, search: _Search, ref: SessionRef) -> AsyncIterator[ArtifactKey]:
        try:
            listed = await self._store.list_artifacts(ref)
        except (StoreUnavailable, MemoError):
            search.is_incomplete = True
            return
        for one in listed:
            assert isinstance(one.key, ArtifactKey)  # noqa: S101  # a list of artifacts
            yield one.key

    async def _snippet(self, search: _Search, key: DocumentKey | ArtifactKey) -> str | None:
        """Read a text and return what is around its first match."""
        try:
            text = await self._store.read(key)
        except (StoreUnavailable, MemoError):
            search.is_incomplete = True
            return None
        if text is None:
            return None
        if len(text.encoded) <= _SEARCHED_INLINE:
            return search.snippet(text.encoded.decode())
        return await to_thread.run_sync(lambda: search.snippet(text.encoded.decode()), abandon_on_cancel=True)


def _search_messages(search: _Search, ref: SessionRef, user: str | None, messages: list[JsonObject]) -> None:
    found_here = 0
    for index in range(len(messages) - 1, -1, -1):
        if search.is_over:
            return
        message = messages[index]
        found = search.snippet(message_text(message)[0])
        if found is None:
            continue
        if found_here == _HITS_OF_SESSION:
            search.is_incomplete = True
            return
        found_here += 1
        at: datetime | None = moment(message.get("timestamp") or message.get("at"))
        search.add(
            SearchHit(
                type="message",
                tenant=ref.tenant,
                session=ref.session,
                user=user,
                name=str(message.get("role")),
                at=at,
                snippet=found,
                index=index,
            )
        )
