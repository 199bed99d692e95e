"""A tool call as a stream: the newest output of its command while it runs, then its result.

The output is for people who wait, so a slow reader misses some of it and never slows the tool down. The result is that
of the same call without a stream.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from memo.errors import MemoError
from memo.ids import SessionRef
from sandboxd.api.budget import SMALL_BYTES
from sandboxd.api.contracts import Manager, SandboxRunner
from sandboxd.api.problems import problem_of
from sandboxd.api.requests import MAX_STDIN_JSON_BYTES, read_body
from sandboxd.api.routes import Services
from sandboxd.api.streams import EVENTS_HEAD, KEEP_ALIVE, KEEP_ALIVE_S, Source, Streamed, sse
from sandboxd.errors import SandboxdError
from sandboxd.runner.calls import CommandResult, Exec

Call = Callable[[Services, Request], Awaitable[Response]]

UNREAD_CHARS = 8192
"""How much output waits for the reader; older output is dropped."""


async def stream_call(services: Services, request: Request, call: Call) -> Response:
    """Answer a tool call with a stream of events; `call` answers it without one."""
    body = await read_body(request, MAX_STDIN_JSON_BYTES)
    return Streamed(_events(services, request, body, call), services.watch)


async def _events(services: Services, request: Request, body: bytes, call: Call) -> Source:
    output = _Output()
    tapped = replace(services, manager=cast(Manager, _TappedManager(services.manager, output)))
    # A plain task: a task group would wrap every error that passes through here, and GeneratorExit too.
    running = asyncio.ensure_future(_call(tapped, request, body, call))
    running.add_done_callback(lambda _: output.changed.set())
    try:
        yield EVENTS_HEAD
        while not running.done():
            text = ""
            with anyio.move_on_after(KEEP_ALIVE_S):
                text = await output.read()
            yield sse("output", {"data": text}) if text else KEEP_ALIVE
        try:
            yield b"event: result\ndata: " + running.result() + b"\n\n"
        except (SandboxdError, MemoError) as error:
            yield sse("error", problem_of(error))
    finally:
        running.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait((running,))


async def _call(services: Services, request: Request, body: bytes, call: Call) -> bytes:
    """Make the call without a stream, and return the body of its answer: one line of JSON."""
    unread = [body]
    answer = bytearray()

    async def receive() -> Message:
        if not unread:
            await anyio.sleep_forever()  # the stream watches for a disconnect
        return {"type": "http.request", "body": unread.pop(), "more_body": False}

    async def send(message: Message) -> None:
        answer.extend(message.get("body", b""))

    headers = [(name, value) for name, value in request.scope["headers"] if name not in (b"accept", b"content-length")]
    scope = {**request.scope, "headers": headers}
    response = await call(services, Request(scope, receive))
    await response(scope, receive, send)
    return bytes(answer)


class _Output:
    """The newest output, as text."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._unread = ""
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def write(self, stream: str, data: bytes) -> None:
        decoder = self._decoders.setdefault(stream, codecs.getincrementaldecoder("utf-8")("replace"))
        self._unread = (self._unread + decoder.decode(data[-SMALL_BYTES:]))[-UNREAD_CHARS:]
        self.changed.set()

    async def read(self) -> str:
        """Wait for output or the end of the call; return what is unread."""
        await self.changed.wait()
        self.changed.clear()
        text, self._unread = self._unread, ""
        return text


class _TappedManager:
    """The manager, whose runners also pass on the output of commands."""

    def __init__(self, manager: Manager, output: _Output) -> None:
        self._manager = manager
        self._output = output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def call(self, ref: SessionRef) -> Any:
        return self._tapped(await self._manager.call(ref))

    @contextmanager
    def _tapped(self, called: Any) -> Iterator[_TappedRunner]:
        with called as runner:
            yield _TappedRunner(runner, self._output)


class _TappedRunner:
    def __init__(self, runner: SandboxRunner, output: _Output) -> None:
        self._runner = runner
        self._output = output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    async def exec(self, call: Exec) -> CommandResult:
        """Run a command to its end, as `RunnerClient.exec` does, and pass on its output meanwhile."""
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        is_truncated = False
        async with self._runner.stream(call) as items:
            async for item in items:
                if isinstance(item, CommandResult):
                    found = {name: bytes(data) for name, data in kept.items()}
                    return item.model_copy(update={**found, "truncated": item.truncated or is_truncated})
                room = call.max_output_bytes - len(kept[item.stream])
                is_truncated |= len(item.data) > room
                kept[item.stream] += item.data[:room]
                self._output.write(item.stream, item.data)
        raise SandboxdError("cannot tell the outcome of this command: its output ended before it did")
