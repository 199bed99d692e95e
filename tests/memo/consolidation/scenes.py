"""Test fixtures: a clock, conversations, and summarisers scripted by a test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from memo.consolidation import (
    Budget,
    ConsolidationSettings,
    EmbeddedSummariser,
    ProfileDraft,
    UserMemoryConsolidationService,
)
from memo.consolidation.summarisers import ProfileRequest, SessionDraft
from memo.consolidation.transcript import Transcript
from memo.documents import USER, DocumentKey
from memo.ids import UserRef
from memo.stores import FilesystemStore, InMemoryStore, SQLiteStore

ANN = UserRef.of("acme", "ann")
LONG_AGO = datetime(2026, 1, 1, 12, tzinfo=UTC)

AnyStore = InMemoryStore | SQLiteStore | FilesystemStore  # a BaseStore need not keep a ledger


class Clock:
    def __init__(self) -> None:
        self.now = LONG_AGO

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **spans: float) -> None:
        self.now += timedelta(**spans)


async def say(store: Any, session: str, *texts: str, user: str = "ann", tenant: str = "acme") -> None:
    await store.get_or_create(tenant, user, "agent", session)
    await store.append_messages(tenant, session, [{"role": "user", "content": text} for text in texts])


async def page(store: Any, user: UserRef = ANN) -> str:
    return await store.read_memory_document(user.tenant, user.user, "user", USER) or ""


async def write_page(store: Any, text: str, user: UserRef = ANN) -> None:
    await store.write_memory_document(user.tenant, user.user, "user", USER, text)


async def revisions(store: Any, user: UserRef = ANN) -> int:
    return len(await store.document_history(DocumentKey.of_user(user.tenant, user.user, USER)))


class Scripted(EmbeddedSummariser):
    """The embedded summariser, with a hook that the test can run before each answer."""

    def __init__(
        self,
        on_session: Callable[[Transcript, Budget], Awaitable[None]] | None = None,
        on_profile: Callable[[ProfileRequest, Budget], Awaitable[ProfileDraft | None]] | None = None,
    ) -> None:
        self._on_session = on_session
        self._on_profile = on_profile
        self.sessions: list[str] = []
        self.profiles = 0

    async def summarise(self, transcript: Transcript, budget: Budget) -> SessionDraft:
        self.sessions.append(transcript.session)
        if self._on_session is not None:
            await self._on_session(transcript, budget)
        return await super().summarise(transcript, budget)

    async def draft_profile(self, request: ProfileRequest, budget: Budget) -> ProfileDraft:
        self.profiles += 1
        own = None if self._on_profile is None else await self._on_profile(request, budget)
        return await super().draft_profile(request, budget) if own is None else own


def service_of(
    store: Any,
    clock: Callable[[], datetime],
    summariser: Any = None,
    settings: ConsolidationSettings | None = None,
    **more: Any,
) -> UserMemoryConsolidationService:
    return UserMemoryConsolidationService(store, summariser, settings=settings, clock=clock, **more)
