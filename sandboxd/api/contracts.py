"""What the routes need from the rest of the daemon, as Protocols: the manager, its runners and memory."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

from memo.compaction import CompactionOptions
from memo.documents import (
    ANY,
    HOST,
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
from memo.ids import OwnerId, SessionRef, TenantId, UserId
from memo.provider import Capabilities
from memo.sessions import Summarize
from sandboxd.contexts.contexts import ContextRunner
from sandboxd.events import EventBus
from sandboxd.history import EventHistory
from sandboxd.memory.outcomes import Committed, Queued
from sandboxd.memory.store_client import StoreClient
from sandboxd.metrics import PoolFigures
from sandboxd.models.command import ExecOutput
from sandboxd.models.files import ArchiveSummary, DirectoryPage, FileEvent, FileInfo
from sandboxd.models.fork import ForkRequest, ForkView
from sandboxd.models.mirror import MirrorFile, RefusedWrite
from sandboxd.models.network import ListeningPort
from sandboxd.models.process import Process, SignalName, SignalTarget
from sandboxd.models.sandbox import GarbageReport, SandboxPatch, SandboxRequest, SandboxView, Stats
from sandboxd.models.snapshot import SnapshotView
from sandboxd.network.audit import AuditLog
from sandboxd.network.byte_stream import ByteStream
from sandboxd.runner.calls import CommandResult, Exec, ProcessLabel, Terminal
from sandboxd.sandboxes.snapshots import SnapshotJob
from sandboxd.settings import Settings
from sandboxd.tools.context import ToolMemory, ToolRunner


class FileReader(Protocol):
    """An open file of the container: its metadata, then its bytes."""

    @property
    def stat(self) -> FileInfo: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...


class FileWatch(Protocol):
    """A directory being watched."""

    async def batch(self) -> list[FileEvent]:
        """Wait for events; none once the watch is over."""


class SandboxRunner(ToolRunner, ContextRunner, Protocol):
    """The calls that the API makes to the runner. `runner.client.RunnerClient` implements it."""

    def stream(self, call: Exec) -> AbstractAsyncContextManager[AsyncIterator[ExecOutput | CommandResult]]: ...
    async def start_process(
        self, call: Exec, *, tty: bool | Terminal = False, label: ProcessLabel | None = None
    ) -> Process: ...
    async def resize_process(self, process_id: str, rows: int, columns: int) -> None: ...
    async def signal_process(self, process_id: str, name: SignalName, to: SignalTarget | None = None) -> int: ...
    def read_file(
        self, path: str, offset: int = 0, length: int | None = None
    ) -> AbstractAsyncContextManager[FileReader]: ...
    async def stat(self, path: str, *, follow: bool = True) -> FileInfo: ...
    async def list_directory(self, path: str, after: str = "", limit: int = 10_000) -> DirectoryPage: ...
    async def remove(self, path: str, *, recursive: bool = False) -> None: ...
    async def make_directory(self, path: str, *, parents: bool = False) -> tuple[FileInfo, bool]: ...
    async def move(self, source: str, target: str, *, replace: bool = False) -> FileInfo: ...
    def read_archive(
        self, path: str, *, hold_processes: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...
    async def write_archive(self, path: str, data: AsyncIterable[bytes]) -> ArchiveSummary: ...
    async def list_ports(self) -> list[ListeningPort]: ...
    def dial(self, *, unix: str | None = None, port: int | None = None) -> AbstractAsyncContextManager[ByteStream]: ...
    def watch_directory(self, path: str, *, recursive: bool = False) -> AbstractAsyncContextManager[FileWatch]: ...


class SnapshotCatalogue(Protocol):
    """The snapshots that are ready. `snapshots.Snapshots` implements it."""

    def of_session(self, ref: SessionRef) -> list[SnapshotView]: ...
    def get(self, ref: SessionRef, snapshot_id: str) -> SnapshotView: ...
    async def remove(self, ref: SessionRef, snapshot_id: str) -> None: ...


class Manager(Protocol):
    """The sandboxes. `manager.SandboxManager` implements it."""

    @property
    def events(self) -> EventBus: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def history(self) -> EventHistory:
        """The events beyond the bus, also of earlier runs."""

    async def ensure_sandbox(self, ref: SessionRef, request: SandboxRequest) -> SandboxView:
        """Return the session's sandbox once it is ready; `created` says whether this call created it."""

    def check_room(self) -> None:
        """Raise if the host has no room for another sandbox."""

    def check_snapshot(self, ref: SessionRef, request: SandboxRequest) -> None:
        """Raise if the request names a snapshot that it cannot have."""

    async def check_network(self, ref: SessionRef, request: SandboxRequest) -> None:
        """Raise if the request asks for network access that it cannot have."""

    def audit(self, ref: SessionRef) -> AuditLog:
        """Return the record of what the session's sandbox has reached."""

    @property
    def snapshots(self) -> SnapshotCatalogue: ...

    async def take_snapshot(self, ref: SessionRef, name: str | None, request: str | None = None) -> SnapshotJob:
        """Begin a snapshot of the session's workspace; a repeated `request` returns the same one."""

    async def fork(self, ref: SessionRef, asked: ForkRequest, request: str | None = None) -> ForkView:
        """Make new sessions as copies of this one; a repeated `request` returns the same ones."""

    def get(self, ref: SessionRef) -> SandboxView:
        """Return the session's sandbox, or raise NotFound."""

    def of_tenant(self, tenant: TenantId) -> list[SandboxView]:
        """Return every sandbox of the tenant."""

    def find_all(self) -> list[SandboxView]:
        """Return the sandboxes of every tenant."""

    def idle_s(self, ref: SessionRef) -> float:
        """Return for how many seconds the sandbox has had no call."""

    async def disk_bytes(self) -> dict[SessionRef, int]:
        """Return the disk space of each workspace that has its own file system."""

    @property
    def states(self) -> dict[str, int]:
        """The number of sandboxes in each state."""

    @property
    def pool(self) -> PoolFigures: ...

    async def update(self, ref: SessionRef, patch: SandboxPatch) -> SandboxView:
        """Change the options of the session's sandbox."""

    async def pause(self, ref: SessionRef) -> SandboxView:
        """Freeze every process of the sandbox."""

    async def resume(self, ref: SessionRef) -> SandboxView:
        """Return the sandbox once it is ready, whether it was paused or hibernated."""

    async def hibernate(self, ref: SessionRef) -> SandboxView:
        """Remove the sandbox's container and keep its workspace."""

    async def destroy(self, ref: SessionRef) -> None:
        """Remove the sandbox, or raise NotFound."""

    async def call(self, ref: SessionRef) -> AbstractContextManager[SandboxRunner]:
        """Return the sandbox's runner for one call, once it is resumed if it may be.

        Raises NotFound, NotReady, Paused, Hibernated or Gone.
        """

    async def stats(self, ref: SessionRef) -> Stats:
        """Return the sandbox's current resource usage."""

    async def collect_garbage(self) -> GarbageReport:
        """Reconcile registry, engine and disk now, remove orphans, and return the report."""


