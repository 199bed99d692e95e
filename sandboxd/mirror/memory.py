"""Everything the daemon does with memory: mirrors of live sandboxes, and the one door for writes.

Owns <data>/mirrors, <data>/blobs, <data>/outbox.db and the tasks that keep mirrors true. The store is the truth and
a mirror is a cache: nothing here is ever read to decide what the store holds. It knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from memo.documents import (
    ABSENT,
    ANY,
    HOST,
    ArtifactKey,
    Author,
    Document,
    DocumentEntry,
    DocumentKey,
    Expected,
    Revision,
    Scope,
    summary_of,
)
from memo.errors import Unsupported
from memo.ids import OwnerId, SessionRef, TenantId, UserId
from memo.limits import StoreLimits, encode_text
from memo.paths import key_at
from sandboxd import failpoints
from sandboxd.errors import HostFull
from sandboxd.events import EventBus
from sandboxd.mirror import manifests, tree
from sandboxd.mirror.agent_memory import AgentMemory
from sandboxd.mirror.announcing import Announcer
from sandboxd.mirror.answers import Key, MirrorFile, Queued, Refused, Written
from sandboxd.mirror.asking import Source
from sandboxd.mirror.blobs import Blobs
from sandboxd.mirror.delivering import Deliverer
from sandboxd.mirror.keeping import Keeper
from sandboxd.mirror.live import Mirrors
from sandboxd.mirror.outbox import Outbox, Pending
from sandboxd.mirror.refreshing import Refresher
from sandboxd.mirror.texts import Text
from sandboxd.mirror.turns import Turns
from sandboxd.mirror.verifying import Verifier
from sandboxd.mirror.warming import Warmer
from sandboxd.mirror.writing import Door
from sandboxd.permissions import make_private

_UNKNOWN_TIME = datetime.fromtimestamp(0, UTC)


class Memory(anyio.AsyncContextManagerMixin):
    """Use it as an async context manager. Everything raised is a SandboxdError or a MemoError."""

    def __init__(
        self,
        data: Path,
        store: object,
        *,
        events: EventBus,
        gid: int | None = None,
        limits: StoreLimits | None = None,
        outbox: bool = False,
        read_timeout_s: float = 10.0,
        verify_s: float = 60.0,
        blob_bytes: int = 1024 * 1024 * 1024,
        is_shown: Callable[[str], bool] = lambda sandbox_id: True,
    ) -> None:
        """`is_shown` says whether a sandbox's container still shows its mirror; asked before a mirror is verified."""
        self._source = Source(store, limits or StoreLimits(), read_timeout_s)
        self.store: Any = store
        self.capabilities = self._source.capabilities
        self._root = (data / "mirrors").resolve()  # each may be a link: looked up once, not for every file
        self._blobs = Blobs((data / "blobs").resolve(), gid=gid)
        self._mirrors = Mirrors(self._root, self._blobs)
        self._turns = Turns()
        self._announcer = Announcer(events)
        path = data / "outbox.db"
        # Also without the setting: what an earlier daemon promised to deliver is delivered.
        self._outbox = Outbox(path) if outbox or path.exists() else None
        self._refresher = Refresher(
            self._mirrors, self._source, self._turns, self._announcer, self._pending, self._resync
        )
        self._keeper = Keeper(self._mirrors, self._source, self._refresher, self._announcer, self._outbox)
        self._verifier = Verifier(
            self._mirrors, self._source, self._turns, self._refresher, self._announcer, self._pending, is_shown
        )
        self._warmer = Warmer(self._mirrors, blob_bytes)
        self._door = Door(
            self._source,
            self._mirrors,
            self._turns,
            self._refresher,
            self._announcer,
            self._warmer,
            self._outbox,
            keeps=outbox,
        )
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
        self._keeper.start(tasks)
        await self._keeper.connect()
        self._refresher.start(tasks)
        tasks.start_soon(manifests.write_manifests, self._mirrors)
        tasks.start_soon(self._warmer.run)
        tasks.start_soon(self._verifier.run, self._verify_s, self._blob_bytes)
        if self._outbox is not None:
            deliverer = Deliverer(self._outbox, self._source, self._turns, self._refresher, self._announcer)
            tasks.start_soon(deliverer.run)

    # Mirrors of live sandboxes

    async def create(self, sandbox_id: str, ref: SessionRef, user: UserId) -> Path:
        """Fill <data>/mirrors/<sandbox_id> with everything the store has, or raise and leave it empty."""
        return await self._keeper.create(sandbox_id, ref, user)

    async def adopt(self, sandbox_id: str, ref: SessionRef, user: UserId) -> Path:
        """Take over a mirror of an earlier daemon: verify by hash, repair. With the store down it stays as it is."""
        return await self._keeper.adopt(sandbox_id, ref, user)

    def drop(self, sandbox_id: str) -> None:
        """Track this mirror no longer. When this returns nothing changes its directory, so it can be removed."""
        mirror = self._mirrors.drop(sandbox_id)
        if mirror is not None:
            self.agents.forget(mirror.ref)

    async def refresh(self, ref: SessionRef, path: str | None = None, content: str | None = None) -> int:
        """Bring one file of the session's mirror, or all, up to date. Return how many files now are; 0: no sandbox."""
        mirror = self._mirrors.of_session(ref)
        if mirror is None:
            return 0
        if path is None:
            await self._keeper.refill(mirror)
            return len(mirror.shown)
        return await self._refresh(key_at(path, ref, mirror.user), content)

    async def refresh_user(self, tenant: TenantId, user: UserId, name: str, content: str | None = None) -> int:
        """Bring a document of a user up to date in every live sandbox. Return in how many it is."""
        return await self._refresh(DocumentKey.of_user(tenant, user, name), content)

    async def inspect(self, ref: SessionRef) -> list[MirrorFile]:
        """Compare the session's mirror with the store, file by file; without a live sandbox there is nothing."""
        mirror = self._mirrors.of_session(ref)
        return [] if mirror is None else await self._verifier.inspect(mirror)

    async def verify(self, ref: SessionRef) -> int:
        """Find and repair drift in the session's mirror now; return how many files were affected."""
        mirror = self._mirrors.of_session(ref)
        return 0 if mirror is None else await self._verifier.verify(mirror)

    # Documents and artifacts

    async def read(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        text = await self._source.read_revision(key, revision)
        if text is not None and revision is not None and text.revision != revision:
            raise Unsupported(f"cannot read revision {revision} of {key.name}: this store keeps no history")
        return None if text is None else text.document()

    async def newest(self, key: DocumentKey) -> Document | None:
        """Return the document with every write that waits for the store; None if it was never written."""
        return await self._door.newest(key)

    async def text_at(self, key: DocumentKey, revision: Expected) -> str | None:
        """Return what the document was at a revision, or None if that can no longer be told."""
        return await self._door.text_at(key, revision)

    async def mirrored(self, ref: SessionRef, key: DocumentKey) -> Document | None:
        """Return what the session's mirror shows; None if it shows nothing, or if that cannot be told."""
        return await self._door.mirrored(ref, key)

    async def write(
        self,
        key: DocumentKey,
        content: str,
        *,
        expected: Expected = ANY,
        author: Author = HOST,
        merge: bool = False,
    ) -> Written | Queued:
        """Commit, then mirror. Raise WriteConflict, with the newer text, if the document is not what was expected."""
        return await self._door.write(key, content, expected, author, merge=merge)

    async def append(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Written | Queued:
        return await self._door.append(key, content, author)

    async def repeated(self, key: DocumentKey, author: Author) -> Written | Queued | None:
        """Return what this author's request became, if it was carried out before. Changes nothing."""
        return await self._door.repeated(key, author)

    async def read_artifact(self, key: ArtifactKey) -> Document | None:
        if not self.capabilities.read_artifacts:
            raise Unsupported(f"cannot read artifact {key.tool_call}: this store cannot tell")
        text = await self._source.read_artifact(key)
        return None if text is None else text.document()

    async def write_artifact(
        self, key: ArtifactKey, content: str, *, based_on: str | None = None, author: Author = HOST
    ) -> Written | Queued:
        """Commit, then mirror. WriteConflict if the store has another text than the one with the hash `based_on`."""
        return await self._door.write_artifact(key, content, author, based_on=based_on)

    def shown_hash(self, key: ArtifactKey) -> str:
        """Return the hash of what the session's mirror shows; empty if it shows nothing."""
        return self._door.shown_hash(key)

    async def shown(self, ref: SessionRef, path: str) -> Expected:
        """Return the revision that the session's mirror shows at a memo path: what an edit there is based on."""
        mirror = self._mirrors.of_session(ref)
        return ABSENT if mirror is None else self._door.shown(key_at(path, ref, mirror.user))

    async def list(self, tenant: TenantId, owner: OwnerId, scope: Scope) -> list[DocumentEntry]:
        if self.capabilities.list_documents:
            return await self._source.entries(tenant, owner, scope)
        entries = []
        for item in await self._source.list_documents(tenant, owner, scope):
            text = await self._source.read(item.key)
            if text is not None and isinstance(item.key, DocumentKey):
                entries.append(_entry(item.key, text))
        return entries

    async def history(self, key: DocumentKey, limit: int | None = None) -> Sequence[Revision]:
        self._require_history(key)
        revisions: Sequence[Revision] = await self._source.ask(
            f"read the history of {key.name}", "document_history", key, limit
        )
        return revisions

    async def diff(self, key: DocumentKey, before: int, after: int) -> str:
        self._require_history(key)
        return str(await self._source.ask(f"compare revisions of {key.name}", "diff_document", key, before, after))

    async def restore(self, key: DocumentKey, revision: int, author: Author = HOST) -> Written:
        self._require_history(key)
        return await self._door.restore(key, revision, author)

    @property
    def waiting(self) -> int:
        """How many writes wait for the store in the outbox."""
        return 0 if self._outbox is None else len(self._outbox)

    def refused(self, ref: SessionRef | None = None) -> Sequence[Refused]:
        """Writes that were queued and that the store will never take: of one session and its user, or all."""
        found = [] if self._outbox is None else self._outbox.refused()
        if ref is None:
            return found
        mirror = self._mirrors.of_session(ref)
        return [item for item in found if mirror is not None and mirror in self._mirrors.showing(item.key)]

    def _require_history(self, key: DocumentKey) -> None:
        if not self.capabilities.history:
            raise Unsupported(f"cannot look into the past of {key.name}: this store keeps no history")

    def _resync(self) -> None:
        self._keeper.resync()

    def _pending(self, key: Key) -> Pending | None:
        return None if self._outbox is None else self._outbox.pending(key)

    async def _refresh(self, key: Key, content: str | None) -> int:
        if content is not None:
            limits = self._source.limits
            is_artifact = isinstance(key, ArtifactKey)
            encoded = encode_text("text", content, limits.artifact_bytes if is_artifact else limits.document_bytes)
            if is_artifact and not self.capabilities.read_artifacts:
                # Nobody else has this text: it is the newest there is.
                async with self._turns.of(key):
                    return await self._mirrors.install(key, Text.of(encoded), revisioned=False)
        await failpoints.reach("refresh.heard")
        count = await self._refresher.refresh(key)
        await manifests.flush(self._mirrors, self._mirrors.showing(key))
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
    """What can be said of a document whose store keeps no list: when it was written is not known."""
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
