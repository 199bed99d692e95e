"""SWE-ReX: a deployment whose runtime is a sandbox, and whose shells are terminals of it.

SWE-ReX's own session code drives the terminals, unchanged: prompts, exit codes, interrupts. The client is the
synchronous one, because SWE-agent runs each call in an event loop of its own. SWE-ReX has no extra here: it depends on
a GPL package, so it is the user who installs it.
"""

from __future__ import annotations

import asyncio
import io
import logging
import posixpath
import uuid
from contextlib import suppress
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandboxd.client import Client
from sandboxd.errors import NotFound, SandboxError
from sandboxd.integrations.extra import needs_extra
from sandboxd.integrations.os_errors import as_os_errors
from sandboxd.runner.inside.container_paths import WORKSPACE

with needs_extra("swe-rex", install="swe-rex"):
    from pexpect import EOF, TIMEOUT
    from pexpect.spawnbase import SpawnBase
    from swerex.deployment.abstract import AbstractDeployment
    from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
    from swerex.exceptions import (
        CommandTimeoutError,
        DeploymentNotStartedError,
        NonZeroExitCodeError,
        SessionExistsError,
    )
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
    from swerex.utils.log import get_logger

LABELS = {"integration": "swe-rex"}
_INTERRUPT, _SUSPEND = b"\x03", b"\x1a"
_PATIENCE_S = 20.0


class PexpectTerminal(SpawnBase):
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
        while True:  # without a timeout, ask again until the shell says something or ends
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
        self.send(_SUSPEND if char == "z" else bytes([ord(char.lower()) & 0x1F]))

    def setecho(self, state: bool) -> None:
        """Do nothing: this terminal never echoes."""

    def waitnoecho(self) -> bool:
        return True

    def close(self) -> None:
        with suppress(NotFound, SandboxError):  # a sandbox that is gone has no shells
            self._client.kill_process(self._session, self._process)


class TerminalBashSession(BashSession):
    """A bash session of SWE-ReX in a terminal of the sandbox."""

    def __init__(self, client: Client, sandbox: str, request: CreateBashSessionRequest) -> None:
        super().__init__(request)
        self._client = client
        self._sandbox = sandbox

    async def start(self) -> CreateBashSessionResponse:
        prompts = {"PS1": self._ps1, "PS2": "", "PS0": ""}
        self._shell = shell = PexpectTerminal(self._client, self._sandbox, ["bash"], prompts)
        sources = [f"source {path}" for path in self.request.startup_source]
        shell.sendline(" ; ".join([*sources, *self._get_reset_commands()]))
        shell.expect(self._ps1)
        return CreateBashSessionResponse(output=shell.before)


class SandboxdRuntime(LocalRuntime):
    """Sessions are kept as the local runtime keeps them; everything they touch is in the sandbox."""

    def __init__(self, client: Client, session: str, *, logger: logging.Logger | None = None) -> None:
        super().__init__(logger=logger)
        self._client = client
        self._sandbox = session

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        try:
            view = await asyncio.to_thread(self._client.get_sandbox, self._sandbox)
        except NotFound as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        return IsAliveResponse(is_alive=view.state == "ready", message=view.state)

    async def create_session(self, request: CreateBashSessionRequest) -> CreateBashSessionResponse:
        if request.session in self.sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        self.sessions[request.session] = shell = TerminalBashSession(self._client, self._sandbox, request)
        return await shell.start()

    async def execute(self, command: Command) -> CommandResponse:
        given = ["sh", "-c", str(command.command)] if command.shell else command.command
        done = await asyncio.to_thread(
            self._client.exec,
            self._sandbox,
            [given] if isinstance(given, str) else given,
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
            content = await asyncio.to_thread(self._client.read_file, self._sandbox, _absolute(request.path))
        text = io.TextIOWrapper(io.BytesIO(content), request.encoding or "utf-8", request.errors).read()
        return ReadFileResponse(content=text)

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        with as_os_errors(request.path):
            await asyncio.to_thread(self._client.write_file, self._sandbox, _absolute(request.path), request.content)
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copy a file or the contents of a directory of this host; modes are kept."""
        with as_os_errors(request.target_path):
            await asyncio.to_thread(
                self._client.upload, self._sandbox, request.source_path, _absolute(request.target_path)
            )
        return UploadResponse()


class SandboxdDeploymentConfig(BaseModel):
    """What a deployment takes; `get_deployment()` makes it."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["sandboxd"] = "sandboxd"
    session: str | None = Field(default=None, description="A session to use and keep; else one is made and removed.")
    user: str = "swe-rex"
    image: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    limits: dict[str, float] | None = Field(default=None, description="memory_mb, cpus, pids, disk_mb")

    def get_deployment(self) -> AbstractDeployment:
        return SandboxdDeployment(**self.model_dump(exclude={"type"}))


class SandboxdDeployment(AbstractDeployment):
    """`SandboxdDeployment(image="dev")`, then `await deployment.start()`. Stopping removes the sandbox it made."""

    _runtime: SandboxdRuntime | None = None

    def __init__(self, *, client: Client | None = None, logger: logging.Logger | None = None, **settings: Any) -> None:
        """Take the fields of `SandboxdDeploymentConfig`; without a client, the daemon is found as `Client` finds it."""
        self.logger = logger or get_logger("rex-deploy")
        self._config = SandboxdDeploymentConfig(**settings)
        self._given = client
        self._client: Client | None = None
        self._session = ""
        self._hooks = CombinedDeploymentHook()

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        if self._runtime is None:
            raise DeploymentNotStartedError
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        if self._runtime is not None:
            return
        self._hooks.on_custom_step("Starting the sandbox")
        self._client = self._given or Client()
        self._session = self._config.session or f"swe-rex-{uuid.uuid4().hex}"
        await asyncio.to_thread(
            self._client.ensure_sandbox,
            self._session,
            self._config.user,
            image=self._config.image,
            env=self._config.env or None,
            limits=self._config.limits,
            labels=None if self._config.session else LABELS,
        )
        self._runtime = SandboxdRuntime(self._client, self._session, logger=self.logger)

    async def stop(self) -> None:
        runtime, client, self._runtime, self._client = self._runtime, self._client, None, None
        if runtime is not None:
            await runtime.close()
        if client is None:
            return
        if self._config.session is None:
            await asyncio.to_thread(client.destroy_sandbox, self._session, missing_ok=True)
        if self._given is None:
            client.close()

    def __del__(self) -> None:
        if self._runtime is not None:
            super().__del__()  # stops it, and says so

    @property
    def runtime(self) -> SandboxdRuntime:
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime


def _absolute(path: str) -> str:
    return posixpath.normpath(posixpath.join(WORKSPACE, path))
