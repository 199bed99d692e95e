"""OpenAI Agents SDK: a sandbox session over the daemon's calls. Manifests, patches and snapshots are the SDK's own.

A snapshot is a tar that is streamed to a temporary file, so a workspace may be of any size. Memory is the session's
`memo/` directory: reading and writing a document there goes to the store, and a snapshot never contains it, so
restoring one brings no older memory back.
"""

from __future__ import annotations

import asyncio
import io
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Literal, cast

from memo.documents import Scope
from memo.errors import Absent, InvalidKey, MemoError
from memo.paths import DocumentPath, parse_path
from sandboxd.client import AsyncClient
from sandboxd.client.stdin import async_pieces_of
from sandboxd.errors import NotFound, SandboxdError
from sandboxd.integrations.extra import needs_extra
from sandboxd.integrations.spool import spooled, without_entries
from sandboxd.runner.inside.container_paths import MEMO, WORKSPACE

with needs_extra("openai-agents"):
    from agents.sandbox.errors import (
        ExecTimeoutError,
        ExecTransportError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
    )
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.pty_output import collect_pty_output
    from agents.sandbox.session.pty_types import PtyExecUpdate, allocate_pty_process_id
    from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
    from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
    from agents.sandbox.session.sandbox_session_state import SandboxSessionState
    from agents.sandbox.session.workspace_payloads import coerce_write_payload
    from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User

_MEMO = Path(MEMO).relative_to(WORKSPACE)
_YIELD_S = 10.0
_MOST_OUTPUT_BYTES = 16_777_216


class SandboxdSandboxClientOptions(BaseSandboxClientOptions):
    type: Literal["sandboxd"] = "sandboxd"
    user: str = "agents"
    """The user whose memory the sandbox shows."""
    session: str | None = None
    """A session to share with others: its sandbox is used, and kept when the SDK's session closes."""
    image: str | None = None
    limits: dict[str, float] | None = None
    """memory_mb, cpus, pids, disk_mb"""
    labels: dict[str, str] | None = None
    idle_timeout_s: float | None = None
    exposed_ports: tuple[int, ...] = ()
    """Ports that `resolve_exposed_port` makes reachable on 127.0.0.1 of this host, while the session is open."""


class SandboxdSandboxSessionState(SandboxSessionState):
    type: Literal["sandboxd"] = "sandboxd"
    session: str
    options: SandboxdSandboxClientOptions


