"""Memory: everything the daemon does with documents and artifacts, behind one class.

Owns <data>/mirrors, <data>/blobs, <data>/outbox.db and the tasks that keep mirrors current. The store is the truth and
a mirror is a cache: nothing here is read to decide what the store holds. It does not depend on engines.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from memo.compaction import CompactionOptions
from memo.documents import (
    ABSENT,
    ANY,
    HOST,
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
    summary_of,
)
from memo.errors import Absent, Unsupported
from memo.ids import OwnerId, SessionRef, TenantId, UserId
from memo.leases import Lease
from memo.ledger import Settlement
from memo.limits import StoreLimits, encode_text
from memo.paths import ArtifactPath, key_at, parse_path
from memo.sessions import Session, Summarize
from sandboxd import failpoints
from sandboxd.errors import HostFull
from sandboxd.events import EventBus
from sandboxd.memory import tree
from sandboxd.memory.agent_memory import AgentMemory
from sandboxd.memory.announcer import Announcer
from sandboxd.memory.blob_warmer import BlobWarmer
from sandboxd.memory.blobs import Blobs
from sandboxd.memory.delivery import Delivery
from sandboxd.memory.key_locks import KeyLocks
from sandboxd.memory.manifest_writer import ManifestWriter
from sandboxd.memory.mirror import Mirrors
from sandboxd.memory.mirror_builder import MirrorBuilder
from sandboxd.memory.mirror_reader import MirrorReader
from sandboxd.memory.outbox import Outbox, PendingWrite
from sandboxd.memory.outcomes import Committed, Key, Queued
from sandboxd.memory.refresher import Refresher
from sandboxd.memory.session_copier import SessionCopier
from sandboxd.memory.store_client import StoreClient
from sandboxd.memory.text import Text
from sandboxd.memory.verifier import Verifier
from sandboxd.memory.writer import Writer
from sandboxd.models.mirror import MirrorFile, RefusedWrite
from sandboxd.permissions import make_private

_UNKNOWN_TIME = datetime.fromtimestamp(0, UTC)


class Memory(anyio.AsyncContextManagerMixin):
    """Use it as an async context manager. Everything it raises is a SandboxdError or a MemoError."""

    def __init__(
        self,
        data: Path,
        store: object,
        *,
        events: EventBus,
        gid: int | None = None,
        limits: StoreLimits | None = None,
        outbox: bool = False,
        store_timeout_s: float = 10.0,
        verify_s: float = 60.0,
        blob_bytes: int = 1024 * 1024 * 1024,
        is_shown: Callable[[str], bool] = lambda sandbox_id: True,
    ) -> None:
        """`is_shown` returns whether a sandbox's container still shows its mirror; called before verifying."""
        self._store = StoreClient(store, limits or StoreLimits(), store_timeout_s)
        self.capabilities = self._store.capabilities
        self._root = (data / "mirrors").resolve()  # may be a link: resolved once, not for every file
        self._blobs = Blobs((data / "blobs").resolve(), gid=gid)
        self._mirrors = Mirrors(self._root, self._blobs)
        self._locks = KeyLocks()
        self._announcer = Announcer(events)
        path = data / "outbox.db"
        # Also without the setting, because an earlier daemon may have queued writes.
        self._outbox = Outbox(path) if outbox or path.exists() else None
        self._refresher = Refresher(
            self._mirrors, self._store, self._locks, self._announcer, self._pending, self._resync
        )
        self._builder = MirrorBuilder(self._mirrors, self._store, self._refresher, self._announcer, self._outbox)
        self._verifier = Verifier(
            self._mirrors, self._store, self._locks, self._refresher, self._announcer, self._pending, is_shown
        )
        self._warmer = BlobWarmer(self._mirrors, blob_bytes)
        self._manifests = ManifestWriter(self._mirrors)
        self._reader = MirrorReader(self._store, self._mirrors, self._locks, self._outbox)
        self._writer = Writer(
            self._store,
            self._mirrors,
            self._reader,
            self._locks,
            self._refresher,
            self._manifests,
            self._announcer,
            self._warmer,
            self._outbox,
            queues=outbox,
        )
        self.copier = SessionCopier(self._store)
        """Copies the memory of one session to another."""
        self.agents = AgentMemory(self)
        """Documents as agents read and write them."""
        self._verify_s = verify_s
        self._blob_bytes = blob_bytes
        self._tasks: TaskGroup

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        await to_thread.run_sync(self._clean_up)
        async with self._open_outbox():
            try:
                async with anyio.create_task_group() as tasks:
                    self._tasks = tasks
                    await self._start_tasks(tasks)
                    yield self
                    tasks.cancel_scope.cancel()
            finally:
                self._refresher.close()

    @asynccontextmanager
    async def _open_outbox(self) -> AsyncGenerator[None]:
        if self._outbox is None:
            yield
            return
        await self._outbox.open()
        try:
            yield
        finally:
            await self._outbox.aclose()

    async def _start_tasks(self, tasks: TaskGroup) -> None:
        self._builder.start(tasks)
        await self._builder.connect()
        self._refresher.start(tasks)
        tasks.start_soon(self._manifests.run)
        tasks.start_soon(self._warmer.run)
        tasks.start_soon(self._verifier.run, self._verify_s, self._blob_bytes)
        if self._outbox is not None:
            delivery = Delivery(self._outbox, self._store, self._locks, self._refresher, self._announcer)
            tasks.start_soon(delivery.run)

    @property
    def client(self) -> StoreClient:
        """The store for everything that is not mirrored: sessions, messages, usage."""
        return self._store

    # Mirrors of live sandboxes

    async def create(self, sandbox_id: str, ref: SessionRef, user: UserId) -> Path:
        """Fill <data>/mirrors/<sandbox_id> with everything the store has, or raise and leave it empty."""
        return await self._builder.create(sandbox_id, ref, user)

    async def adopt(self, sandbox_id: str, ref: SessionRef, user: UserId) -> Path:
        """Adopt an earlier daemon's mirror: verify it by hash and repair it. With the store down it stays as it is."""
        return await self._builder.adopt(sandbox_id, ref, user)

    def drop(self, sandbox_id: str) -> None:
        """Stop tracking a mirror. Once this returns nothing changes its directory, so it can be removed."""
        mirror = self._mirrors.drop(sandbox_id)
        if mirror is not None:
            self.agents.forget(mirror.ref)

    async def refresh(self, ref: SessionRef, path: str | None = None, content: str | None = None) -> int:
        """Refresh one file of the session's mirror, or all. Return how many files are current; 0 without a sandbox."""
        mirror = self._mirrors.of_session(ref)
        if mirror is None:
            return 0
        if path is None:
            await self._builder.refill(mirror)
            return len(mirror.shown)
        return await self._refresh(key_at(path, ref, mirror.user), content)

    async def refresh_user(self, tenant: TenantId, user: UserId, name: str, content: str | None = None) -> int:
        """Refresh a user's document in every live sandbox. Return how many show it."""
        return await self._refresh(DocumentKey.of_user(tenant, user, name), content)

    async def inspect(self, ref: SessionRef) -> list[MirrorFile]:
        """Compare the session's mirror with the store, file by file; empty without a live sandbox."""
        mirror = self._mirrors.of_session(ref)
        return [] if mirror is None else await self._verifier.inspect(mirror)

    async def verify(self, ref: SessionRef) -> int:
        """Find and repair drift in the session's mirror now; return how many files were affected."""
        mirror = self._mirrors.of_session(ref)
        return 0 if mirror is None else await self._verifier.verify(mirror)

    # Documents and artifacts

    async def read(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        text = await self._store.read_revision(key, revision)
        if text is not None and revision is not None and text.revision != revision:
            raise Unsupported(f"cannot read revision {revision} of {key.name}: this store keeps no history")
        return None if text is None else text.document()

    async def newest(self, key: DocumentKey) -> Document | None:
        """Return the document including its queued writes; None if it was never written."""
        return await self._reader.newest(key)

    async def text_at(self, key: DocumentKey, revision: Expected) -> str | None:
        """Return the document's text at a revision, or None if it is no longer known."""
        return await self._reader.text_at(key, revision)

    async def mirrored(self, ref: SessionRef, key: DocumentKey) -> Document | None:
        """Return what the session's mirror shows; None if it shows nothing or is not known."""
        return await self._reader.mirrored(ref, key)

    async def write(
        self,
        key: DocumentKey,
        content: str,
        *,
        expected: Expected = ANY,
        author: Author = HOST,
        merge: bool = False,
    ) -> Committed | Queued:
        """Commit, then mirror. Raise WriteConflict with the newer text if the document is not at `expected`."""
        return await self._writer.write(key, content, expected, author, merge=merge)

    async def append(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Committed | Queued:
        return await self._writer.append(key, content, author)

    async def delete(self, key: DocumentKey, *, expected: Expected = ANY, author: Author = HOST) -> Revision:
        """Delete, then remove it from mirrors. Raise Absent, or WriteConflict with the newer text."""
        return await self._writer.delete(key, expected, author)

    async def move(
        self, key: DocumentKey, to: DocumentName, *, expected: Expected = ANY, author: Author = HOST
    ) -> MovedDocument:
        """Rename, then move it in mirrors. Raise Absent, NameTaken, or WriteConflict with the newer text."""
        return await self._writer.move(key, to, expected, author)

    async def deletion(self, key: DocumentKey) -> Revision | None:
        """Return the deletion of a document; None if it exists, was never written, or the store keeps no history."""
        if not (self.capabilities.history and self.capabilities.delete_documents):
            return None
        newest = next(iter(await self.history(key, 1)), None)
        return newest if newest is not None and newest.deleted else None

    async def repeated(self, key: DocumentKey, author: Author) -> Committed | Queued | None:
        """Return the outcome of this author's request if it was carried out before. Changes nothing."""
        return await self._writer.repeated(key, author)

    async def read_artifact(self, key: ArtifactKey) -> Document | None:
        if not self.capabilities.read_artifacts:
            raise Unsupported(f"cannot read artifact {key.tool_call}: this store cannot read artifacts")
        text = await self._store.read_artifact(key)
        return None if text is None else text.document()

    async def write_artifact(
        self, key: ArtifactKey, content: str, *, based_on: str | None = None, author: Author = HOST
    ) -> Committed | Queued:
        """Commit, then mirror. Raise WriteConflict if the store's text does not have the hash `based_on`."""
        return await self._writer.write_artifact(key, content, author, based_on=based_on)

    async def write_back(self, ref: SessionRef, path: str, content: str, author: Author = HOST) -> Committed | Queued:
        """Commit what was written at a memo path of a session's container, then mirror it."""
        key = key_at(path, ref, await self._user_at(ref, path))
        if isinstance(key, ArtifactKey):
            return await self.write_artifact(key, content, author=author)
        return await self.write(key, content, author=author)

    async def _user_at(self, ref: SessionRef, path: str) -> UserId:
        """Return the user whose documents the path may name: of the session's mirror, else in the store."""
        mirror = self._mirrors.of_session(ref)
        if mirror is not None:
            return mirror.user
        parsed = parse_path(path)
        if isinstance(parsed, ArtifactPath) or parsed.scope is Scope.SESSION:
            return UserId(ref.session)  # not part of the key
        found = await self._store.call(f"write {path}", "get_session", str(ref.tenant), str(ref.session))
        if found is None:
            raise Absent(f"cannot write {path}: the session has no sandbox, and the store does not have it")
        return Session.parse(found, ref.tenant).user

    def shown_hash(self, key: ArtifactKey) -> str:
        """Return the hash of what the session's mirror shows; empty if it shows nothing."""
        return self._reader.shown_hash(key)

    async def shown(self, ref: SessionRef, path: str) -> Expected:
        """Return the revision that the session's mirror shows at a memo path, on which an edit is based."""
        mirror = self._mirrors.of_session(ref)
        return ABSENT if mirror is None else self._reader.shown(key_at(path, ref, mirror.user))

    async def list(self, tenant: TenantId, owner: OwnerId, scope: Scope, prefix: str = "") -> list[DocumentEntry]:
        """Return the documents whose names start with the prefix. Filtered here, because any store can do this much."""
        if self.capabilities.list_documents:
            found = await self._store.list_entries(tenant, owner, scope)
            return [entry for entry in found if entry.key.name.startswith(prefix)]
        entries = []
        for item in await self._store.list_documents(tenant, owner, scope):
            if isinstance(item.key, DocumentKey) and not item.key.name.startswith(prefix):
                continue
            text = await self._store.read(item.key)
            if text is not None and isinstance(item.key, DocumentKey):
                entries.append(_entry(item.key, text))
        return entries

    async def history(self, key: DocumentKey, limit: int | None = None) -> Sequence[Revision]:
        self._require_history(key)
        revisions: Sequence[Revision] = await self._store.call(
            f"read the history of {key.name}", "document_history", key, limit
        )
        return revisions

    async def diff(self, key: DocumentKey, before: int, after: int) -> str:
        self._require_history(key)
        return str(await self._store.call(f"compare revisions of {key.name}", "diff_document", key, before, after))

    async def compact(
        self, ref: SessionRef, summarize: Summarize, options: CompactionOptions, summariser_s: float = 0
    ) -> bool:
        """Compact the session's log if it is due, append to its notes and show them; return whether it was due."""
        return await self._writer.compact(ref, summarize, options, summariser_s)

    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        """Commit a consolidation run and show its document: a memo.ledger.SettlementWriter."""
        return await self._writer.settle(lease, settlement)

    async def restore(self, key: DocumentKey, revision: int, author: Author = HOST) -> Committed:
        self._require_history(key)
        return await self._writer.restore(key, revision, author)

    @property
    def waiting(self) -> int:
        """How many writes are queued for the store."""
        return 0 if self._outbox is None else len(self._outbox)

    def refused(self, ref: SessionRef | None = None) -> Sequence[RefusedWrite]:
        """Return the queued writes that the store will never accept: of one session and its user, or all."""
        found = [] if self._outbox is None else self._outbox.refused()
        if ref is None:
            return [write for _key, write in found]
        mirror = self._mirrors.of_session(ref)
        return [write for key, write in found if mirror is not None and mirror in self._mirrors.showing(key)]

    def _require_history(self, key: DocumentKey) -> None:
        if not self.capabilities.history:
            raise Unsupported(f"cannot look up revisions of {key.name}: this store keeps no history")

    def _resync(self) -> None:
        self._builder.resync()

    def _pending(self, key: Key) -> PendingWrite | None:
        return None if self._outbox is None else self._outbox.pending(key)

    async def _refresh(self, key: Key, content: str | None) -> int:
        if content is not None:
            limits = self._store.limits
            is_artifact = isinstance(key, ArtifactKey)
            encoded = encode_text("text", content, limits.artifact_bytes if is_artifact else limits.document_bytes)
            if is_artifact and not self.capabilities.read_artifacts:
                # The store cannot be read, so the given text is the newest.
                async with self._locks.hold(key):
                    return await self._mirrors.install(key, Text.of(encoded), revisioned=False)
        await failpoints.reach("refresh.heard")
        count = await self._refresher.refresh(key)
        await self._manifests.flush(self._mirrors.showing(key))
        await failpoints.reach("refresh.manifest")
        return count

    def _clean_up(self) -> None:
        try:
            make_private(self._root)
            self._blobs.open()
            tree.sweep(self._root)
        except OSError as error:
            raise HostFull(f"cannot use {self._root.parent}: {error.strerror or error}") from error


def _entry(key: DocumentKey, text: Text) -> DocumentEntry:
    """Describe a document of a store that cannot list; the time of its last write is unknown."""
    content = text.encoded.decode()
    return DocumentEntry(
        key,
        text.revision,
        text.sha256,
        len(text.encoded),
        _UNKNOWN_TIME,
        summary_of(content),
        -(-len(content) // 4),
        False,
    )
