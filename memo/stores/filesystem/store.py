"""FilesystemStore: plain files in a directory, readable and editable by any program; `layout.py` describes them.

Thin: every method takes the owner's lock in a thread and calls one function of a module in this package. Any number
of processes may open the same directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
from anyio import CapacityLimiter

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
from memo.keyed_lock import KeyedLock
from memo.limits import encode_text
from memo.messages import EncodedMessage, Message, StoredMessage
from memo.sessions import DamagedSession, Session, SessionMeta, Usage
from memo.stores.base_store import BaseStore
from memo.stores.filesystem import artifacts, documents, messages, sessions
from memo.stores.filesystem.change_log import ChangeLog
from memo.stores.filesystem.directory import LOCK_TIMEOUT_S, Directory, disk_errors
from memo.stores.filesystem.home import Home, StillChanging
from memo.stores.filesystem.journal import FilesystemJournal
from memo.stores.filesystem.layout import HIDDEN, TENANTS, Owner, check_format, make_root
from memo.stores.filesystem.ledger import FilesystemLedger
from memo.stores.filesystem.records import FilesystemRecords
from memo.stores.filesystem.session_log import RequestIndex
from memo.stores.filesystem.tree import Tree
from memo.stores.filesystem.watcher import Watcher
from memo.stores.notifier import FileNotifier
from memo.stores.options import StoreOptions
from memo.stores.prepared_text import check_author, check_request, prepare_artifact, prepare_document
from memo.stores.timestamps import to_micros

R = TypeVar("R")

_NOTIFIER = "bell"
_THREADS = 8
_PATIENCE = 20
"""How many times a call waits for a file that is being written before it uses the file as it is."""


class FilesystemStore(FilesystemRecords, FilesystemLedger, BaseStore):
    """Owns the open root, the change log, the notifier and the watcher.

    With `watch` off, outside edits are found only when the document is read or listed.
    """

    def __init__(
        self,
        path: Path | str,
        options: StoreOptions | None = None,
        *,
        watch: bool = True,
        rescan_s: float = 60.0,
        settle_s: float = 0.1,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> None:
        super().__init__(options)
        self.path = Path(path)
        self._watch = watch
        self._rescan_s = rescan_s
        self._settle_s = settle_s
        self._lock_timeout_s = lock_timeout_s
        self._tree: Tree | None = None
        self._notifier: FileNotifier | None = None
        self._watcher: Watcher | None = None
        self._requests = RequestIndex()
        self._writers = KeyedLock[Owner]()
        self._threads = CapacityLimiter(_THREADS)

    async def open(self) -> None:
        await anyio.to_thread.run_sync(self._open, limiter=self._threads)

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._close)

    def _open(self) -> None:
        try:
            make_root(self.path)
            root = Directory.open(str(self.path))
        except OSError as error:
            raise Unavailable(f"cannot open the store {self.path}: {error.strerror}") from error
        with ExitStack() as undo:
            undo.enter_context(root)
            root.make_child(TENANTS).close()
            with root.make_child(HIDDEN) as hidden:
                check_format(hidden)
                sessions.index_once(root)
                hidden.check_file(_NOTIFIER)  # it is opened by path, so it must not be a planted link
                with disk_errors(f"open {hidden.where(_NOTIFIER)}"):
                    notifier = FileNotifier(self.path / HIDDEN / _NOTIFIER, self.options.feed_check_s)
                undo.callback(notifier.close)
                log = ChangeLog(hidden, notifier.notify)
            undo.pop_all()  # from here on `aclose` closes them
        self._notifier = notifier
        self._tree = Tree(root, log, self.options, self._lock_timeout_s)
        if self._watch:
            self._watcher = Watcher(self.path.absolute(), self._tree, rescan_s=self._rescan_s, settle_s=self._settle_s)
            self._watcher.start()

    def _close(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
        tree, self._tree = self._tree, None
        if tree is not None:
            tree.close()
        notifier, self._notifier = self._notifier, None
        if notifier is not None:
            notifier.notify()  # wakes waiting feeds, which then find the store closed
            notifier.close()

    def _require_tree(self) -> Tree:
        if self._tree is None:
            raise Unavailable("cannot use this store: it is closed")
        return self._tree

    async def _in_thread(self, work: Callable[[Tree], R]) -> R:
        def use() -> R:
            with self._require_tree().in_use() as tree:
                return work(tree)

        return await anyio.to_thread.run_sync(use, limiter=self._threads)

    async def _on_root(self, work: Callable[[Directory], R]) -> R:
        return await self._in_thread(lambda tree: work(tree.root))

    async def _settled(self, work: Callable[[Tree, float], R]) -> R:
        """Do the work; while another program writes the file, release the lock, wait and retry."""
        for _ in range(_PATIENCE):
            try:
                return await self._in_thread(lambda tree: work(tree, self._settle_s))
            except StillChanging:
                await anyio.sleep(self._settle_s)  # inactivity is the only sign that an editor is done
        return await self._in_thread(lambda tree: work(tree, 0))

    async def _read(self, owner: Owner, query: Callable[[Home | None], R]) -> R:
        return await self._settled(lambda tree, settle_s: tree.read(owner, query, settle_s))

    async def _write(self, owner: Owner, change: Callable[[Home], R]) -> R:
        def work(tree: Tree, settle_s: float) -> R:
            with tree.exclusive(owner, settle_s) as home:
                return change(home)

        async with self._writers.hold(owner):
            return await self._settled(work)

    async def _prepared(self, prepare: Callable[[], R]) -> R:
        return await self._in_thread(lambda _: prepare())

    def _now(self) -> int:
        return to_micros(self.options.clock())

    async def read_document(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        return await self._read(Owner.of(key), lambda home: documents.read(home, key, revision))

    async def write_document(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Document:
        check_author(author)
        text = await self._prepared(lambda: prepare_document(content, self.options))
        return await self._write(Owner.of(key), lambda home: documents.write(home, key, text, expected, author))

    async def append_document(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Document:
        check_author(author)
        encode_text("document", content, self.options.limits.document_bytes)
        return await self._write(Owner.of(key), lambda home: documents.append(home, key, content, author))

    async def find_request(self, key: DocumentKey, request: str) -> Document | None:
        check_request(request)
        return await self._read(
            Owner.of(key), lambda home: None if home is None else documents.find_request(home, key, request)
        )

    async def delete_document(self, key: DocumentKey, *, expected: Expected = ANY, author: Author = HOST) -> Revision:
        check_author(author)
        return await self._write(Owner.of(key), lambda home: documents.delete(home, key, expected, author))

    async def move_document(
        self, key: DocumentKey, to: DocumentName, *, expected: Expected = ANY, author: Author = HOST
    ) -> MovedDocument:
        check_author(author)
        name = DocumentName(to)
        return await self._write(Owner.of(key), lambda home: documents.move(home, key, name, expected, author))

    async def list_documents(
        self, tenant: TenantId, owner: OwnerId, scope: Scope, prefix: str = ""
    ) -> list[DocumentEntry]:
        return await self._read(Owner(tenant, scope, owner), lambda home: documents.list_of(home, prefix))

    async def document_history(self, key: DocumentKey, limit: int | None = None) -> list[Revision]:
        return await self._read(Owner.of(key), lambda home: documents.history(home, key, limit))

    async def redact_document(self, key: DocumentKey, revision: int, *, author: Author = HOST) -> list[int]:
        check_author(author)
        return await self._write(Owner.of(key), lambda home: documents.redact(home, key, revision, author))

    async def write_artifact(self, key: ArtifactKey, content: str) -> ArtifactEntry:
        text = await self._prepared(lambda: prepare_artifact(content, self.options))
        return await self._write(Owner.of_session(key.session), lambda home: artifacts.write(home, key, text))

    async def read_artifacts(self, session: SessionRef, tool_calls: Iterable[str]) -> dict[ToolCallId, str]:
        wanted = [ToolCallId(call) for call in tool_calls]
        return await self._read(Owner.of_session(session), lambda home: artifacts.read_many(home, session, wanted))

    async def read_artifact_range(self, key: ArtifactKey, start: int, length: int) -> bytes | None:
        query = partial(artifacts.read_range, key=key, start=start, length=length)
        return await self._read(Owner.of_session(key.session), query)

    async def list_artifacts(self, session: SessionRef) -> list[ArtifactEntry]:
        return await self._read(Owner.of_session(session), lambda home: artifacts.list_of(home, session))

    def changes(self, since: int = 0) -> ChangeStream:
        if self._notifier is None:
            raise Unavailable("cannot use this store: it is closed")
        return ChangeStream(self._read_changes, self._notifier.listen, max(since, 0))

    async def _read_changes(self, since: int, limit: int) -> list[Change]:
        return await self._in_thread(lambda tree: tree.log.read(since, limit))

    async def last_change(self) -> int:
        return await self._in_thread(lambda tree: tree.log.last())

    async def _make_session(self, ref: SessionRef, user: UserId, agent: AgentId) -> Session:
        root = self._require_tree().root
        make = partial(sessions.make, root, user=user, agent=agent, now=self._now())
        return await self._write(Owner.of_session(ref), make)

    async def _get_session(self, ref: SessionRef) -> Session | None:
        return await self._read(Owner.of_session(ref), lambda home: sessions.get(home, ref))

    async def _load_tail(self, ref: SessionRef, limit: int | None) -> list[StoredMessage]:
        return await self._read(Owner.of_session(ref), lambda home: messages.tail(home, ref, limit))

    async def _load_within(self, ref: SessionRef, token_budget: int) -> list[StoredMessage]:
        return await self._read(Owner.of_session(ref), lambda home: messages.within(home, ref, token_budget))

    async def _load_history(self, ref: SessionRef) -> list[Message]:
        return await self._read(Owner.of_session(ref), lambda home: messages.history(home, ref))

    async def _visible_size(self, ref: SessionRef) -> tuple[int, int]:
        record = await self._read(Owner.of_session(ref), lambda home: messages.record_of(home, ref))
        return record.state.count, record.state.message_tokens

    async def _commit_turn(
        self, ref: SessionRef, encoded: list[EncodedMessage], usage: Usage | None, request: str | None
    ) -> None:
        if await self._get_session(ref) is None:
            messages.record_of(None, ref)  # before the lock, which would create the directory of an unknown session

        root = self._require_tree().root

        def commit(home: Home) -> None:
            record = messages.record_of(home, ref)
            if request is None or self._requests.is_first(home.owner, home.directory, request):
                if encoded:
                    sessions.mark_pending(root, ref)  # before the commit: an extra mark is harmless
                messages.commit_turn(home, record, encoded, usage, request, self._now())

        await self._write(Owner.of_session(ref), commit)

    async def _commit_compaction(self, ref: SessionRef, compaction: Compaction, summary: EncodedMessage) -> bool:
        now = self._now()
        return await self._write(
            Owner.of_session(ref), lambda home: messages.compact(home, ref, compaction, summary, now)
        )

    async def list_sessions(self, tenant: str | None = None) -> list[Session]:
        wanted = None if tenant is None else TenantId(tenant)
        return await self._on_root(lambda root: sessions.list_all(root, wanted))

    async def list_damaged_sessions(self, tenant: str | None = None) -> list[DamagedSession]:
        wanted = None if tenant is None else TenantId(tenant)
        return await self._on_root(lambda root: sessions.list_damaged(root, wanted))

    async def list_sessions_by_user(self, tenant: str, user: str) -> list[SessionMeta]:
        ref = UserRef.of(tenant, user)
        return await self._on_root(lambda root: sessions.list_of_user(root, ref))

    async def list_users(self) -> list[UserRef]:
        return await self._on_root(sessions.list_users)

    def _journal(self, ref: SessionRef) -> FilesystemJournal:
        return FilesystemJournal(self._on_root, ref)