class Memory(ToolMemory, Protocol):
    """The store, and the mirrors of live sandboxes. `memory.Memory` implements it.

    Every write goes through it: store first, then mirrors, then the answer.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def client(self) -> StoreClient:
        """The store, for data that is not mirrored: sessions, messages, usage."""

    async def read(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        """Return the newest or the given revision; None if it was never written."""

    async def write(
        self,
        key: DocumentKey,
        content: str,
        *,
        expected: Expected = ANY,
        author: Author = HOST,
        merge: bool = False,
    ) -> Committed | Queued:
        """Commit if the revision is still `expected`, then update the mirrors; raise RevisionConflict if it is not."""

    async def append(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Committed | Queued: ...
    async def delete(self, key: DocumentKey, *, expected: Expected = ANY, author: Author = HOST) -> Revision:
        """Delete if the revision is still `expected`, then update the mirrors; raise Absent or RevisionConflict."""

    async def move(
        self, key: DocumentKey, to: DocumentName, *, expected: Expected = ANY, author: Author = HOST
    ) -> MovedDocument:
        """Rename if the revision is still `expected`, then update the mirrors; raise NameTaken if `to` exists."""

    async def deletion(self, key: DocumentKey) -> Revision | None:
        """Return the deletion of a document; None if it is not deleted, or that is not known."""

    async def list(
        self, tenant: TenantId, owner: OwnerId, scope: Scope, prefix: str = ""
    ) -> Sequence[DocumentEntry]: ...
    async def history(self, key: DocumentKey, limit: int | None = None) -> Sequence[Revision]: ...
    async def diff(self, key: DocumentKey, before: int, after: int) -> str: ...
    async def restore(self, key: DocumentKey, revision: int, author: Author = HOST) -> Committed | Queued: ...

    async def compact(
        self, ref: SessionRef, summarize: Summarize, options: CompactionOptions, summariser_s: float = 0
    ) -> bool:
        """Compact the session's log if due, and update its notes in the mirrors; return whether it was due."""

    async def refresh(self, ref: SessionRef, path: str | None = None, content: str | None = None) -> int:
        """Refresh the session's mirror from the store; return how many files changed, 0 without a live sandbox."""

    async def refresh_user(self, tenant: TenantId, user: UserId, name: str, content: str | None = None) -> int:
        """Refresh one document of a user in every live mirror; return how many files changed."""

    async def inspect(self, ref: SessionRef) -> Sequence[MirrorFile]:
        """Compare every file of the session's mirror with the store."""

    def refused(self, ref: SessionRef | None = None) -> Sequence[RefusedWrite]:
        """Return queued writes that the store permanently rejected: those of one session and its user, or all."""
