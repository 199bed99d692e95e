"""A store in a directory: plain files that anybody can read, and edit; the layout is in `layout.py`.

Thin: every method takes the owner's lock in a thread and calls one function of the modules beside this one. Many
processes may have the same directory open.
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

from memo.bell import FileBell
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
    Expected,
    Revision,
    Scope,
)
from memo.errors import Unavailable
from memo.ids import AgentId, OwnerId, SessionRef, TenantId, ToolCallId, UserId, UserRef
from memo.limits import encode_text
from memo.messages import EncodedMessage, Message, StoredMessage
from memo.sessions import Session, SessionMeta, Usage
from memo.stores.base import BaseStore
from memo.stores.filesystem import archives, artifacts, documents, messages, pending, sessions
from memo.stores.filesystem.changelog import ChangeLog
from memo.stores.filesystem.disk import Directory, disk_errors
from memo.stores.filesystem.journal import FilesystemJournal
from memo.stores.filesystem.layout import HIDDEN, TENANTS, Owner
from memo.stores.filesystem.leases import FilesystemLedger
from memo.stores.filesystem.locks import LOCK_TIMEOUT_S
from memo.stores.filesystem.owners import Place, Tree, Unsettled
from memo.stores.filesystem.records import FilesystemRecords
from memo.stores.filesystem.requests import RequestIndex
from memo.stores.filesystem.root import check_format, make_root
from memo.stores.filesystem.times import to_micros
from memo.stores.filesystem.turns import Turns
from memo.stores.filesystem.watching import Watcher
from memo.stores.options import StoreOptions
from memo.stores.prepared import check_author, prepare_artifact, prepare_document

R = TypeVar("R")

_BELL = "bell"
_THREADS = 8
_PATIENCE = 20
"""How often a call waits for a file that somebody is writing, before it takes the file as it is."""


class FilesystemStore(FilesystemRecords, FilesystemLedger, BaseStore):
    """Owns the open root, the change log, the bell and the watcher.

    `watch` off means that outside edits are found only when somebody asks for the document, or lists.
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
        self._bell: FileBell | None = None
        self._watcher: Watcher | None = None
        self._requests = RequestIndex()
        self._turns = Turns()
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
                hidden.check_file(_BELL)  # a bell is opened by its path, and ringing it writes to it
                with disk_errors(f"open {hidden.where(_BELL)}"):
                    bell = FileBell(self.path / HIDDEN / _BELL, self.options.feed_check_s)
                undo.callback(bell.close)
                log = ChangeLog(hidden, bell.ring)
            undo.pop_all()  # from here on they are closed by us
        self._bell = bell
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
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.ring()  # whoever waits for a change wakes up and finds the store closed
            bell.close()

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
        """Do the work; while somebody outside writes the file, wait a moment and try again, without the lock."""
        for _ in range(_PATIENCE):
            try:
                return await self._in_thread(lambda tree: work(tree, self._settle_s))
            except Unsettled:
                await anyio.sleep(self._settle_s)  # the only sign that an editor is done is that it does no more
        return await self._in_thread(lambda tree: work(tree, 0))

    async def _read(self, owner: Owner, query: Callable[[Place | None], R]) -> R:
        return await self._settled(lambda tree, settle_s: tree.read(owner, query, settle_s))

    async def _write(self, owner: Owner, change: Callable[[Place], R]) -> R:
        def work(tree: Tree, settle_s: float) -> R:
            with tree.exclusive(owner, settle_s) as place:
                return change(place)

        async with self._turns.of(owner):
            return await self._settled(work)

    async def _prepared(self, prepare: Callable[[], R]) -> R:
        return await self._in_thread(lambda _: prepare())

    def _now(self) -> int:
        return to_micros(self.options.clock())

    async def read_document(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        return await self._read(Owner.of(key), lambda place: documents.read(place, key, revision))

    async def write_document(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Document:
        check_author(author)
        text = await self._prepared(lambda: prepare_document(content, self.options))
        return await self._write(Owner.of(key), lambda place: documents.write(place, key, text, expected, author))

    async def append_document(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Document:
        check_author(author)
        encode_text("document", content, self.options.limits.document_bytes)
        return await self._write(Owner.of(key), lambda place: documents.append(place, key, content, author))

    async def list_documents(self, tenant: TenantId, owner: OwnerId, scope: Scope) -> list[DocumentEntry]:
        return await self._read(Owner(tenant, scope, owner), documents.list_of)

    async def document_history(self, key: DocumentKey, limit: int | None = None) -> list[Revision]:
        return await self._read(Owner.of(key), lambda place: documents.history(place, key, limit))

    async def redact_document(self, key: DocumentKey, revision: int, *, author: Author = HOST) -> list[int]:
        check_author(author)
        return await self._write(Owner.of(key), lambda place: documents.redact(place, key, revision, author))

    async def write_artifact(self, key: ArtifactKey, content: str) -> ArtifactEntry:
        text = await self._prepared(lambda: prepare_artifact(content, self.options))
        return await self._write(Owner.of_session(key.session), lambda place: artifacts.write(place, key, text))

    async def read_artifacts(self, session: SessionRef, tool_calls: Iterable[str]) -> dict[ToolCallId, str]:
        wanted = [ToolCallId(call) for call in tool_calls]
        return await self._read(Owner.of_session(session), lambda place: artifacts.read_many(place, session, wanted))

    async def read_artifact_range(self, key: ArtifactKey, start: int, length: int) -> bytes | None:
        query = partial(artifacts.read_range, key=key, start=start, length=length)
        return await self._read(Owner.of_session(key.session), query)

    async def list_artifacts(self, session: SessionRef) -> list[ArtifactEntry]:
        return await self._read(Owner.of_session(session), lambda place: artifacts.list_of(place, session))

    def changes(self, since: int = 0) -> ChangeStream:
        if self._bell is None:
            raise Unavailable("cannot use this store: it is closed")
        return ChangeStream(self._read_changes, self._bell.listen, max(since, 0))

    async def _read_changes(self, since: int, limit: int) -> list[Change]:
        return await self._in_thread(lambda tree: tree.log.read(since, limit))

    async def last_change(self) -> int:
        return await self._in_thread(lambda tree: tree.log.last())

    async def _make_session(self, ref: SessionRef, user: UserId, agent: AgentId) -> Session:
        root = self._require_tree().root
        make = partial(sessions.make, root, user=user, agent=agent, now=self._now())
        return await self._write(Owner.of_session(ref), make)

    async def _get_session(self, ref: SessionRef) -> Session | None:
        return await self._read(Owner.of_session(ref), lambda place: sessions.get(place, ref))

    async def _load_tail(self, ref: SessionRef, limit: int | None) -> list[StoredMessage]:
        return await self._read(Owner.of_session(ref), lambda place: messages.tail(place, ref, limit))

    async def _load_within(self, ref: SessionRef, token_budget: int) -> list[StoredMessage]:
        return await self._read(Owner.of_session(ref), lambda place: messages.within(place, ref, token_budget))

    async def _load_history(self, ref: SessionRef) -> list[Message]:
        return await self._read(Owner.of_session(ref), lambda place: messages.history(place, ref))

    async def _visible_size(self, ref: SessionRef) -> tuple[int, int]:
        record = await self._read(Owner.of_session(ref), lambda place: messages.record_of(place, ref))
        return record.state.count, record.state.message_tokens

    async def _commit_turn(
        self, ref: SessionRef, encoded: list[EncodedMessage], usage: Usage | None, request: str | None
    ) -> None:
        if await self._get_session(ref) is None:
            messages.record_of(None, ref)  # before the lock of an unknown session would make its directory

        root = self._require_tree().root

        def commit(place: Place) -> None:
            record = messages.record_of(place, ref)
            if request is None or self._requests.is_first(place, request):
                if encoded:
                    pending.mark(root, ref)  # before the commit: a mark too many is harmless, one too few is not
                messages.commit_turn(place, record, encoded, usage, request, self._now())

        await self._write(Owner.of_session(ref), commit)

    async def _commit_compaction(self, ref: SessionRef, compaction: Compaction, summary: EncodedMessage) -> bool:
        now = self._now()
        return await self._write(
            Owner.of_session(ref), lambda place: archives.compact(place, ref, compaction, summary, now)
        )

    async def list_sessions(self, tenant: str | None = None) -> list[Session]:
        wanted = None if tenant is None else TenantId(tenant)
        return await self._on_root(lambda root: sessions.list_all(root, wanted))

    async def list_sessions_by_user(self, tenant: str, user: str) -> list[SessionMeta]:
        ref = UserRef.of(tenant, user)
        return await self._on_root(lambda root: sessions.list_of_user(root, ref))

    async def list_users(self) -> list[UserRef]:
        return await self._on_root(sessions.list_users)

    def _journal(self, ref: SessionRef) -> FilesystemJournal:
        return FilesystemJournal(self._on_root, ref)
