"""A stand-in for manager, runner and mirrors, served for real: uvicorn on a unix socket, commands as host processes.

It keeps the contracts the API relies on and nothing else: no container, no registry. Files are kept in memory.
Memory is a real store without mirrors.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import signal
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from memo.documents import (
    ANY,
    HOST,
    NOTES,
    ArtifactKey,
    Author,
    Document,
    DocumentEntry,
    DocumentKey,
    Expected,
    Revision,
    Scope,
    sha256_of,
)
from memo.errors import RevisionConflict, Unsupported
from memo.ids import OwnerId, SessionRef, TenantId, UserId
from memo.limits import StoreLimits
from memo.paths import DocumentPath
from memo.sessions import Summarize
from sandboxd.api.admission import MAX_CALLS
from sandboxd.api.app import create_app
from sandboxd.api.budget import MEMORY_BYTES, ByteBudget
from sandboxd.api.connection_table import ConnectionTable
from sandboxd.api.guard import TcpGuard
from sandboxd.consolidation.service import ConsolidationService
from sandboxd.daemon.server import Server
from sandboxd.errors import (
    Busy,
    Conflict,
    DirectoryNotEmpty,
    FileExists,
    FileNotFound,
    InvalidRequest,
    ProcessNotFound,
    SandboxNotFound,
    StoreUnavailable,
)
from sandboxd.events import EventBus
from sandboxd.idempotency import IdempotencyStore
from sandboxd.limits import Limits
from sandboxd.memory import Memory, Queued, Written
from sandboxd.memory.agent_memory import AgentMemory
from sandboxd.memory.store_client import StoreClient
from sandboxd.metrics import Metrics
from sandboxd.models.command import ExecOutput
from sandboxd.models.files import DirectoryPage, FileInfo
from sandboxd.models.health import Check, Readiness
from sandboxd.models.mirror import MirrorFile, RefusedWrite
from sandboxd.models.process import KilledProcess, Process, ProcessOutput, SignalName, SignalTarget
from sandboxd.models.sandbox import GarbageReport, SandboxRequest, SandboxView, Stats
from sandboxd.runner import protocol
from sandboxd.runner.calls import CommandResult, Edited, Exec, GlobResult, Grep, GrepResult, Terminal, TextSlice
from sandboxd.wire_limits import WireLimits


@dataclass
class StandInRunner:
    files: dict[str, bytes] = field(default_factory=dict)
    directories: set[str] = field(default_factory=lambda: {"/workspace"})
    processes: dict[str, tuple[Process, bytearray]] = field(default_factory=dict)
    calls: list[Exec] = field(default_factory=list)
    killed: int = 0
    grown: int = 0
    removal_pause_s: float = 0
    write_pause_s: float = 0
    """How long a write waits before it takes the first byte."""
    stdin_room: int = 1 << 30
    signals: list[tuple[Any, ...]] = field(default_factory=list)
    terminals: list[bool | Terminal] = field(default_factory=list)

    async def exec(self, call: Exec) -> CommandResult:
        stdout, stderr = bytearray(), bytearray()
        async with self.stream(call) as items:
            async for item in items:
                if isinstance(item, CommandResult):
                    return CommandResult(
                        exit_code=item.exit_code,
                        stdout=bytes(stdout),
                        stderr=bytes(stderr),
                        timed_out=item.timed_out,
                        truncated=item.truncated,
                        duration_ms=item.duration_ms,
                    )
                (stdout if item.stream == "stdout" else stderr).extend(item.data)
        raise AssertionError("a stream ends with its result")

    @asynccontextmanager
    async def stream(self, call: Exec) -> AsyncIterator[AsyncIterator[ExecOutput | CommandResult]]:
        protocol.exec_head(call)  # what cannot be run anywhere is refused by every runner
        self.calls.append(call)
        if call.command == ("boom",):
            raise ZeroDivisionError("a bug of the daemon")
        command = ["sh", "-c", call.command] if isinstance(call.command, str) else list(call.command)
        with anyio.CancelScope(shield=True):  # a call cancelled this early counts as killed and leaves no process
            process = await anyio.open_process(
                command,
                stdin=subprocess.PIPE,
                stderr=subprocess.STDOUT if call.merge_stderr else subprocess.PIPE,
                env={"PATH": os.environ["PATH"], **call.env},
                start_new_session=True,
            )
        failure: list[Exception] = []
        feeding = asyncio.ensure_future(_feed(process, call.stdin, failure))
        items = self._items(process, call)
        try:
            yield items
            if failure:
                raise failure[0]
        finally:
            await items.aclose()
            feeding.cancel()
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                self.killed += 1
            with anyio.CancelScope(shield=True):
                await process.aclose()

    async def _items(self, process: anyio.abc.Process, call: Exec) -> Any:
        assert process.stdout
        started = time.perf_counter()
        with anyio.move_on_after(call.timeout_s) as deadline:
            async for piece in process.stdout:
                yield ExecOutput("stdout", piece)
            if process.stderr:
                async for piece in process.stderr:
                    yield ExecOutput("stderr", piece)
            await process.wait()
        if deadline.cancelled_caught:
            os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.wait()
        code = None if deadline.cancelled_caught else process.returncode
        duration_ms = (time.perf_counter() - started) * 1000
        yield CommandResult(
            exit_code=code,
            stdout=b"",
            stderr=b"",
            timed_out=deadline.cancelled_caught,
            truncated=False,
            duration_ms=duration_ms,
        )

    async def start_process(self, call: Exec, *, tty: bool | Terminal = False) -> Process:
        self.terminals.append(tty)
        process = Process(
            id=f"p{len(self.processes) + 1}",
            command=str(call.command),
            started_at=time.time(),
            running=True,
            exit_code=None,
            output_bytes=0,
        )
        self.processes[process.id] = (process, bytearray())
        return process

    async def list_processes(self) -> list[Process]:
        return [process for process, _ in self.processes.values()]

    async def read_process(
        self, process_id: str, offset: int = 0, limit: int = 262_144, wait_s: float = 0
    ) -> ProcessOutput:
        process, written = self._process(process_id)
        data = bytes(written[offset : offset + limit])
        return ProcessOutput(process=process, offset=offset, data=data, next_offset=offset + len(data))

    async def write_process(self, process_id: str, data: bytes, *, eof: bool = False) -> int:
        """Takes at most `stdin_room` bytes in all; with no room left it does not read any more."""
        taken = data[: self.stdin_room]
        if data and not taken:
            raise Busy(f"cannot write to {process_id}: it does not read its stdin, and nothing was written")
        self._process(process_id)[1].extend(taken)
        self.stdin_room -= len(taken)
        return len(taken)

    async def resize_process(self, process_id: str, rows: int, columns: int) -> None:
        self._process(process_id)

    async def signal_process(self, process_id: str, name: SignalName, to: SignalTarget | None = None) -> int:
        self._process(process_id)
        self.signals.append((process_id, name, to))
        return 1

    async def kill_process(self, process_id: str, name: SignalName = "KILL", grace_s: float = 0) -> KilledProcess:
        old, written = self._process(process_id)
        self.signals.append((process_id, name, grace_s))
        ended = {"running": False, "exit_code": 137, "output_bytes": len(written), "ended_by": name}
        process = KilledProcess(**{**dict(old), **ended})
        self.processes[process_id] = (process, written)
        return process

    @asynccontextmanager
    async def read_file(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[_Reader]:
        yield _Reader(
            FileInfo(path=path, size_bytes=len(self._file(path)), mode=0o644, modified_at=0.0),
            self._file(path),
            self.grown,
        )

    async def write_file(
        self,
        path: str,
        data: AsyncIterable[bytes] | bytes,
        *,
        make_parents: bool = True,
        size_bytes: int | None = None,
    ) -> FileInfo:
        await anyio.sleep(self.write_pause_s)
        content = data if isinstance(data, bytes) else b"".join([piece async for piece in data])
        self.files[path] = content
        return FileInfo(path=path, size_bytes=len(content), mode=0o644, modified_at=time.time())

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        if path in self.directories:
            return FileInfo.of(path, 4096, stat.S_IFDIR | 0o755, None)
        return FileInfo.of(path, len(self._file(path)), stat.S_IFREG | 0o644, None)

    async def list_directory(self, path: str, after: str = "", limit: int = 10_000) -> DirectoryPage:
        names = sorted(name for name in self._entries(path) if name > f"{path}/{after}")
        entries = [await self.stat(name) for name in names[:limit]]
        return DirectoryPage(items=entries, next=names[limit - 1] if len(names) > limit else None)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self.stat(path)
        try:
            await anyio.sleep(self.removal_pause_s)
        except BaseException:
            self.killed += 1
            raise
        below = [name for name in (*self.files, *self.directories) if name.startswith(f"{path}/")]
        if below and not recursive:
            raise DirectoryNotEmpty(f"cannot remove {path}: the directory is not empty")
        for name in (path, *below):
            self.files.pop(name, None)
            self.directories.discard(name)

    async def make_directory(self, path: str, *, parents: bool = False) -> tuple[FileInfo, bool]:
        is_new = path not in self.directories
        if not is_new and not parents:
            raise FileExists(f"cannot make {path}: it exists already")
        self.directories.add(path)
        return await self.stat(path), is_new

    async def move(self, source: str, target: str, *, replace: bool = False) -> FileInfo:
        content = self._file(source)
        if target in self.files and not replace:
            raise FileExists(f"cannot move {source} to {target}: the target exists already")
        del self.files[source]
        self.files[target] = content
        return await self.stat(target)

    def _entries(self, path: str) -> list[str]:
        if path not in self.directories:
            raise FileNotFound(f"cannot list {path}: no such directory")
        return [name for name in (*self.files, *self.directories) if name.rpartition("/")[0] == path]

    async def read_text(self, path: str, offset: int = 1, limit: int = 2000) -> TextSlice:
        lines = self._file(path).decode().splitlines()
        part = tuple(lines[offset - 1 : offset - 1 + limit])
        return TextSlice(part, offset, len(lines), offset - 1 + len(part) < len(lines))

    async def edit_file(self, path: str, old: str, new: str, *, replace_all: bool = False) -> Edited:
        text = self._file(path).decode()
        count = text.count(old)
        if count == 0 or (count > 1 and not replace_all):
            raise InvalidRequest(f"cannot edit {path}: old_string is there {count} times")
        self.files[path] = text.replace(old, new).encode()
        return Edited(count, len(self.files[path]))

    async def glob(self, pattern: str, path: str = "/workspace", limit: int = 1000) -> GlobResult:
        return GlobResult(tuple(name for name in self.files if fnmatch.fnmatch(name, f"{path}/{pattern}")), False)

    async def grep(self, call: Grep) -> GrepResult:
        found = [name for name, content in self.files.items() if call.pattern.encode() in content]
        return GrepResult("".join(f"{name}\n" for name in found), bool(found), False)

    def _file(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFound(f"cannot read {path}: no such file")
        return self.files[path]

    def _process(self, process_id: str) -> tuple[Process, bytearray]:
        if process_id not in self.processes:
            raise ProcessNotFound(f"cannot find process {process_id}")
        return self.processes[process_id]


async def _feed(process: anyio.abc.Process, stdin: bytes | AsyncIterable[bytes], failure: list[Exception]) -> None:
    """Write stdin as the process reads it; a stream that fails ends the process and raises."""
    assert process.stdin
    try:
        with suppress(anyio.BrokenResourceError):
            if isinstance(stdin, bytes):
                await process.stdin.send(stdin)
            else:
                async for piece in stdin:
                    await process.stdin.send(piece)
        await process.stdin.aclose()
    except Exception as error:  # noqa: BLE001
        failure.append(error)
        os.killpg(process.pid, signal.SIGKILL)


class _Reader:
    def __init__(self, stat: FileInfo, content: bytes, grown: int) -> None:
        self.stat = stat
        self._content = content + b"+" * grown

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._content), 65_536):
            yield self._content[start : start + 65_536]


class StandInManager:
    def __init__(self) -> None:
        self.events = EventBus()
        self.runner = StandInRunner()
        self.views: dict[SessionRef, SandboxView] = {}
        self.mirrors: Memory | None = None
        """The real thing, if a test wants mirrors: one for each sandbox, named by its session."""

    async def ensure_sandbox(self, ref: SessionRef, request: SandboxRequest) -> SandboxView:
        if (view := self.views.get(ref)) is not None:
            if view.user != request.user:
                raise Conflict("cannot give this session to another user")
            return view
        self.views[ref] = SandboxView(
            tenant=ref.tenant,
            session=ref.session,
            user=request.user,
            agent=request.agent,
            state="ready",
            engine="standin",
            container="c1",
            created_at=datetime.now(UTC),
            from_pool=False,
            cause=None,
            image=request.image or "default",
            limits=(request.limits or Limits()).model_dump(),
        )
        if self.mirrors is not None:
            await self.mirrors.create(f"{ref.session}", ref, request.user)
        self.events.publish("sandbox", tenant=ref.tenant, session=ref.session, state="ready")
        return self.views[ref].model_copy(update={"created": True})

    def check_room(self) -> None:
        return

    def get(self, ref: SessionRef) -> SandboxView:
        if ref not in self.views:
            raise SandboxNotFound("cannot find a sandbox of this session")
        return self.views[ref]

    def of_tenant(self, tenant: TenantId) -> list[SandboxView]:
        return [view for view in self.views.values() if view.tenant == tenant]

    async def destroy(self, ref: SessionRef) -> None:
        self.get(ref)
        if self.mirrors is not None:
            self.mirrors.drop(ref.session)
        del self.views[ref]

    @contextmanager
    def call(self, ref: SessionRef) -> Iterator[StandInRunner]:
        self.get(ref)
        yield self.runner

    async def stats(self, ref: SessionRef) -> Stats:
        self.get(ref)
        return Stats(memory_bytes=1, cpu_seconds=0.5, pids=2)

    async def collect_garbage(self) -> GarbageReport:
        return GarbageReport(containers=0, directories=0, sandboxes=0)

    def states(self) -> dict[str, int]:
        return {"ready": len(self.views)}


class StandInMemory:
    """The writer on a real store. Its mirror shows what the store has."""

    def __init__(self, store: Any, manager: StandInManager, *, outbox: bool = False) -> None:
        self.store = store
        self.client = StoreClient(store, StoreLimits(), 10)
        self.capabilities = self.client.capabilities
        self.is_away = False
        self.artifact_hashes: dict[ArtifactKey, str] = {}
        self.refreshed: list[tuple[str, ...]] = []
        self.agents = AgentMemory(self)
        self._manager = manager
        self._outbox = outbox

    async def newest(self, key: DocumentKey) -> Document | None:
        return await self.read(key)

    async def text_at(self, key: DocumentKey, revision: Expected) -> str | None:
        document = await self.read(key, revision) if isinstance(revision, int) else None
        return None if document is None else document.content

    async def mirrored(self, ref: SessionRef, key: DocumentKey) -> Document | None:
        return await self.read(key)

    async def read(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        self._require_store()
        if self.capabilities.revisions:
            found: Document | None = await self.store.read_document(key, revision)
            return found
        text = await self.store.read_memory_document(key.tenant, key.owner, key.scope, key.name)
        return None if text is None else Document(text, 1, sha256_of(text.encode()))

    async def write(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST, merge: bool = False
    ) -> Written | Queued:
        if (queued := self._queued(key, content)) is not None:
            return queued
        self._require("revisions", "cannot write: this store is read-only")
        return _written(key, await self.store.write_document(key, content, expected=expected, author=author))

    async def append(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Written | Queued:
        if (queued := self._queued(key, content)) is not None:
            return queued
        self._require("revisions", "cannot write: this store is read-only")
        return _written(key, await self.store.append_document(key, content, author=author))

    async def repeated(self, key: DocumentKey, author: Author) -> Written | Queued | None:
        self._require_store()
        try:
            return _written(key, await self.store.write_document(key, "", expected=-1, author=author))
        except RevisionConflict:
            return None

    async def read_artifact(self, key: ArtifactKey) -> Document | None:
        self._require_store()
        text = await self.store.read_tool_result_artifact(key.session, key.tool_call)
        return None if text is None else Document(text, 1, sha256_of(text.encode()))

    def shown_hash(self, key: ArtifactKey) -> str:
        return self.artifact_hashes.get(key, "")

    async def write_artifact(
        self, key: ArtifactKey, content: str, *, based_on: str | None = None, author: Author = HOST
    ) -> Written | Queued:
        self._require("rich_artifacts", "cannot keep artifacts in this store")
        now = await self.read_artifact(key)
        if based_on is not None and now is not None and now.sha256 not in (based_on, sha256_of(content.encode())):
            raise RevisionConflict(f"cannot write artifact {key.tool_call}: it is another text", now)
        self.artifact_hashes[key] = sha256_of(content.encode())
        entry = await self.store.write_artifact(key, content)
        return Written(key, entry.revision, entry.sha256, entry.size_bytes)

    async def compact(self, ref: SessionRef, summarize: Summarize, **options: Any) -> bool:
        named = {"writes": True, **options}
        compacted = await self.client.call("compact", "compact_if_needed", ref.tenant, ref.session, summarize, **named)
        if compacted:
            await self.refresh(ref, str(DocumentPath(Scope.SESSION, NOTES)))
        return bool(compacted)

    async def list(self, tenant: TenantId, owner: OwnerId, scope: Scope) -> Sequence[DocumentEntry]:
        self._require("list_documents", "cannot list documents with this store")
        found: Sequence[DocumentEntry] = await self.store.list_documents(tenant, owner, scope)
        return found

    async def history(self, key: DocumentKey, limit: int | None = None) -> Sequence[Revision]:
        self._require("history", "cannot look back with this store")
        found: Sequence[Revision] = await self.store.document_history(key, limit)
        return found

    async def diff(self, key: DocumentKey, before: int, after: int) -> str:
        self._require("history", "cannot look back with this store")
        return str(await self.store.diff_document(key, before, after))

    async def restore(self, key: DocumentKey, revision: int, author: Author = HOST) -> Written | Queued:
        self._require("history", "cannot look back with this store")
        return _written(key, await self.store.restore_document(key, revision, author=author))

    async def refresh(self, ref: SessionRef, path: str | None = None, content: str | None = None) -> int:
        self.refreshed.append((str(ref), path or "", content or ""))
        return int(ref in self._manager.views)

    async def refresh_user(self, tenant: TenantId, user: UserId, name: str, content: str | None = None) -> int:
        self.refreshed.append((f"{tenant}:{user}", name, content or ""))
        return sum(view.user == user for view in self._manager.of_tenant(tenant))

    async def inspect(self, ref: SessionRef) -> Sequence[MirrorFile]:
        entries = await self.store.list_documents(ref.tenant, OwnerId(ref.session), Scope.SESSION)
        return [
            MirrorFile(
                path=f"session/{e.key.name}",
                revision=e.revision,
                sha256=e.sha256,
                size=e.size_bytes,
                in_sync=True,
                lag_ms=0.5,
            )
            for e in entries
        ]

    def refused(self, ref: SessionRef | None = None) -> Sequence[RefusedWrite]:
        return []

    def _require(self, capability: str, refusal: str) -> None:
        self._require_store()
        if not getattr(self.capabilities, capability):
            raise Unsupported(refusal)

    def _require_store(self) -> None:
        if self.is_away:
            raise StoreUnavailable("cannot reach the store")

    def _queued(self, key: DocumentKey, content: str) -> Queued | None:
        is_kept = self.is_away and self._outbox
        return Queued(key, 1, sha256_of(content.encode()), len(content.encode())) if is_kept else None


def _written(key: DocumentKey, document: Document) -> Written:
    return Written(key, document.revision, document.sha256, len(document.content.encode()))


@dataclass
class World:
    """The API, served on a unix socket and on TCP with a token."""

    manager: StandInManager
    socket: Path
    url: str
    token: str
    directory: Path
    memory: StandInMemory | None = None
    ready: bool = True
    budget: ByteBudget = field(default_factory=ByteBudget)


@asynccontextmanager
async def serving(
    directory: Path,
    manager: StandInManager | None = None,
    *,
    store: Any = None,
    outbox: bool = False,
    mirrored: bool = False,
    store_limits: StoreLimits | None = None,
    consolidation: ConsolidationService | None = None,
    max_calls: int = MAX_CALLS,
    wire: WireLimits | None = None,
    drain_s: float = 5,
    call_memory_bytes: int = MEMORY_BYTES,
    store_timeout_s: float = 10,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[World]:
    """Serve the API. With a store it has memory: a stand-in's, or with `mirrored` the real one."""
    manager = manager or StandInManager()
    memory = None if store is None or mirrored else StandInMemory(store, manager, outbox=outbox)
    stack = AsyncExitStack()
    if mirrored:
        manager.mirrors = Memory(
            directory / "data",
            store,
            events=manager.events,
            limits=store_limits,
            outbox=outbox,
            store_timeout_s=store_timeout_s,
        )
    token = "t" * 32
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        path = directory / "api.sock"
        path.unlink(missing_ok=True)
        unix.bind(str(path))
        port = tcp.getsockname()[1]
        world = World(
            manager, path, f"{'http' if tls is None else 'https'}://127.0.0.1:{port}", token, directory, memory
        )

        async def readiness() -> Readiness:
            engine = Check(name="standin", ok=world.ready, detail="" if world.ready else "gone")
            return Readiness.of(engine=engine, store=Check(name="sqlite", ok=True), disk=Check(name="/data", ok=True))

        async with stack, IdempotencyStore(directory / "idempotency.db") as idempotency:
            if manager.mirrors is not None:
                await stack.enter_async_context(manager.mirrors)
            world.budget = ByteBudget(call_memory_bytes)
            app = create_app(
                manager,
                idempotency=idempotency,
                metrics=Metrics(states=manager.states, dropped=lambda: manager.events.dropped),
                readiness=readiness,
                version="0.0.1",
                memory=memory or manager.mirrors,
                store_limits=store_limits,
                consolidator=consolidation,
                max_calls=max_calls,
                budget=world.budget,
            )
            guarded = TcpGuard(app, token, [f"127.0.0.1:{port}", f"localhost:{port}"])
            connections = ConnectionTable(wire or WireLimits(), max_calls)
            server = Server(guarded, [unix, tcp], connections, drain_s=drain_s, tls=tls)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.run_until_stopped)
                await server.has_started.wait()
                try:
                    yield world
                finally:
                    server.stop()
