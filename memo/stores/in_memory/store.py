"""InMemoryStore: a store in the memory of one process, for embedding and for tests that need a store without a file.

Every commit happens between two awaits, so the event loop is the lock. Nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from anyio.lowlevel import checkpoint

from memo.changes import Change, ChangeStream
from memo.compaction import Compaction
from memo.documents import (
    ANY,
    HOST,
    NOTES,
    ArtifactEntry,
    ArtifactKey,
    Author,
    Document,
    DocumentEntry,
    DocumentKey,
    DocumentName,
    Expected,
    MovedDocument,
    Revision,
    Scope,
)
from memo.errors import TooLarge, Unavailable
from memo.ids import AgentId, OwnerId, SessionRef, TenantId, ToolCallId, UserId, UserRef
from memo.messages import EncodedMessage, Message, StoredMessage
from memo.sessions import Session, SessionMeta, Usage
from memo.stores.base_store import BaseStore
from memo.stores.in_memory.documents import InMemoryDocuments
from memo.stores.in_memory.ledger import InMemoryLedger
from memo.stores.in_memory.records import InMemoryRecords
from memo.stores.in_memory.sessions import InMemorySessions
from memo.stores.journal import LogName, Slot, SlotName
from memo.stores.notifier import LocalNotifier
from memo.stores.options import StoreOptions, notes_do_not_fit
from memo.stores.prepared_text import check_author, check_request, off_loop, prepare_artifact, prepare_document


class InMemoryJournal:
    def __init__(self, turn: Callable[[], Awaitable[None]]) -> None:
        self._turn = turn
        self._logs: dict[tuple[LogName, str], list[str]] = {}
        self._slots: dict[tuple[SlotName, str], Slot] = {}

    async def append(self, log: LogName, agent: str, body: str) -> None:
        await self._turn()
        self._logs.setdefault((log, agent), []).append(body)

    async def append_all(self, log: LogName, agent: str, bodies: Sequence[str]) -> None:
        await self._turn()
        self._logs.setdefault((log, agent), []).extend(bodies)

    async def load(self, log: LogName, agent: str) -> list[str]:
        await self._turn()
        return list(self._logs.get((log, agent), []))

    def place(self, log: LogName, agent: str, number: int) -> str:
        return f"entry {number} of log {log}"

    async def put(self, slot: SlotName, agent: str, body: str) -> None:
        await self._turn()
        self._slots[slot, agent] = Slot(body, len(self._logs.get(("event", ""), [])))

    async def get(self, slot: SlotName, agent: str) -> Slot | None:
        await self._turn()
        return self._slots.get((slot, agent))

    async def agents(self) -> list[str]:
        await self._turn()
        return list({agent for _, agent in (*self._logs, *self._slots) if agent})


class InMemoryStore(BaseStore, InMemoryRecords, InMemoryLedger):
    def __init__(self, options: StoreOptions | None = None) -> None:
        super().__init__(options)
        self._notifier = LocalNotifier()
        self._documents = InMemoryDocuments(self.options, self._notifier.notify)
        self._sessions = InMemorySessions()
        self._journals: dict[SessionRef, InMemoryJournal] = {}
        self._closed = False

    async def open(self) -> None:
        self._closed = False

    async def aclose(self) -> None:
        self._closed = True
        self._notifier.notify()  # wakes waiting feeds, which then find the store closed

    async def _turn(self) -> None:
        """Let other tasks run; then this call owns the event loop, and so the store, until its next await."""
        await checkpoint()
        self._require_open()

    def _require_open(self) -> None:
        if self._closed:
            raise Unavailable("cannot use this store: it is closed")

    async def read_document(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        await self._turn()
        return self._documents.read(key, revision)

    async def write_document(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Document:
        check_author(author)
        prepared = await off_loop(prepare_document, content, self.options)
        await self._turn()
        repeated = self._documents.find_request(key, author.request)
        return repeated or self._documents.commit(key, prepared, expected, author)

    async def append_document(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Document:
        check_author(author)
        while True:
            before = await self.read_document(key)
            text = (before.content if before else "") + content if isinstance(content, str) else content
            prepared = await off_loop(prepare_document, text, self.options)
            self._require_open()
            repeated = self._documents.find_request(key, author.request)
            if repeated is not None:
                return repeated
            if self._documents.read(key) == before:  # else another task wrote while the text was prepared: retry
                return self._documents.commit(key, prepared, ANY, author)

    async def find_request(self, key: DocumentKey, request: str) -> Document | None:
        check_request(request)
        await self._turn()
        return self._documents.find_request(key, request)

    async def delete_document(self, key: DocumentKey, *, expected: Expected = ANY, author: Author = HOST) -> Revision:
        check_author(author)
        await self._turn()
        repeated = self._documents.find_deletion(key, author.request)
        return repeated or self._documents.delete(key, expected, author)

    async def move_document(
        self, key: DocumentKey, to: DocumentName, *, expected: Expected = ANY, author: Author = HOST
    ) -> MovedDocument:
        check_author(author)
        await self._turn()
        return self._documents.move(key, DocumentName(to), expected, author)

    async def list_documents(
        self, tenant: TenantId, owner: OwnerId, scope: Scope, prefix: str = ""
    ) -> list[DocumentEntry]:
        await self._turn()
        return self._documents.list_of(tenant, owner, scope, prefix)

    async def document_history(self, key: DocumentKey, limit: int | None = None) -> list[Revision]:
        await self._turn()
        return self._documents.history(key, limit)

    async def redact_document(self, key: DocumentKey, revision: int, *, author: Author = HOST) -> list[int]:
        await self._turn()
        return self._documents.redact(key, revision)

    async def write_artifact(self, key: ArtifactKey, content: str) -> ArtifactEntry:
        prepared = await off_loop(prepare_artifact, content, self.options)
        await self._turn()
        return self._documents.commit_artifact(key, prepared)

    async def read_artifacts(self, session: SessionRef, tool_calls: Iterable[str]) -> dict[ToolCallId, str]:
        await self._turn()
        return self._documents.read_artifacts(session, [ToolCallId(call) for call in tool_calls])

    async def read_artifact_range(self, key: ArtifactKey, start: int, length: int) -> bytes | None:
        await self._turn()
        return self._documents.read_artifact_range(key, start, length)

    async def list_artifacts(self, session: SessionRef) -> list[ArtifactEntry]:
        await self._turn()
        return self._documents.list_artifacts(session)

    def changes(self, since: int = 0) -> ChangeStream:
        return ChangeStream(self._read_changes, self._notifier.listen, since)

    async def _read_changes(self, since: int, limit: int) -> list[Change]:
        await self._turn()
        return self._documents.read_changes(since, limit)

    async def last_change(self) -> int:
        await self._turn()
        return self._documents.last_change()

    async def _make_session(self, ref: SessionRef, user: UserId, agent: AgentId) -> Session:
        await self._turn()
        return self._sessions.make(ref, user, agent, self.options.clock())

    async def _get_session(self, ref: SessionRef) -> Session | None:
        await self._turn()
        return self._sessions.get(ref)

    async def _load_tail(self, ref: SessionRef, limit: int | None) -> list[StoredMessage]:
        await self._turn()
        return self._sessions.tail(ref, limit)

    async def _load_within(self, ref: SessionRef, token_budget: int) -> list[StoredMessage]:
        await self._turn()
        return self._sessions.within(ref, token_budget)

    async def _load_history(self, ref: SessionRef) -> list[Message]:
        await self._turn()
        return self._sessions.history(ref)

    async def _visible_size(self, ref: SessionRef) -> tuple[int, int]:
        await self._turn()
        return self._sessions.visible_size(ref)

    async def _commit_turn(
        self, ref: SessionRef, messages: list[EncodedMessage], usage: Usage | None, request: str | None
    ) -> None:
        await self._turn()
        self._sessions.commit_turn(ref, messages, usage, request, self.options.clock())
        if messages:
            self._mark_pending(ref)

    async def _commit_compaction(self, ref: SessionRef, compaction: Compaction, summary: EncodedMessage) -> bool:
        await self._turn()
        if not self._sessions.compact(ref, compaction, summary, self.options.clock()):
            return False
        key = DocumentKey.of_session(ref, NOTES)
        before = self._documents.read(key)
        try:
            notes = prepare_document((before.content if before else "") + compaction.notes_section, self.options)
        except TooLarge:
            notes_do_not_fit(ref)
        else:
            self._documents.commit(key, notes, ANY, Author("compaction", ref.session, "conversation summary"))
        return True

    async def list_sessions(self, tenant: str | None = None) -> list[Session]:
        await self._turn()
        return self._sessions.list_all(None if tenant is None else TenantId(tenant))

    async def list_sessions_by_user(self, tenant: str, user: str) -> list[SessionMeta]:
        owner = UserId(user)
        return [SessionMeta(s.session, s.updated_at) for s in await self.list_sessions(tenant) if s.user == owner]

    async def list_users(self) -> list[UserRef]:
        await self._turn()
        return self._sessions.list_users()

    def _journal(self, ref: SessionRef) -> InMemoryJournal:
        return self._journals.setdefault(ref, InMemoryJournal(self._turn))
