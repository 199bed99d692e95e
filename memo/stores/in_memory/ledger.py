"""Leases and the consolidation ledger in memory. Every change happens between two awaits.

A mixin for a store that has `_turn`, sessions and documents. Standing and memory are stored as JSON text, so that a
caller cannot change them through a value that it passed in or received.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from memo.documents import Document
from memo.ids import SessionRef, TenantId, UserRef
from memo.leases import Held, Lease, check_fence, grant, let_go, prolong
from memo.ledger import Json, LedgerEntry, PendingUser, SessionRevision, Settlement
from memo.messages import decode_object, encode_object
from memo.stores.in_memory.documents import InMemoryDocuments
from memo.stores.in_memory.sessions import InMemorySessions
from memo.stores.options import StoreOptions
from memo.stores.prepared_text import check_author, off_loop, prepare_document


@dataclass(slots=True)
class LedgerBook:
    leases: dict[UserRef, Lease] = field(default_factory=dict)
    standings: dict[UserRef, str] = field(default_factory=dict)
    memories: dict[UserRef, str] = field(default_factory=dict)
    pending: dict[UserRef, set[SessionRef]] = field(default_factory=dict)


class InMemoryLedger(ABC):
    options: StoreOptions
    _documents: InMemoryDocuments
    _sessions: InMemorySessions
    _ledger_book: LedgerBook | None = None

    @abstractmethod
    async def _turn(self) -> None: ...

    def _book(self) -> LedgerBook:
        if self._ledger_book is None:
            self._ledger_book = LedgerBook()
        return self._ledger_book

    def _mark_pending(self, ref: SessionRef) -> None:
        session = self._sessions.get(ref)
        if session is not None:
            self._book().pending.setdefault(UserRef(ref.tenant, session.user), set()).add(ref)

    async def acquire_lease(self, user: UserRef, holder: str, ttl_s: float) -> Lease | Held:
        await self._turn()
        granted = grant(self._book().leases.get(user), user, holder, ttl_s, self.options.clock())
        if isinstance(granted, Lease):
            self._book().leases[user] = granted
        return granted

    async def renew_lease(self, lease: Lease, ttl_s: float) -> Lease:
        await self._turn()
        renewed = prolong(self._book().leases.get(lease.user), lease, ttl_s, self.options.clock())
        self._book().leases[lease.user] = renewed
        return renewed

    async def release_lease(self, lease: Lease) -> None:
        await self._turn()
        freed = let_go(self._book().leases.get(lease.user), lease)
        if freed is not None:
            self._book().leases[lease.user] = freed

    async def list_pending(self) -> list[PendingUser]:
        await self._turn()
        found = [self._pending_user(user) for user, sessions in self._book().pending.items() if sessions]
        return sorted(found, key=lambda pending: pending.user)

    def _pending_user(self, user: UserRef) -> PendingUser:
        pending = self._book().pending[user]
        activity = max(session.updated_at for ref in pending if (session := self._sessions.get(ref)))
        return PendingUser(user, len(pending), activity, self._standing(user))

    async def list_standings(self, tenant: str | None = None) -> list[tuple[UserRef, Json]]:
        wanted = None if tenant is None else TenantId(tenant)
        await self._turn()
        users = sorted(user for user in self._book().standings if wanted in (None, user.tenant))
        return [(user, self._standing(user)) for user in users]

    async def list_session_revisions(self, user: UserRef) -> list[SessionRevision]:
        await self._turn()
        pending = self._book().pending.get(user, set())
        owned = [s for s in self._sessions.list_all(user.tenant) if s.user == user.user]
        found = [
            SessionRevision(s.session, self._sessions.revision(s.ref), s.updated_at, s.ref in pending) for s in owned
        ]
        return [revision for revision in found if revision.revision]

    async def read_ledger(self, user: UserRef) -> LedgerEntry:
        await self._turn()
        book = self._book()
        pending = self._pending_user(user) if book.pending.get(user) else None
        return LedgerEntry(
            self._standing(user),
            decode_object(book.memories.get(user, "{}"), f"the consolidation memory of user {user.user}"),
            pending.changed if pending else 0,
            pending.last_activity if pending else None,
            book.leases.get(user),
        )

    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        limit = self.options.limits.message_bytes
        standing = encode_object("standing", settlement.standing, limit)
        memory = None if settlement.memory is None else encode_object("memory", settlement.memory, limit)
        change, text = settlement.document, None
        if change is not None:
            check_author(change.author)
            text = await off_loop(prepare_document, change.content, self.options)
        await self._turn()
        book = self._book()
        check_fence(book.leases.get(lease.user), lease, self.options.clock())
        written = None
        if change is not None and text is not None:
            written = self._documents.find_request(change.key, change.author.request) or self._documents.commit(
                change.key, text, change.expected, change.author
            )
        book.standings[lease.user] = standing
        if memory is not None:
            book.memories[lease.user] = memory
        for session, revision in settlement.settled.items():
            ref = SessionRef(lease.user.tenant, session)
            if self._sessions.revision(ref) <= revision:
                book.pending.get(lease.user, set()).discard(ref)
        return written

    def _standing(self, user: UserRef) -> Json:
        return decode_object(self._book().standings.get(user, "{}"), f"the consolidation standing of user {user.user}")
