"""SQLiteStore: one SQLite file, durable commits, one writer at a time, parallel readers, any number of processes.

Thin: each method is one transaction that calls functions of the other modules in this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from memo.changes import Change, ChangeStream
from memo.compaction import Compaction
from memo.documents import (
    ANY,
    HOST,
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
from memo.errors import Unavailable
from memo.ids import AgentId, OwnerId, SessionRef, TenantId, ToolCallId, UserId, UserRef
from memo.limits import encode_text
from memo.messages import EncodedMessage, Message, StoredMessage
from memo.provider import SessionMemory
from memo.sessions import Session, SessionMeta, Usage
from memo.stores.base_store import BaseStore
from memo.stores.notifier import FileNotifier
from memo.stores.options import StoreOptions
from memo.stores.prepared_text import check_author, check_request, off_loop, prepare_artifact, prepare_document
from memo.stores.sqlite import artifacts, change_log, documents, sessions, snapshots
from memo.stores.sqlite.database import Database
from memo.stores.sqlite.journal import SQLiteJournal
from memo.stores.sqlite.ledger import SQLiteLedger
from memo.stores.sqlite.records import SQLiteRecords
from memo.stores.timestamps import to_micros

_FIRST, _LAST = 0, 2**53


class SQLiteStore(BaseStore, SQLiteRecords, SQLiteLedger):
    def __init__(self, path: Path | str, options: StoreOptions | None = None) -> None:
        super().__init__(options)
        self.path = Path(path)
        self._database = Database(self.path, committed=self._notify)
        self._notifier: FileNotifier | None = None

    async def open(self) -> None:
        await self._database.open()
        # A separate file, not the database itself: SQLite writes its log before a commit is visible, and a reader woken
        # by that would look too early and miss the change.
        self._notifier = FileNotifier(Path(f"{self.path}-bell"), self.options.feed_check_s)

    async def aclose(self) -> None:
        await self._database.close()
        notifier, self._notifier = self._notifier, None
        if notifier is not None:
            notifier.notify()  # wakes waiting feeds, which then find the store closed
            notifier.close()

    def _notify(self) -> None:
        if self._notifier is not None:
            self._notifier.notify()

    def _now(self) -> int:
        return to_micros(self.options.clock())

    async def read_document(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        return await self._database.read(lambda db: documents.read(db, key, revision))

    async def write_document(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Document:
        check_author(author)
        text = await off_loop(prepare_document, content, self.options)
        return await self._database.write(lambda db: documents.write(db, key, text, expected, author, self.options))

    async def append_document(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Document:
        check_author(author)
        encode_text("document", content, self.options.limits.document_bytes)
        return await self._database.write(lambda db: documents.append(db, key, content, author, self.options))

    async def find_request(self, key: DocumentKey, request: str) -> Document | None:
        check_request(request)
        return await self._database.read(lambda db: documents.find_request(db, key, request))

    async def delete_document(self, key: DocumentKey, *, expected: Expected = ANY, author: Author = HOST) -> Revision:
        check_author(author)
        return await self._database.write(lambda db: documents.delete(db, key, expected, author, self.options))

    async def move_document(
        self, key: DocumentKey, to: DocumentName, *, expected: Expected = ANY, author: Author = HOST
    ) -> MovedDocument:
        check_author(author)
        name = DocumentName(to)
        return await self._database.write(lambda db: documents.move(db, key, name, expected, author, self.options))

    async def list_documents(
        self, tenant: TenantId, owner: OwnerId, scope: Scope, prefix: str = ""
    ) -> list[DocumentEntry]:
        return await self._database.read(lambda db: documents.list_of(db, tenant, owner, scope, prefix))

    async def document_history(self, key: DocumentKey, limit: int | None = None) -> list[Revision]:
        return await self._database.read(lambda db: documents.history(db, key, limit))

    async def redact_document(self, key: DocumentKey, revision: int, *, author: Author = HOST) -> list[int]:
        return await self._database.erase(lambda db: documents.redact(db, key, revision))

    async def write_artifact(self, key: ArtifactKey, content: str) -> ArtifactEntry:
        text = await off_loop(prepare_artifact, content, self.options)
        return await self._database.write(lambda db: artifacts.write(db, key, text, self.options))

    async def read_artifacts(self, session: SessionRef, tool_calls: Iterable[str]) -> dict[ToolCallId, str]:
        wanted = [ToolCallId(call) for call in tool_calls]
        return await self._database.read(lambda db: artifacts.read_many(db, session, wanted))

    async def read_artifact_range(self, key: ArtifactKey, start: int, length: int) -> bytes | None:
        return await self._database.read(lambda db: artifacts.read_range(db, key, start, length))

    async def list_artifacts(self, session: SessionRef) -> list[ArtifactEntry]:
        return await self._database.read(lambda db: artifacts.list_of(db, session))

    async def list_memory(self, session: SessionRef, user: UserId) -> SessionMemory:
        return await self._database.read(lambda db: snapshots.list_of(db, session, user))

    async def read_memory(self, keys: Sequence[DocumentKey | ArtifactKey]) -> list[bytes | None]:
        return await self._database.read(lambda db: snapshots.read(db, keys))

    def changes(self, since: int = 0) -> ChangeStream:
        if self._notifier is None:
            raise Unavailable("cannot use this store: it is closed")
        return ChangeStream(self._read_changes, self._notifier.listen, min(max(since, _FIRST), _LAST))

    async def _read_changes(self, since: int, limit: int) -> list[Change]:
        return await self._database.read(lambda db: change_log.read(db, since, limit))

    async def last_change(self) -> int:
        return await self._database.read(change_log.last)

    async def _make_session(self, ref: SessionRef, user: UserId, agent: AgentId) -> Session:
        return await self._database.write(lambda db: sessions.make(db, ref, user, agent, self._now()))

    async def _get_session(self, ref: SessionRef) -> Session | None:
        return await self._database.read(lambda db: sessions.get(db, ref))

    async def _load_tail(self, ref: SessionRef, limit: int | None) -> list[StoredMessage]:
        return await self._database.read(lambda db: sessions.tail(db, ref, limit))

    async def _load_within(self, ref: SessionRef, token_budget: int) -> list[StoredMessage]:
        return await self._database.read(lambda db: sessions.within(db, ref, token_budget))

    async def _load_history(self, ref: SessionRef) -> list[Message]:
        return await self._database.read(lambda db: sessions.history(db, ref))

    async def _visible_size(self, ref: SessionRef) -> tuple[int, int]:
        return await self._database.read(lambda db: sessions.visible_size(db, ref))

    async def _commit_turn(
        self, ref: SessionRef, messages: list[EncodedMessage], usage: Usage | None, request: str | None
    ) -> None:
        commit = partial(
            sessions.commit_turn, ref=ref, messages=messages, usage=usage, request=request, now=self._now()
        )
        await self._database.write(commit)

    async def _commit_compaction(self, ref: SessionRef, compaction: Compaction, summary: EncodedMessage) -> bool:
        return await self._database.write(lambda db: sessions.compact(db, ref, compaction, summary, self.options))

    async def list_sessions(self, tenant: str | None = None) -> list[Session]:
        wanted = None if tenant is None else TenantId(tenant)
        return await self._database.read(lambda db: sessions.list_all(db, wanted))

    async def list_sessions_by_user(self, tenant: str, user: str) -> list[SessionMeta]:
        of = (TenantId(tenant), UserId(user))
        return await self._database.read(lambda db: sessions.list_of_user(db, *of))

    async def list_users(self) -> list[UserRef]:
        return await self._database.read(sessions.list_users)

    def _journal(self, ref: SessionRef) -> SQLiteJournal:
        return SQLiteJournal(self._database, ref, self._now)