@dataclass
class _Pty:
    process: str
    offset: int = 0
    exit_code: int | None = None
    chunks: deque[bytes] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class SandboxdSandboxSession(BaseSandboxSession):
    state: SandboxdSandboxSessionState

    def __init__(self, client: AsyncClient, state: SandboxdSandboxSessionState) -> None:
        self.state = state
        self._client = client
        self._ptys: dict[int, _Pty] = {}
        self._endpoints: dict[int, ExposedPortEndpoint] = {}
        self._forwarders = AsyncExitStack()
        self._seen: dict[str, int] = {}
        """The revision of each document that was read or written here; 0 if it was absent."""
        self.register_persist_workspace_skip_path(_MEMO)

    def supports_pty(self) -> bool:
        return True

    async def running(self) -> bool:
        try:
            return (await self._client.get_sandbox(self.state.session)).state == "ready"
        except NotFound:
            return False

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        argv = _runnable(command)
        done = await self._client.exec(
            self.state.session,
            argv,
            env=await self._environment(),
            timeout_s=timeout,
            max_output_bytes=_MOST_OUTPUT_BYTES,
        )
        if done.timed_out or done.exit_code is None:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        if done.truncated:
            raise ExecTransportError(command=command, message=f"more than {_MOST_OUTPUT_BYTES} bytes of output")
        return ExecResult(stdout=done.stdout_bytes, stderr=done.stderr_bytes, exit_code=done.exit_code)

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        checked = await self._validate_path_access(path)
        try:
            if (document := _document_of(checked, self.state)) is not None:
                return io.BytesIO((await self._read_document(*document)).encode())
            async with self._client.open_file(self.state.session, checked.as_posix()) as pieces:
                return await spooled(pieces)
        except (NotFound, Absent) as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except (SandboxdError, MemoError) as error:
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        checked = await self._validate_path_access(path)
        return await self._client.read_file(self.state.session, checked.as_posix(), length=max_bytes)

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        payload = coerce_write_payload(path=path, data=data)
        checked = await self._validate_path_access(path, for_write=True)
        try:
            if (document := _document_of(checked, self.state)) is not None:
                await self._write_document(*document, payload.stream.read().decode())
            else:
                content = async_pieces_of(cast(IO[bytes], payload.stream))
                await self._client.write_file(self.state.session, checked.as_posix(), content)
        except (SandboxdError, MemoError, UnicodeDecodeError) as error:
            raise WorkspaceArchiveWriteError(path=path, cause=error) from error

    async def _read_document(self, owner: str, scope: Literal["session", "user"], name: str) -> str:
        key = f"{scope}/{name}"
        try:
            document = await self._client.read_memo(owner, name, scope=scope)
        except (Absent, InvalidKey):
            self._seen[key] = 0
            raise
        self._seen[key] = document.revision
        return document.text

    async def _write_document(self, owner: str, scope: Literal["session", "user"], name: str, text: str) -> None:
        """Write what is based on the revision that was read here; changes of other lines since then are merged."""
        key = f"{scope}/{name}"
        written = await self._client.write_memo(
            owner,
            name,
            text,
            scope=scope,
            expected=self._seen.get(key, 0),
            merge=True,
            actor="openai-agents",
            reason="write to the sandbox session",
        )
        if written.revision is not None:
            self._seen[key] = written.revision

    async def persist_workspace(self) -> io.IOBase:
        root = self._workspace_root_path()
        skipped = {path.as_posix() for path in self._persist_workspace_skip_relpaths() - {_MEMO}}
        try:
            async with self._client.open_archive(self.state.session, root.as_posix()) as pieces:
                archive = await spooled(pieces)
        except SandboxdError as error:
            raise WorkspaceArchiveReadError(path=root, cause=error) from error
        return await asyncio.to_thread(without_entries, archive, skipped) if skipped else archive

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self._workspace_root_path()
        try:
            await self._client.write_archive(
                self.state.session, root.as_posix(), async_pieces_of(cast(IO[bytes], data))
            )
        except SandboxdError as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error) from error

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        argv = self._prepare_exec_command(*command, shell=shell, user=user)
        process = await self._client.start_process(self.state.session, argv, env=await self._environment(), tty=tty)
        number = allocate_pty_process_id(set(self._ptys))
        self._ptys[number] = _Pty(process.id)
        return await self._update(number, yield_time_s, max_output_tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        pty = self._resolve_pty_session_entry(pty_processes=self._ptys, session_id=session_id)
        if chars:
            await self._client.write_process(self.state.session, pty.process, chars)
        return await self._update(session_id, yield_time_s, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        while self._ptys:
            _, pty = self._ptys.popitem()
            await self._client.kill_process(self.state.session, pty.process)

    async def _update(self, number: int, yield_time_s: float | None, max_output_tokens: int | None) -> PtyExecUpdate:
        pty = self._ptys[number]

        async def wait(most_s: float) -> None:
            read = await self._client.read_process(
                self.state.session, pty.process, offset=pty.offset, wait_s=max(0.0, most_s)
            )
            pty.offset = read.next_offset
            if read.data:
                pty.chunks.append(read.data)
            elif not read.process.running:
                pty.exit_code = read.process.exit_code

        output, tokens, is_over = await collect_pty_output(
            output_chunks=pty.chunks,
            output_lock=pty.lock,
            output_notify=pty.changed,
            is_done=lambda: pty.exit_code is not None,
            yield_time_ms=int(1000 * (_YIELD_S if yield_time_s is None else yield_time_s)),
            max_output_tokens=max_output_tokens,
            wait_for_output=wait,
        )
        if is_over:
            del self._ptys[number]
        return PtyExecUpdate(None if is_over else number, output, pty.exit_code, tokens)

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        if port not in self._endpoints:
            opened = await self._forwarders.enter_async_context(self._client.forward_port(self.state.session, port))
            self._endpoints[port] = ExposedPortEndpoint(opened.host, opened.port)
        return self._endpoints[port]

    async def _environment(self) -> dict[str, str] | None:
        return dict(await self.state.manifest.environment.resolve()) or None

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def _ensure_runtime_helper_installed(self, helper: RuntimeHelperScript) -> PurePath:
        """Write a helper of the SDK. It need not be executable: /tmp may refuse that, and it is run by a shell."""
        path = str(helper.install_path)
        try:
            await self._client.stat_file(self.state.session, path)
        except NotFound:
            await self._client.write_file(self.state.session, path, helper.content)
        return cast(PurePath, helper.install_path)

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return cast(Path, await self._validate_remote_path_access(path, for_write=for_write))

    def _workspace_resume_mount_skip_relpaths(self) -> set[Path]:
        return {*super()._workspace_resume_mount_skip_relpaths(), _MEMO}

    async def _shutdown_backend(self) -> None:
        """Remove the sandbox; one that others may share is kept."""
        self._endpoints.clear()
        await self._forwarders.aclose()
        if self.state.options.session is None:
            await self._client.destroy_sandbox(self.state.session, missing_ok=True)


def _document_of(path: Path, state: SandboxdSandboxSessionState) -> tuple[str, Literal["session", "user"], str] | None:
    """Return the owner, the scope and the name of the document at a path of the mirror; None for other files."""
    try:
        found = parse_path(path.as_posix())
    except InvalidKey:
        return None
    if not isinstance(found, DocumentPath):
        return None
    if found.scope == Scope.SESSION:
        return state.session, "session", found.name
    return state.options.user, "user", found.name


def _runnable(command: tuple[str | Path, ...]) -> list[str]:
    argv = [str(part) for part in command]
    is_helper = PurePosixPath(argv[0]).parent == PurePosixPath(str(RESOLVE_WORKSPACE_PATH_HELPER.install_path)).parent
    return ["sh", *argv] if is_helper else argv
