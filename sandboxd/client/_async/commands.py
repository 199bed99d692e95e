"""The calls that run commands; and the commands of a `Sandbox`, in the foreground and in the background."""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

from sandboxd.client._async.calls import AsyncSandboxPart
from sandboxd.client._async.processes import AsyncCommandHandle, AsyncProcessCalls, kill_known
from sandboxd.client.errors import AnswerLost, malformed_answers, rebuild
from sandboxd.client.request import Request, encode_text, given, json_request, timeout_for
from sandboxd.client.sse import EVENT_STREAM
from sandboxd.client.stdin import AsyncStdin, async_pieces_of, inline_stdin
from sandboxd.client.streams import AsyncCallback, AsyncStream, async_notify
from sandboxd.errors import InternalError, InvalidRequest
from sandboxd.models.command import DEFAULT_TIMEOUT_S, ExecOutput, ExecResult
from sandboxd.models.process import Process

ListedProcesses = list[Process]  # in a class with a method `list`, that name is the method

STDIN_FOLLOWS = "application/vnd.sandboxd.exec"
"""The media type of a command that is one line of JSON, followed by its stdin."""


class AsyncCommandCalls(AsyncProcessCalls):
    async def exec(
        self,
        session: str,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: AsyncStdin = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        merge_stderr: bool = False,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> ExecResult:
        """Run a command and return its result. A command that fails is a result, not an error.

        `stdin` is text, bytes, a binary file or an iterable of bytes; whatever its length, it is sent as the command
        reads it, and no more of it once the command has ended. A file or plain iterable is read in a thread.
        """
        inline, follows = inline_stdin(stdin, idempotency_key)
        options = given(
            cwd=cwd, timeout_s=timeout_s, max_output_bytes=max_output_bytes, merge_stderr=merge_stderr or None
        )
        request = self._exec_request(session, command, env, inline, options, tenant, idempotency_key)
        if not follows:
            return await self._ask(ExecResult, request)
        return await self._ask(ExecResult, _before_stdin(request), async_pieces_of(stdin))

    async def exec_stream(
        self,
        session: str,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: AsyncStdin = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        merge_stderr: bool = False,
        tenant: str | None = None,
    ) -> AsyncStream[ExecOutput | ExecResult]:
        """Run a command and yield its output as it arrives, then its result. Closing the iterator kills it."""
        inline, follows = inline_stdin(stdin, None)
        options = given(
            cwd=cwd, timeout_s=timeout_s, max_output_bytes=max_output_bytes, merge_stderr=merge_stderr or None
        )
        request = self._exec_request(session, command, env, inline, options, tenant, None, is_streamed=True)
        if follows:
            request = _before_stdin(request)
        result = None
        async with self._events(request, async_pieces_of(stdin) if follows else None) as events:
            async for kind, data in events:
                item = _parse_item(kind, data)
                if item is not None:
                    result = item
                    yield item
        if not isinstance(result, ExecResult):
            raise AnswerLost("cannot tell the outcome: the stream ended before the command did")

    def _exec_request(
        self,
        session: str,
        command: str | Sequence[str],
        env: Mapping[str, str] | None,
        stdin: str | bytes | None,
        options: dict[str, Any],
        tenant: str | None,
        key: str | None,
        *,
        is_streamed: bool = False,
    ) -> Request:
        """Build a command. Its output is returned as text if it is UTF-8, else as base64; if streamed, as base64."""
        is_binary = is_streamed or isinstance(stdin, bytes)
        content = {
            "command": command if isinstance(command, str) else list(command),
            **options,
            "encoding": "base64" if is_binary else "auto",
        }
        if env is not None:
            content["env"] = dict(env)
        if stdin:
            raw = stdin if isinstance(stdin, bytes) else encode_text(stdin)
            content["stdin"] = base64.b64encode(raw).decode() if is_binary else stdin
        return json_request(
            "POST",
            f"{self._session_path(session, tenant)}/exec",
            content,
            key=key,
            headers=EVENT_STREAM if is_streamed else None,
            timeout_s=timeout_for(options.get("timeout_s", DEFAULT_TIMEOUT_S)),
        )


def _before_stdin(request: Request) -> Request:
    headers = {**request.headers, "content-type": STDIN_FOLLOWS}
    return replace(request, body=(request.body or b"") + b"\n", headers=headers)


def _parse_item(kind: str, data: str) -> ExecOutput | ExecResult | None:
    """Parse one event of a streamed command; None for kinds that are ignored."""
    with malformed_answers():
        fields = json.loads(data)
        if kind == "stdout" or kind == "stderr":
            return ExecOutput("stdout" if kind == "stdout" else "stderr", base64.b64decode(fields["data"]))
        if kind == "exit":
            return ExecResult.model_validate({"stdout": "", "stderr": "", **fields})
    if kind == "error":
        raise rebuild(fields if isinstance(fields, dict) else {})
    return None


class AsyncSandboxCommands(AsyncSandboxPart[AsyncCommandCalls]):
    """The commands of a sandbox."""

    @overload
    async def run(
        self,
        cmd: str | Sequence[str],
        background: Literal[False] = False,
        *,
        on_stdout: AsyncCallback[str] | None = None,
        on_stderr: AsyncCallback[str] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: AsyncStdin = None,
        timeout_s: float | None = None,
    ) -> ExecResult: ...

    @overload
    async def run(
        self,
        cmd: str | Sequence[str],
        background: Literal[True],
        *,
        on_stdout: AsyncCallback[str] | None = None,
        on_stderr: None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout_s: None = None,
    ) -> AsyncCommandHandle: ...

    async def run(
        self,
        cmd: str | Sequence[str],
        background: bool = False,
        *,
        on_stdout: AsyncCallback[str] | None = None,
        on_stderr: AsyncCallback[str] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: AsyncStdin = None,
        timeout_s: float | None = None,
    ) -> ExecResult | AsyncCommandHandle:
        """Run a command and return its result; with `background`, return a handle as soon as it has started.

        A command that fails is a result, not an error. `on_stdout` and `on_stderr` get the output as text while it
        arrives. In the background both streams are merged and passed to `on_stdout` while the handle is read, and there
        is no timeout.
        """
        if background:
            if on_stderr is not None or timeout_s is not None or not isinstance(stdin, str | bytes | None):
                raise InvalidRequest(
                    "cannot run this in the background: on_stderr, timeout_s and streamed stdin need the foreground; "
                    "use on_stdout, kill() and send_stdin()"
                )
            return await self._start(cmd, on_stdout, cwd, env, stdin)
        if on_stdout is None and on_stderr is None:
            return await self._calls.exec(
                self._session, cmd, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout_s, tenant=self._tenant
            )
        items = self._calls.exec_stream(
            self._session, cmd, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout_s, tenant=self._tenant
        )
        return await _watch(items, on_stdout, on_stderr)

    async def list(self) -> ListedProcesses:
        """Return the background processes of the sandbox."""
        return await self._calls.list_processes(self._session, tenant=self._tenant)

    async def kill(self, process: str) -> bool:
        """Kill a background process and everything it started; return False if it was unknown."""
        return await kill_known(self._calls, self._session, process, self._tenant)

    async def send_stdin(self, process: str, data: str | bytes, *, eof: bool = False) -> None:
        """Write to the stdin of a background process; with `eof`, close it afterwards."""
        await self._calls.write_process(self._session, process, data, eof=eof, tenant=self._tenant)

    async def connect(self, process: str, *, on_stdout: AsyncCallback[str] | None = None) -> AsyncCommandHandle:
        """Return a handle of a background process, which reads its output from the beginning, up to the last 1 MiB."""
        handle = AsyncCommandHandle(self._calls, self._session, self._tenant, process, on_stdout)
        await handle.get_record()
        return handle

    async def _start(
        self,
        cmd: str | Sequence[str],
        on_stdout: AsyncCallback[str] | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: str | bytes | None,
    ) -> AsyncCommandHandle:
        process = await self._calls.start_process(self._session, cmd, cwd=cwd, env=env, tenant=self._tenant)
        if stdin:
            await self.send_stdin(process.id, stdin, eof=True)
        return AsyncCommandHandle(self._calls, self._session, self._tenant, process.id, on_stdout)


async def _watch(
    items: AsyncStream[ExecOutput | ExecResult],
    on_stdout: AsyncCallback[str] | None,
    on_stderr: AsyncCallback[str] | None,
) -> ExecResult:
    """Pass the output on as text, and return the result with all of it."""
    callbacks = {"stdout": on_stdout, "stderr": on_stderr}
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in callbacks}
    output = {name: bytearray() for name in callbacks}
    try:
        async for item in items:
            if isinstance(item, ExecResult):
                encoded = {name: base64.b64encode(data).decode() for name, data in output.items()}
                return ExecResult.model_validate({**item.model_dump(), **encoded, "encoding": "base64"})
            output[item.stream] += item.data
            if text := decoders[item.stream].decode(item.data):
                await async_notify(callbacks[item.stream], text)
    finally:
        await items.aclose()
    raise InternalError("cannot tell the outcome: the stream has no result")
