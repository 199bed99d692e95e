"""A client inside the daemon: its requests go to the daemon's app directly, without a socket.

So MCP inside the daemon obeys every rule of the API (admission, memory budget, tenants, drain, attribution), needs no
second implementation, and goes on working while the daemon drains and its sockets are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message

from sandboxd.client import AnswerLost, AsyncClient
from sandboxd.client.address import Address
from sandboxd.client.async_transport import AsyncTransport
from sandboxd.client.async_websocket import AsyncClientSocket
from sandboxd.client.request import MAX_ANSWER_BYTES, Answer, Request, too_large
from sandboxd.errors import InvalidRequest

_PIECES = 8
"""How many pieces of an answer may wait for their reader."""


class InProcessClient(AsyncClient):
    def __init__(self, app: ASGIApp) -> None:
        super().__init__(Path("/in-process"))
        self._transport = InProcessTransport(app)


class InProcessTransport(AsyncTransport):
    def __init__(self, app: ASGIApp) -> None:
        super().__init__(Address(socket=Path("/in-process")))
        self._app = app

    async def send(self, request: Request, stream: AsyncIterable[bytes] | None = None) -> Answer:
        async with self._exchange(request, stream) as (exchange, pieces):
            body = bytearray()
            async for piece in pieces:
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise too_large()
            return Answer(exchange.status, bytes(body), exchange.headers)

    @asynccontextmanager
    async def stream(
        self, request: Request, stream: AsyncIterable[bytes] | None = None
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        async with self._exchange(request, stream) as (exchange, pieces):
            yield exchange.status, pieces

    async def open_socket(self, target: str) -> AsyncClientSocket:
        raise InvalidRequest("cannot open a WebSocket inside the daemon")

    async def close(self) -> None:
        """Nothing is open between calls."""

    @asynccontextmanager
    async def _exchange(
        self, request: Request, stream: AsyncIterable[bytes] | None
    ) -> AsyncIterator[tuple[_AppCall, AsyncIterator[bytes]]]:
        if stream is not None:
            raise InvalidRequest("cannot stream a body inside the daemon")
        exchange = _AppCall(request)
        # A plain task: a task group would wrap every error that passes through here, and GeneratorExit too.
        running = asyncio.ensure_future(exchange.run(self._app))
        try:
            await exchange.begun.wait()
            if not exchange.status:
                raise AnswerLost("cannot tell the outcome: the call ended without an answer")
            yield exchange, exchange.pieces()
        finally:
            running.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait((running,))


class _AppCall:
    """One request to the app and its answer."""

    def __init__(self, request: Request) -> None:
        path, _, query = request.target.partition("?")
        self._unread = [request.body or b""]
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [
                (b"content-length", str(len(request.body or b"")).encode()),
                *((name.lower().encode(), value.encode()) for name, value in request.headers.items()),
            ],
            "client": None,
            "server": ("in-process", None),
        }
        self._send, self._receive = anyio.create_memory_object_stream[bytes](_PIECES)
        self.begun = anyio.Event()
        self.status = 0
        self.headers = Headers()
        self._is_complete = False

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self._get, self._put)
        finally:
            self.begun.set()
            self._send.close()

    async def pieces(self) -> AsyncIterator[bytes]:
        with self._receive:
            async for piece in self._receive:
                yield piece
        if not self._is_complete:
            raise AnswerLost("cannot tell the outcome: the answer ended early")

    async def _get(self) -> Message:
        if not self._unread:
            await anyio.sleep_forever()  # a caller that leaves cancels the task
        return {"type": "http.request", "body": self._unread.pop(), "more_body": False}

    async def _put(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = Headers(raw=list(message["headers"]))
            self.begun.set()
            return
        if body := message.get("body", b""):
            await self._send.send(bytes(body))
        self._is_complete = not message.get("more_body", False)
