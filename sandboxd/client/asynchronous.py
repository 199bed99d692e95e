"""`AsyncClient`: the async client. One instance may be shared by all tasks of an event loop.

Every method sends a call of `calls.py` and reads its answer, and adds nothing to it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import memo.documents  # noqa: F401  # a conflict holds one: loaded now, because an import later would block the event loop
from sandboxd.client import calls
from sandboxd.client.address import find_address
from sandboxd.client.async_transport import AsyncTransport, Body
from sandboxd.client.asynchronous_memory import AsyncMemoryClient
from sandboxd.client.calls import Answer, Call, raise_problem, read_answer
from sandboxd.client.errors import AnswerLost
from sandboxd.client.exec_stdin import AsyncStdin, async_pieces_of, inline_stdin
from sandboxd.client.results import (
    Event,
    ExecOutput,
    ExecResult,
    FileInfo,
    Process,
    ProcessOutput,
    Sandbox,
    ToolDescription,
    ToolResult,
)
from sandboxd.client.sse import EventReader
from sandboxd.client.stdin import StdinWrite
from sandboxd.errors import SandboxdError

T = TypeVar("T")


class AsyncClient(AsyncMemoryClient):
    """`async with AsyncClient() as client:` finds the daemon; `socket`, or `url` and `token`, say where it is."""

    def __init__(
        self,
        socket: Path | str | None = None,
        *,
        url: str | None = None,
        token: str | None = None,
        tenant: str = "default",
    ) -> None:
        self.tenant = tenant
        self._transport = AsyncTransport(find_address(socket, url, token))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def health(self) -> Mapping[str, Any]:
        return await self._send(calls.health())

    async def ready(self) -> Mapping[str, Any]:
        return await self._send(calls.ready())

    async def metrics(self) -> str:
        """Return the daemon's metrics as Prometheus text."""
        return await self._send(calls.metrics())

    async def ensure_sandbox(
        self,
        session: str,
        user: str = "default",
        *,
        agent: str | None = None,
        image: str | None = None,
        env: Mapping[str, str] | None = None,
        limits: Mapping[str, float] | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Sandbox:
        """Create the session's sandbox, or return the existing one; `.created` says which.

        One whose container died is restarted with its files.
        """
        return await self._send(
            calls.ensure_sandbox(
                tenant or self.tenant,
                session,
                user,
                agent=agent,
                image=image,
                env=env,
                limits=limits,
                key=idempotency_key,
            )
        )

    async def get_sandbox(self, session: str, *, tenant: str | None = None) -> Sandbox:
        return await self._send(calls.get_sandbox(tenant or self.tenant, session))

    async def list_sandboxes(self, *, tenant: str | None = None) -> list[Sandbox]:
        return await self._send(calls.list_sandboxes(tenant or self.tenant))

    async def destroy_sandbox(
        self,
        session: str,
        *,
        missing_ok: bool = False,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Remove the sandbox with every file in its workspace. Memory stays.

        With `missing_ok` a missing sandbox counts as removed, so the call can be repeated.
        """
        await self._send(
            calls.destroy_sandbox(tenant or self.tenant, session, missing_ok=missing_ok, key=idempotency_key)
        )

    async def stats(self, session: str, *, tenant: str | None = None) -> Mapping[str, Any]:
        return await self._send(calls.stats(tenant or self.tenant, session))

    async def collect_garbage(self) -> Mapping[str, Any]:
        return await self._send(calls.collect_garbage())

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

        `stdin` is text, bytes, a binary file or an (async) iterable of bytes; whatever its length, it is sent as the
        command reads it, and no more of it once the command has ended. A file or plain iterable is read in a thread.
        """
        inline, follows = inline_stdin(stdin, idempotency_key)
        call = calls.execute(
            tenant or self.tenant,
            session,
            command,
            cwd=cwd,
            env=env,
            stdin=inline,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
            merge_stderr=merge_stderr,
            key=idempotency_key,
            stdin_follows=follows,
        )
        return await self._send(call, async_pieces_of(stdin) if follows else None)

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
    ) -> AsyncGenerator[ExecOutput | ExecResult, None]:
        """Run a command and yield its output as it arrives, then its result. Closing the iterator kills it."""
        inline, follows = inline_stdin(stdin, None)
        call = calls.execute(
            tenant or self.tenant,
            session,
            command,
            cwd=cwd,
            env=env,
            stdin=inline,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
            merge_stderr=merge_stderr,
            key=None,
            stream=True,
            stdin_follows=follows,
        )
        result = None
        async with self._events(call, async_pieces_of(stdin) if follows else None) as events:
            async for kind, data in events:
                item = calls.exec_item(kind, data)
                if item is not None:
                    result = item
                    yield item
        if not isinstance(result, ExecResult):
            raise AnswerLost("cannot tell the outcome: the stream ended before the command did")

    async def start_process(
        self,
        session: str,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        tty: bool = False,
        term: str | None = None,
        echo: bool | None = None,
        rows: int | None = None,
        columns: int | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Process:
        """Start a command in the background. `term`, `echo`, `rows` and `columns` are options of its terminal."""
        return await self._send(
            calls.start_process(
                tenant or self.tenant,
                session,
                command,
                cwd=cwd,
                env=env,
                tty=tty,
                term=term,
                echo=echo,
                rows=rows,
                columns=columns,
                key=idempotency_key,
            )
        )

    async def list_processes(self, session: str, *, tenant: str | None = None) -> list[Process]:
        return await self._send(calls.list_processes(tenant or self.tenant, session))

    async def read_process(
        self,
        session: str,
        process: str,
        *,
        offset: int = 0,
        limit: int | None = None,
        wait_s: float = 0,
        tenant: str | None = None,
    ) -> ProcessOutput:
        """Return the output of a process from an offset: up to 256 KiB, or `limit` bytes of at most 1 MiB."""
        return await self._send(
            calls.read_process(tenant or self.tenant, session, process, offset=offset, limit=limit, wait_s=wait_s)
        )

    async def write_process(
        self,
        session: str,
        process: str,
        data: str | bytes,
        *,
        eof: bool = False,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Write all of the data; raise WriteIncomplete with the size taken if the process stops reading."""
        writing = StdinWrite(data, eof=eof, key=idempotency_key)
        while not writing.is_done:
            try:
                taken = await self._send(writing.next_call(tenant or self.tenant, session, process))
            except SandboxdError as error:
                writing.fail(error)
                raise
            writing.advance(taken)

    async def resize_process(
        self, session: str, process: str, rows: int, columns: int, *, tenant: str | None = None
    ) -> None:
        await self._send(calls.resize_process(tenant or self.tenant, session, process, rows, columns))

    async def signal_process(
        self,
        session: str,
        process: str,
        signal: str,
        *,
        to: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Send a signal such as INT, and return how many processes got it.

        `to` is `process`, `foreground` (the default if it has a terminal) or `children`: all its descendants.
        """
        return await self._send(
            calls.signal_process(tenant or self.tenant, session, process, signal, to=to, key=idempotency_key)
        )

    async def kill_process(
        self,
        session: str,
        process: str,
        *,
        signal: str | None = None,
        grace_s: float | None = None,
        tenant: str | None = None,
    ) -> Process:
        """Kill a process and everything it started.

        With a signal such as TERM they get that first, and those left after `grace_s` (5 by default) are killed;
        `ended_by` says which signal ended the last of them.
        """
        return await self._send(
            calls.kill_process(tenant or self.tenant, session, process, signal=signal, grace_s=grace_s)
        )

    async def read_file(self, session: str, path: str, *, tenant: str | None = None) -> bytes:
        return await self._send(calls.read_file(tenant or self.tenant, session, path))

    @asynccontextmanager
    async def open_file(
        self, session: str, path: str, *, tenant: str | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream a file: `async with client.open_file(...) as pieces:`"""
        async with self._stream(calls.read_file(tenant or self.tenant, session, path)) as pieces:
            yield pieces

    async def write_file(
        self,
        session: str,
        path: str,
        content: str | bytes | AsyncIterable[bytes],
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> FileInfo:
        """Replace a file in one step: readers see the old or the new one. `content` may be an iterable of bytes."""
        body = content.encode() if isinstance(content, str) else content
        return await self._send(calls.write_file(tenant or self.tenant, session, path, idempotency_key), body)

    async def tool(
        self,
        session: str,
        name: str,
        arguments: Mapping[str, Any],
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> ToolResult:
        return await self._send(calls.call_tool(tenant or self.tenant, session, name, arguments, idempotency_key))

    async def tools(self, session: str, *, tenant: str | None = None) -> list[ToolDescription]:
        return await self._send(calls.list_tools(tenant or self.tenant, session))

    async def events(self, after: int | None = None, *, follow: bool = True) -> AsyncGenerator[Event, None]:
        """Yield events from now on or after an id. Without `follow`, only past events."""
        async with self._events(calls.events(after, follow)) as events:
            async for _, data in events:
                yield calls.event_item(data)

    async def _send(self, call: Call[T], body: Body = None) -> T:
        return read_answer(call, await self._transport.send(call, body))

    @asynccontextmanager
    async def _stream(self, call: Call[Any], body: Body = None) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._transport.stream(call, body) as (status, pieces):
            if status >= 400:
                raise_problem(Answer(status, b"".join([piece async for piece in pieces])))
            yield pieces

    @asynccontextmanager
    async def _events(self, call: Call[Any], body: Body = None) -> AsyncIterator[AsyncIterator[tuple[str, str]]]:
        async with self._stream(call, body) as pieces:
            reader = EventReader()
            yield (event async for piece in pieces for event in reader.feed(piece))
