"""SWE-ReX: a runtime whose shells are terminals of the sandbox. Its own session code drives them, unchanged."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from pexpect import EOF, TIMEOUT
from pexpect.spawnbase import SpawnBase
from swerex.exceptions import CommandTimeoutError, NonZeroExitCodeError, SessionExistsError
from swerex.runtime.abstract import (
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
    IsAliveResponse,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)
from swerex.runtime.local import BashSession, LocalRuntime

from sandboxd.client import Client
from tests.suites.adapters.file_errors import as_os_errors

_ROOT = "/workspace"
_INTERRUPT, _SUSPEND = b"\x03", b"\x1a"
_PATIENCE_S = 20.0


class Terminal(SpawnBase):
    """A process of the sandbox as pexpect sees one: bytes to write, bytes to wait for."""

    def __init__(self, client: Client, session: str, command: list[str], env: dict[str, str]) -> None:
        super().__init__(encoding="utf-8", codec_errors="backslashreplace")
        self._client = client
        self._session = session
        self._process = client.start_process(session, command, env=env, tty=True, echo=False, term="dumb").id
        self._offset = 0

    def expect(self, pattern: Any, timeout: float | None = -1, **more: Any) -> int:
        """Wait for an action's expected strings (a list) up to its timeout, and longer for the session's own marks."""
        if isinstance(pattern, str) and timeout is not None:
            timeout = max(timeout, _PATIENCE_S)
        return int(super().expect(pattern, timeout, **more))

    def read_nonblocking(self, size: int = 1, timeout: float | None = -1) -> str:
        wait_s = self.timeout if timeout == -1 else timeout
        # Poll a silent shell instead of waiting on it without end.
        while True:
            step_s = _PATIENCE_S if wait_s is None else max(0.0, wait_s)
            read = self._client.read_process(
                self._session, self._process, offset=self._offset, limit=max(size, 4), wait_s=step_s
            )
            self._offset = read.next_offset
            if read.data:
                return str(self._decoder.decode(read.data, final=False))
            if not read.process.running:
                raise EOF("the shell has ended")
            if wait_s is not None:
                raise TIMEOUT(f"no output for {wait_s} s")

    def send(self, s: str | bytes) -> int:
        data = s.encode() if isinstance(s, str) else s
        self._client.write_process(self._session, self._process, data)
        return len(data)

    def sendline(self, s: str = "") -> int:
        return self.send(f"{s}\n")

    def sendintr(self) -> None:
        self.send(_INTERRUPT)

    def sendcontrol(self, char: str) -> None:
        assert char == "z"
        self.send(_SUSPEND)

    def setecho(self, state: bool) -> None:
        """Do nothing: this terminal never echoes."""

    def waitnoecho(self) -> bool:
        return True

    def close(self) -> None:
        self._client.kill_process(self._session, self._process)


class Shell(BashSession):
    def __init__(self, client: Client, session: str, request: CreateBashSessionRequest) -> None:
        super().__init__(request)
        self._client = client
        self._sandbox = session

    async def start(self) -> CreateBashSessionResponse:
        prompts = {"PS1": self._ps1, "PS2": "", "PS0": ""}
        self._shell = shell = Terminal(self._client, self._sandbox, ["bash"], prompts)
        sources = [f"source {path}" for path in self.request.startup_source]
        shell.sendline(" ; ".join([*sources, *self._get_reset_commands()]))
        shell.expect(self._ps1)
        return CreateBashSessionResponse(output=shell.before)


class SandboxdRuntime(LocalRuntime):
    """Sessions are kept as the local runtime keeps them; everything they touch is in the sandbox."""

    def __init__(self, client: Client, session: str) -> None:
        super().__init__()
        self._client = client
        self._sandbox = session

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        return IsAliveResponse(is_alive=self._client.get_sandbox(self._sandbox).state == "ready")

    async def create_session(self, request: CreateBashSessionRequest) -> CreateBashSessionResponse:
        if request.session in self.sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        self.sessions[request.session] = shell = Shell(self._client, self._sandbox, request)
        return await shell.start()

    async def execute(self, command: Command) -> CommandResponse:
        given = ["sh", "-c", str(command.command)] if command.shell else command.command
        argv = [given] if isinstance(given, str) else given
        done = self._client.exec(
            self._sandbox,
            argv,
            cwd=command.cwd,
            env=command.env,
            timeout_s=command.timeout,
            merge_stderr=command.merge_output_streams,
        )
        if done.timed_out:
            raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
        if command.check and done.exit_code != 0:
            raise NonZeroExitCodeError(f"{command.error_msg}: {command.command!r} ended with {done.exit_code}")
        return CommandResponse(stdout=done.stdout, stderr=done.stderr, exit_code=done.exit_code)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        with as_os_errors(request.path):
            content = self._client.read_file(self._sandbox, _absolute(request.path))
        text = io.TextIOWrapper(io.BytesIO(content), request.encoding or "utf-8", request.errors).read()
        return ReadFileResponse(content=text)

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        with as_os_errors(request.path):
            self._client.write_file(self._sandbox, _absolute(request.path), request.content)
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        source, target = Path(request.source_path), _absolute(request.target_path)
        with as_os_errors(target):
            if source.is_dir():
                for file in sorted(path for path in source.rglob("*") if path.is_file()):
                    self._client.write_file(self._sandbox, f"{target}/{file.relative_to(source)}", file.read_bytes())
            else:
                self._client.write_file(self._sandbox, target, source.read_bytes())
        return UploadResponse()


def _absolute(path: str) -> str:
    return str(Path(_ROOT) / path)
