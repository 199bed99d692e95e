"""LedgeredStore: a store without a consolidation ledger, together with one in a file beside it.

For stores that keep messages and documents and nothing else. The file holds what the store has no place for: leases,
standings, cached summaries, and the users and sessions that were seen here. Everything else is passed to the store.
Services that share such a store must share the file too, because the leases are in it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.to_thread

from memo.content import number_of
from memo.documents import Document, DocumentKey, conflict, is_expected, sha256_of
from memo.errors import Absent, InvalidKey, MemoError, SessionTaken, Unsupported
from memo.ids import UserRef
from memo.leases import Held, Lease, LeaseLost
from memo.ledger import DocumentChange, Json, LedgerEntry, PendingUser, SessionRevision, Settlement, has_ledger
from memo.messages import Message
from memo.provider import capabilities_of
from memo.records import Record, RecordChange, RecordScope, has_records
from memo.sessions import SessionMeta, session_id_of
from memo.stores.options import StoreOptions
from memo.stores.sqlite import SQLiteStore
from memo.stores.timestamps import to_micros

_log = logging.getLogger("memo.consolidation")

FILE = "consolidation.db"
_TENANTS, _USERS = "tenants", "users"


@dataclass(frozen=True, slots=True)
class _Book:
    """What the file holds about one user. `settled` maps sessions to revisions."""

    standing: Json = field(default_factory=dict)
    memory: Json = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)

    def encode(self) -> Json:
        return {"standing": self.standing, "memory": self.memory, "settled": self.settled}


def needs_ledger(store: object) -> bool:
    """Return whether a store keeps messages and a profile, but no ledger."""
    if has_ledger(store) and has_records(store):
        return False
    can = capabilities_of(store)
    reads = any(callable(getattr(store, name, None)) for name in ("load_full_history", "load_all_messages"))
    return reads and (can.write or can.revisions)


@asynccontextmanager
async def with_ledger(store: Any, data_dir: Path | str) -> AsyncIterator[Any]:
    """Hold open the store together with a ledger in the directory, or the store alone if it needs none."""
    if not needs_ledger(store):
        yield store
        return
    async with LedgeredStore(store, data_dir) as ledgered:
        yield ledgered


class LedgeredStore:
    """A consolidation ledger, records and a list of users for a store without them.

    `lister` lists a user's sessions; by default the store does, and if it cannot, the sessions count that were created
    through this object. A session's revision is the time of its last change. A document's revision is the store's, or
    else derived from its text.
    """

    def __init__(
        self, store: Any, data_dir: Path | str, *, lister: Any = None, options: StoreOptions | None = None
    ) -> None:
        self._inner = store
        self._lister = store if lister is None else lister
        self._data_dir = Path(data_dir)
        self._file = SQLiteStore(self._data_dir / FILE, options)
        self._has_revisions = capabilities_of(store).revisions
        self.numbers_by_content = not self._has_revisions
        """Whether a document's revision is derived from its text."""
        self._is_open = False
        self._opening = anyio.Lock()

    async def __aenter__(self) -> Self:
        await self._ledger()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close_ledger()

    async def close_ledger(self) -> None:
        """Close the file. The store stays open; it belongs to the caller."""
        async with self._opening:
            if self._is_open:
                self._is_open = False
                await self._file.aclose()

    async def _ledger(self) -> SQLiteStore:
        if not self._is_open:
            async with self._opening:
                if not self._is_open:
                    await anyio.to_thread.run_sync(partial(self._data_dir.mkdir, 0o700, parents=True, exist_ok=True))
                    await self._file.open()
                    self._is_open = True
        return self._file

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._inner, name)
        return self._noting(name, found) if name in _NOTED else found

    def _noting(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(method)
        async def call(*args: Any, **named: Any) -> Any:
            answer = await method(*args, **named)
            try:
                await _NOTED[name](self, answer, *args, **named)
            except (MemoError, TypeError) as error:  # the store has it; the next call notes it again
                _log.warning("cannot note the activity of a session for consolidation: %s", error)
            return answer

        return call

    async def _note_session(self, answer: Any, tenant: str, user: str, agent: str, *_: Any, **__: Any) -> None:
        try:
            await (await self._ledger()).get_or_create(tenant, user, agent, session_id_of(answer))
        except SessionTaken as error:
            _log.warning("cannot note a session for consolidation: %s", error)

    async def _note_messages(self, _: Any, tenant: str, session: str, *__: Any, **___: Any) -> None:
        with suppress(Absent):  # created elsewhere, so the lister must know it
            await (await self._ledger()).append_messages(tenant, session, [])

    # Users and sessions

    async def list_users(self) -> list[UserRef]:
        """Return every user that the lister, the file, or a directory `tenants/T/users/U` beside the file names."""
        found = set(await (await self._ledger()).list_users())
        lists = getattr(self._lister, "list_users", None)
        if callable(lists):
            found |= {_user_of(answer) for answer in await lists()}
        found |= await anyio.to_thread.run_sync(_users_below, self._data_dir)
        return sorted(found)

    async def list_sessions_by_user(self, tenant: str, user: str) -> list[SessionMeta]:
        lists = getattr(self._lister, "list_sessions_by_user", None)
        if not callable(lists):
            return await (await self._ledger()).list_sessions_by_user(tenant, user)
        found: list[SessionMeta] = []
        for answer in await lists(tenant, user):
            try:
                found.append(SessionMeta.parse(answer))
            except MemoError as error:
                _log.warning("cannot use a session of user %s in the store's list: %s", f"{tenant}:{user}", error)
        return sorted(found, key=lambda meta: meta.updated_at, reverse=True)

    async def load_full_history(self, tenant: str, session: str) -> list[Message]:
        """Return every message that the store still has."""
        load = getattr(self._inner, "load_full_history", None) or self._inner.load_all_messages
        return list(await load(str(tenant), str(session)))

    # Documents

    async def read_document(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        if self._has_revisions:
            found: Document | None = await self._inner.read_document(key, revision)
            return found
        text = await self._inner.read_memory_document(str(key.tenant), str(key.owner), str(key.scope), str(key.name))
        if text is None:
            return None
        sha256 = sha256_of(text.encode())
        return Document(text, number_of(sha256), sha256)

    async def _write_document(self, change: DocumentChange) -> Document:
        key = change.key
        if self._has_revisions:
            written: Document = await self._inner.write_document(
                key, change.content, expected=change.expected, author=change.author
            )
            return written
        where = (str(key.tenant), str(key.owner), str(key.scope), str(key.name))
        await self._inner.write_memory_document(*where, change.content)
        kept = await self.read_document(key)  # a store may normalise texts
        if kept is None:
            raise Unsupported(f"cannot write {key.name}: the store accepted the text and does not return it")
        return kept

    # Records

    async def apply_records(self, changes: Sequence[RecordChange]) -> list[Json | None]:
        return await (await self._ledger()).apply_records(changes)

    async def list_records(self, scope: RecordScope, group: str | None = None) -> list[Record]:
        return await (await self._ledger()).list_records(scope, group)

    async def read_record(self, key: Any) -> Record | None:
        return await (await self._ledger()).read_record(key)

    # Leases and the ledger

    async def acquire_lease(self, user: UserRef, holder: str, ttl_s: float) -> Lease | Held:
        return await (await self._ledger()).acquire_lease(user, holder, ttl_s)

    async def renew_lease(self, lease: Lease, ttl_s: float) -> Lease:
        return await (await self._ledger()).renew_lease(lease, ttl_s)

    async def release_lease(self, lease: Lease) -> None:
        await (await self._ledger()).release_lease(lease)

    async def list_pending(self) -> list[PendingUser]:
        """Return every user with a changed session. A user whose sessions cannot be listed is logged and left out."""
        found: list[PendingUser] = []
        for user in await self.list_users():
            try:
                entry = await self.read_ledger(user)
            except Exception as error:  # noqa: BLE001  # a third-party store may raise anything; the others are listed
                reason = str(error) if isinstance(error, MemoError) else type(error).__name__
                _log.warning("cannot look for changed sessions of user %s: %s", user, reason)
                continue
            if entry.changed and entry.last_activity is not None:
                found.append(PendingUser(user, entry.changed, entry.last_activity, entry.standing))
        return found

    async def list_standings(self, tenant: str | None = None) -> list[tuple[UserRef, Json]]:
        return await (await self._ledger()).list_standings(tenant)

    async def list_session_revisions(self, user: UserRef) -> list[SessionRevision]:
        return await self._revisions(user, await self._book(user))

    async def _revisions(self, user: UserRef, book: _Book) -> list[SessionRevision]:
        found: list[SessionRevision] = []
        for meta in await self.list_sessions_by_user(user.tenant, user.user):
            revision = to_micros(meta.updated_at)
            is_pending = revision > book.settled.get(meta.session, 0)
            found.append(SessionRevision(meta.session, revision, meta.updated_at, is_pending))
        return found

    async def read_ledger(self, user: UserRef) -> LedgerEntry:
        book = await self._book(user)
        changed = [session for session in await self._revisions(user, book) if session.is_pending]
        lease = (await (await self._ledger()).read_ledger(user)).lease
        last = max((session.updated_at for session in changed), default=None)
        return LedgerEntry(book.standing, book.memory, len(changed), last, lease)

    async def _book(self, user: UserRef) -> _Book:
        """Return the last settled state. The state of a killed run counts if its document was written."""
        entry = await (await self._ledger()).read_ledger(user)
        value = entry.memory
        begun = value.get("next")
        if begun is not None:
            document = await self.read_document(DocumentKey.of(*begun["key"]))
            if document is not None and document.sha256 == begun["sha256"]:
                value = begun["book"]
        return _Book(value.get("standing", {}), value.get("memory", {}), value.get("settled", {}))

    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        """Commit a run. The intent is durable before the document is written, so a killed run is finished or undone."""
        ledger, before = await self._ledger(), await self._book(lease.user)
        memory = before.memory if settlement.memory is None else settlement.memory
        settled = {**before.settled, **{str(name): revision for name, revision in settlement.settled.items()}}
        after, change = _Book(settlement.standing, memory, settled), settlement.document
        if change is None:
            await ledger.settle(lease, Settlement(after.standing, after.encode()))
            return None
        current = await self.read_document(change.key)
        if not is_expected(None if current is None else current.revision, change.expected):
            raise conflict(change.key, change.expected, current)
        key = [str(part) for part in (change.key.tenant, change.key.owner, change.key.scope, change.key.name)]
        intent = {"key": key, "sha256": sha256_of(change.content.encode()), "book": after.encode()}
        await ledger.settle(lease, Settlement(before.standing, {**before.encode(), "next": intent}))
        written = await self._write_document(change)
        with suppress(LeaseLost):  # written while the lease was held: the intent counts
            await ledger.settle(lease, Settlement(after.standing, after.encode()))
        return written


_NOTED: dict[str, Callable[..., Awaitable[None]]] = {
    "get_or_create": LedgeredStore._note_session,  # a table of its own methods
    "append_messages": LedgeredStore._note_messages,
    "append_turn": LedgeredStore._note_messages,
    "record_turn": LedgeredStore._note_messages,
}


def _user_of(answer: Any) -> UserRef:
    if isinstance(answer, UserRef):
        return answer
    if isinstance(answer, dict):
        return UserRef.of(answer.get("tenantId") or answer["tenant"], answer.get("userId") or answer["user"])
    tenant, user = answer
    return UserRef.of(tenant, user)


def _users_below(data_dir: Path) -> set[UserRef]:
    found: set[UserRef] = set()
    for path in (data_dir / _TENANTS).glob(f"*/{_USERS}/*/"):
        try:
            found.add(UserRef.of(path.parent.parent.name, path.name))
        except InvalidKey:
            continue  # not a user
    return found
