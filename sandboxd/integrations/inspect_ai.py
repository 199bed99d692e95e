"""Inspect: the sandbox environment `sandboxd`, one sandbox for each sample.

Inspect finds it by its entry point, so `Task(..., sandbox="sandboxd")` is all that a task needs. A sandbox has one
user, which is not root: a command for another user is refused.
"""

from __future__ import annotations

import posixpath
import uuid
from typing import Any, Literal, overload

from pydantic import BaseModel, Field

from sandboxd.client import AsyncClient
from sandboxd.integrations.extra import needs_extra
from sandboxd.integrations.os_errors import as_os_errors
from sandboxd.runner.inside.container_paths import WORKSPACE

with needs_extra("inspect"):
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxConnection,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUserUnsupportedError,
        sandboxenv,
    )

LABELS = {"integration": "inspect"}
"""The labels of every sandbox that is made here; `inspect sandbox cleanup sandboxd` finds them by these."""

_USER_IN_IMAGE = "agent"
_CANNOT_EXECUTE = 126


class SandboxdSandboxConfig(BaseModel, frozen=True):
    """`SandboxEnvironmentSpec("sandboxd", SandboxdSandboxConfig(image="dev"))`"""

    user: str = Field(default="inspect", description="The user whose memory the sandboxes show.")
    image: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    limits: dict[str, float] | None = Field(default=None, description="memory_mb, cpus, pids, disk_mb")
    max_timeout_s: float = Field(
        default=3600, gt=0, description="For commands without a timeout; at most the daemon's own max_timeout_s."
    )


@sandboxenv(name="sandboxd")
class SandboxdSandboxEnvironment(SandboxEnvironment):
    def __init__(self, client: AsyncClient, session: str, config: SandboxdSandboxConfig) -> None:
        super().__init__()
        self._client = client
        self._session = session
        self._config = config

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return SandboxdSandboxConfig.model_validate(config)

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        settings = config if isinstance(config, SandboxdSandboxConfig) else SandboxdSandboxConfig()
        client = AsyncClient()
        session = f"inspect-{uuid.uuid4().hex}"
        try:
            await client.ensure_sandbox(
                session,
                settings.user,
                image=settings.image,
                env=settings.env or None,
                limits=settings.limits,
                labels=LABELS,
            )
        except BaseException:
            await client.close()
            raise
        return {"default": cls(client, session, settings)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            ours = environment.as_type(cls)
            async with ours._client as client:
                await client.destroy_sandbox(ours._session, missing_ok=True)

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Remove one sandbox of an evaluation, or all of them: `inspect sandbox cleanup sandboxd [ID]`."""
        async with AsyncClient() as client:
            found = [id] if id else [view.session for view in await client.list_sandboxes(labels=LABELS)]
            for session in found:
                await client.destroy_sandbox(session, missing_ok=True)

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        _check_user(user)
        return SandboxConnection(type="sandboxd", command=f"sandboxd shell {self._session}")

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        _check_user(user)
        done = await self._client.exec(
            self._session,
            cmd,
            cwd=_absolute(cwd or "."),
            env=env,
            stdin=input,
            timeout_s=self._config.max_timeout_s if timeout is None else timeout,
            max_output_bytes=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
        )
        if done.timed_out or done.exit_code is None:
            raise TimeoutError(f"{cmd[0]} timed out")
        if done.exit_code == _CANNOT_EXECUTE and "permission denied" in done.stderr.lower():
            raise PermissionError(done.stderr)
        return ExecResult(done.exit_code == 0, done.exit_code, done.stdout, done.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        with as_os_errors(file):
            await self._client.write_file(self._session, _absolute(file), contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        content = bytearray()
        with as_os_errors(file):
            async with self._client.open_file(self._session, _absolute(file)) as pieces:
                async for piece in pieces:
                    content += piece
                    if len(content) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return content.decode() if text else bytes(content)


def _absolute(path: str) -> str:
    return posixpath.normpath(posixpath.join(WORKSPACE, path))


def _check_user(user: str | None) -> None:
    if user not in (None, _USER_IN_IMAGE):
        raise SandboxUserUnsupportedError(
            f"cannot run as {user}: a sandbox has one user, {_USER_IN_IMAGE}, which never becomes root"
        )
