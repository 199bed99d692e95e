"""OpenAI Agents SDK: a sandbox client. Manifests, patches, archives and snapshots are the SDK's, over these calls."""

from __future__ import annotations

import asyncio
import io
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, cast

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import PtyExecUpdate, allocate_pty_process_id
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.session.sandbox_session import SandboxSession
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, User

from sandboxd.client import AsyncClient
from sandboxd.errors import NotFound, SandboxdError

_MEMO = Path("memo")
_YIELD_S = 10.0
_MOST_OUTPUT_BYTES = 16_777_216


class SandboxdSessionState(SandboxSessionState):
    type: Literal["sandboxd"] = "sandboxd"
    session: str


class SandboxdClientOptions(BaseSandboxClientOptions):
    type: Literal["sandboxd"] = "sandboxd"
    user: str = "agents"


@dataclass
class _Pty:
    process: str
    offset: int = 0
    exit_code: int | None = None
    chunks: deque[bytes] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class SandboxdSession(BaseSandboxSession):
    state: SandboxdSessionState

    def __init__(self, client: AsyncClient, state: SandboxdSessionState) -> None:
        self.state = state
        self._client = client
        self._ptys: dict[int, _Pty] = {}
        # Memory is in the store; a snapshot must not bring an older text back.
        self.register_persist_workspace_skip_path(_MEMO)

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    def _workspace_resume_mount_skip_relpaths(self) -> set[Path]:
        return {*super()._workspace_resume_mount_skip_relpaths(), _MEMO}

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        return await self._exec(*command, timeout=timeout)

    async def _exec(
        self, *command: str | Path, timeout: float | None = None, stdin: bytes | BinaryIO | None = None
    ) -> ExecResult:
        done = await self._client.exec(
            self.state.session,
            [str(part) for part in command],
            stdin=stdin,
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
            return io.BytesIO(await self._client.read_file(self.state.session, checked.as_posix()))
        except NotFound as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except SandboxdError as error:
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        payload = coerce_write_payload(path=path, data=data)
        checked = await self._validate_path_access(path, for_write=True)
        try:
            await self._client.write_file(self.state.session, checked.as_posix(), payload.stream.read())
        except SandboxdError as error:
            raise WorkspaceArchiveWriteError(path=path, cause=error) from error

    async def running(self) -> bool:
        try:
            return (await self._client.get_sandbox(self.state.session)).state == "ready"
        except NotFound:
            return False

    async def persist_workspace(self) -> io.IOBase:
        root = self._workspace_root_path()
        skipped = [f"--exclude=./{path.as_posix()}" for path in sorted(self._persist_workspace_skip_relpaths())]
        done = await self._exec("tar", "-c", "-C", root, *skipped, ".")
        if not done.ok():
            raise WorkspaceArchiveReadError(path=root, context={"stderr": done.stderr.decode(errors="replace")})
        return io.BytesIO(done.stdout)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        root = self._workspace_root_path()
        done = await self._exec("tar", "-x", "-C", root, stdin=cast(BinaryIO, data))
        if not done.ok():
            raise WorkspaceArchiveWriteError(path=root, context={"stderr": done.stderr.decode(errors="replace")})

    def supports_pty(self) -> bool:
        return True

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
        process = await self._client.start_process(self.state.session, argv, tty=tty)
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

    async def _shutdown_backend(self) -> None:
        await self._client.destroy_sandbox(self.state.session, missing_ok=True)


class SandboxdClient(BaseSandboxClient[SandboxdClientOptions]):
    backend_id = "sandboxd"

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: SandboxdClientOptions,
    ) -> SandboxSession:
        number = uuid.uuid4()
        state = SandboxdSessionState(
            session_id=number,
            session=f"agents-{number.hex}",
            manifest=self._validate_manifest_for_create(manifest or Manifest()),
            snapshot=resolve_snapshot(snapshot, str(number)),
        )
        await self._client.ensure_sandbox(state.session, options.user)
        return self._wrap_session(SandboxdSession(self._client, state))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        await session._inner.shutdown()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Reattach to the sandbox; one that was deleted comes back empty and is filled from the snapshot."""
        assert isinstance(state, SandboxdSessionState)
        made = await self._client.ensure_sandbox(state.session, SandboxdClientOptions().user)
        if made.created:
            state.workspace_root_ready = False
        inner = SandboxdSession(self._client, state)
        inner._set_start_state_preserved(not made.created)
        return self._wrap_session(inner)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, SandboxdSessionState)
