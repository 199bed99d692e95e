"""Inspect: a sandbox environment for each sample."""

from __future__ import annotations

import posixpath
import uuid
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from sandboxd.client import AsyncClient
from tests.suites.adapters.file_errors import as_os_errors

_ROOT = "/workspace"
_CANNOT_EXECUTE = 126
_NO_TIMEOUT_S = 3600
"""The longest that a daemon allows unless it is set otherwise; Inspect's None means no limit."""


@sandboxenv(name="sandboxd")
class SandboxdEnvironment(SandboxEnvironment):
    def __init__(self, client: AsyncClient, session: str) -> None:
        super().__init__()
        self._client = client
        self._session = session

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        client = AsyncClient()
        session = f"inspect-{uuid.uuid4().hex}"
        await client.ensure_sandbox(session, "inspect")
        return {"default": cls(client, session)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            ours = environment.as_type(cls)
            await ours._client.destroy_sandbox(ours._session, missing_ok=True)
            await ours._client.close()

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
        if user is not None:
            raise SandboxUserUnsupportedError(f"cannot run as {user}: a sandbox has one user, which is not root")
        done = await self._client.exec(
            self._session,
            cmd,
            cwd=_absolute(cwd or "."),
            env=env,
            stdin=input,
            timeout_s=_NO_TIMEOUT_S if timeout is None else timeout,
            max_output_bytes=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
        )
        if done.timed_out:
            raise TimeoutError(f"{cmd[0]} timed out after {timeout} s")
        if done.exit_code == _CANNOT_EXECUTE and "permission denied" in done.stderr.lower():
            raise PermissionError(done.stderr)
        assert done.exit_code is not None
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
    return posixpath.normpath(posixpath.join(_ROOT, path))
