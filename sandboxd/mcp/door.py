"""MCP over HTTP inside the daemon, at /mcp, behind the daemon's own authentication.

The SDK is imported by the first request, in a thread. A client that disconnects cancels its calls, because their
answers could not be delivered any more. A drain ends streams that only wait and lets calls finish.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandboxd.mcp.binding import Binding, parse_binding
from sandboxd.mcp.scope_keys import BINDING, CALLS
from sandboxd.mcp.surrogates import repair

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from sandboxd.mcp.server import SandboxServer

MAX_SESSIONS = 256
SESSION_IDLE_S = 1800.0
MAX_BODY_BYTES = 4_194_304

Reserve = Callable[[Scope, int], None]


class McpDoor:
    """An ASGI app. It works between `open()` and the end of that block; `connect` it to the daemon's app first."""

    def __init__(
        self,
        version: str,
        *,
        reserve: Reserve,
        max_sessions: int = MAX_SESSIONS,
        session_idle_s: float = SESSION_IDLE_S,
    ) -> None:
        """`reserve` reserves memory for a request's body, or raises."""
        self._version = version
        self._reserve = reserve
        self._max_sessions = max_sessions
        self._session_idle_s = session_idle_s
        self._app: ASGIApp | None = None
        self._server: SandboxServer | None = None
        self._sessions: StreamableHTTPSessionManager | None = None
        self._first = anyio.Event()
        self._is_running = anyio.Event()
        self._is_draining = False
        self._exchanges: set[_WatchedExchange] = set()

    def connect(self, app: ASGIApp) -> None:
        """Set the daemon's app, which carries out what clients ask for."""
        self._app = app

    def stop(self) -> None:
        """End streams that only wait for news, because the daemon drains; calls under way go on."""
        self._is_draining = True
        for exchange in self._exchanges:
            exchange.end_waiting()
        if self._server is not None:
            self._server.end_listens()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run)
            yield
            tasks.cancel_scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        scope[BINDING] = parse_binding(QueryParams(scope["query_string"]), headers)
        if scope["method"] == "POST":
            self._reserve(scope, 2 * min(int(headers.get("content-length") or MAX_BODY_BYTES), MAX_BODY_BYTES))
        self._first.set()
        await self._is_running.wait()
        assert self._sessions is not None  # noqa: S101  # it is running
        exchange = _WatchedExchange(scope, receive, send)
        self._exchanges.add(exchange)
        if self._is_draining:
            exchange.end_waiting()
        try:
            await exchange.run(self._sessions.handle_request)
        finally:
            self._exchanges.discard(exchange)

    async def _run(self) -> None:
        await self._first.wait()
        await anyio.to_thread.run_sync(_import_sdk)
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from sandboxd.mcp.in_process import InProcessClient
        from sandboxd.mcp.server import SandboxServer

        assert self._app is not None, "connect the daemon's app first"  # noqa: S101
        self._server = SandboxServer(InProcessClient(self._app), _binding_of, self._version)
        self._sessions = StreamableHTTPSessionManager(
            self._server,
            max_sessions=self._max_sessions,
            session_idle_timeout=self._session_idle_s,
            max_request_body_size=MAX_BODY_BYTES,
        )
        async with self._sessions.run():
            self._is_running.set()
            await anyio.sleep_forever()


def _binding_of(context: ServerRequestContext[Any, Any]) -> Binding:
    assert context.request is not None  # noqa: S101  # this transport always has one
    found: Binding = context.request.scope[BINDING]
    return found


class _WatchedExchange:
    """One request and its answer. A client that disconnects cancels its calls; a drain ends a stream of news."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._calls: set[anyio.CancelScope] = set()
        self._only_waits = scope["method"] == "GET"
        self._waiting: anyio.CancelScope | None = None
        self._is_ended = False
        self._is_begun = self._is_complete = False
        scope[CALLS] = self._calls

    def end_waiting(self) -> None:
        """End a stream that only waits for news."""
        if self._only_waits:
            self._is_ended = True
            if self._waiting is not None:
                self._waiting.cancel()

    async def run(self, app: ASGIApp) -> None:
        await app(self._scope, self._get, self._put)
        if self._is_ended and self._is_begun and not self._is_complete:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _get(self) -> Message:
        with anyio.CancelScope() as self._waiting:
            message = {"type": "http.disconnect"} if self._is_ended else await self._read()
            if message["type"] == "http.disconnect":
                for call in list(self._calls):
                    call.cancel()
            return message
        return {"type": "http.disconnect"}

    async def _read(self) -> Message:
        """Return the body as one piece, for it to be repaired; one that is too large is left to the SDK to refuse."""
        message: Message = await self._receive()
        body = bytearray(message.get("body", b""))
        while message.get("more_body", False) and len(body) <= MAX_BODY_BYTES:
            message = await self._receive()
            body += message.get("body", b"")
        return {**message, "body": repair(bytes(body))} if message["type"] == "http.request" else message

    async def _put(self, message: Message) -> None:
        self._is_begun = True
        self._is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)


def _import_sdk() -> None:
    from sse_starlette import EventSourceResponse

    from sandboxd.mcp import server

    # The daemon ends these streams itself; the library would look for a signal twice a second, for ever.
    EventSourceResponse._listen_for_exit_signal = staticmethod(anyio.sleep_forever)  # type: ignore[method-assign]
    logging.getLogger("mcp").setLevel(logging.WARNING)
    _ = server
