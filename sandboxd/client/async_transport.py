"""Connections of the async client over a unix socket, TCP or TLS, kept alive and shared by tasks.

It speaks HTTP with aiohttp, and sends a request twice only if the first was not read or repeating it is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from yarl import URL

from sandboxd.client import request as rules
from sandboxd.client.address import Address
from sandboxd.client.async_websocket import AsyncClientSocket, async_open_socket, raise_refusals
from sandboxd.client.errors import DaemonUnreachable
from sandboxd.client.request import MAX_ANSWER_BYTES, Answer, Request, broken, is_unread, silent, too_large
from sandboxd.client.tls import make_context
from sandboxd.errors import InvalidRequest
from sandboxd.models.wire import AnswerModel

AnswerModel.model_rebuild(force=True)  # loads what pydantic builds models with: later it would block the event loop

MAX_CONNECTIONS = 512
PIECE_BYTES = 262_144

_AUTOMATIC_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class _Broken(Exception):
    """The connection ended before the answer began."""

    def __init__(self, error: aiohttp.ClientError) -> None:
        super().__init__(_reason(error))
        is_refused = any(isinstance(one, aiohttp.ClientConnectionResetError) for one in (error, error.__cause__))
        # aiohttp refuses to write to a closed connection, as the kernel does with EPIPE.
        self.system_error = BrokenPipeError() if is_refused else error.__cause__


class _Response(aiohttp.ClientResponse):
    def close(self) -> None:
        """Abort a connection whose answer is not complete, so that the daemon notices.

        Closing it would wait until the daemon has read what is written, possibly forever.
        """
        connection = self.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        super().close()


async def _send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Hide a lost connection from aiohttp, which would send GET, PUT and DELETE again by itself."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except aiohttp.ClientError as error:
        raise _Broken(error) from error


class _Upload:
    """The body of one request, in chunks; each of them restarts the deadline of the answer."""

    def __init__(self, request: Request, stream: AsyncIterable[bytes] | None) -> None:
        self._request = request
        self._stream = stream
        self._deadline: asyncio.Timeout | None = None
        self._response: aiohttp.ClientResponse | None = None
        self.is_streamed = stream is not None
        self.error: Exception | None = None
        """An error in the stream, for the reader of the answer."""

    def begin(self, deadline: asyncio.Timeout) -> bytes | AsyncIterator[bytes] | None:
        self._deadline = deadline
        body = self._request.body
        return body if self._stream is None and (body is None or len(body) <= PIECE_BYTES) else self._pieces()

    def answer(self, response: aiohttp.ClientResponse) -> None:
        """Record that the answer has begun: from now on its reader enforces the deadline."""
        self._deadline = None
        self._response = response

    async def _pieces(self) -> AsyncIterator[bytes]:
        body = self._request.body or b""
        for start in range(0, len(body), PIECE_BYTES):
            self._restart_deadline()
            yield body[start : start + PIECE_BYTES]
        if self._stream is None:
            return
        try:
            async for piece in self._stream:
                self._restart_deadline()
                if piece:
                    yield piece
        except Exception as error:
            self.error = error
            if self._response is not None:  # aiohttp would keep its reader waiting
                self._response.content.set_exception(error)
                self._response.close()
            raise

    def _restart_deadline(self) -> None:
        deadline, timeout_s = self._deadline, self._request.timeout_s
        if deadline is not None and timeout_s is not None:
            deadline.reschedule(asyncio.get_running_loop().time() + timeout_s)


class AsyncTransport:
    """Owns the connections, each with one request at a time; opens a new one if none is idle."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._context = make_context() if address.is_tls else None
        self._headers = {"host": address.authority}
        if address.token is not None:
            self._headers["authorization"] = f"Bearer {address.token}"
        self._kept_alive: aiohttp.ClientSession | None = None
        self._unshared: aiohttp.ClientSession | None = None
        """Opens a connection for each request: the second try of one, or a streamed body, which cannot be resent."""
        self._socket_session: aiohttp.ClientSession | None = None
        """Opens WebSockets."""
        self._sockets: set[AsyncClientSocket] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    async def send(self, request: Request, stream: AsyncIterable[bytes] | None = None) -> Answer:
        """Send a request and return its whole answer. A streamed body follows the request's own."""
        async with self._answered(request, stream) as (response, pieces):
            body = bytearray()
            async for piece in pieces:
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise too_large()
            return Answer(response.status, bytes(body), response.headers)

    @asynccontextmanager
    async def stream(
        self, request: Request, stream: AsyncIterable[bytes] | None = None
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """Send a request and stream its answer. Leaving early closes the connection."""
        async with self._answered(request, stream) as (response, pieces):
            yield response.status, pieces

    async def open_socket(self, target: str) -> AsyncClientSocket:
        """Open a WebSocket, on a connection of its own."""
        self._check_usable()
        if self._socket_session is None:
            self._socket_session = self._open_session(force_close=True, middlewares=(), raise_for_status=raise_refusals)
        opened = await async_open_socket(
            self._socket_session, self.address, target, self._headers, rules.SHORT_S, self._sockets.discard
        )
        self._sockets.add(opened)
        return opened

    async def close(self) -> None:
        self._is_closed = True
        for opened in list(self._sockets):
            await opened.close()
        for session in (self._kept_alive, self._unshared, self._socket_session):
            if session is not None:
                await session.close()

    @asynccontextmanager
    async def _answered(
        self, request: Request, stream: AsyncIterable[bytes] | None
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, AsyncIterator[bytes]]]:
        upload = _Upload(request, stream)
        response = await self._begin(request, upload)
        try:
            yield response, self._read(request, upload, response)
        finally:
            response.close()  # a complete answer has already given its connection back

    async def _begin(self, request: Request, upload: _Upload) -> aiohttp.ClientResponse:
        """Send a request and wait for its answer to begin; it may be sent once more if the connection breaks."""
        is_second = False
        # One poll, then its callbacks: a connection may have been closed while the event loop was blocked.
        for _ in range(2):
            await asyncio.sleep(0)
        while True:
            session = self._session(is_new=is_second or upload.is_streamed)
            try:
                return await self._ask(session, request, upload)
            except TimeoutError as error:
                raise silent(request) from error
            except aiohttp.ClientConnectorError as error:
                reason = error.strerror or str(error.os_error)
                raise DaemonUnreachable(f"cannot reach the daemon at {self.address}: {reason}") from error.os_error
            except _Broken as error:
                if upload.error is not None:
                    raise upload.error from None
                # A streamed body cannot be sent again, and the daemon acts on it before it has read all of it.
                unread = not upload.is_streamed and is_unread(self.address, error.system_error)
                if is_second or upload.is_streamed or not (request.is_safe or unread):
                    raise broken(request, self.address, str(error), unread=unread) from error
                is_second = True

    async def _ask(self, session: aiohttp.ClientSession, request: Request, upload: _Upload) -> aiohttp.ClientResponse:
        async with asyncio.timeout(request.timeout_s) as deadline:
            data = upload.begin(deadline)
            headers = {**self._headers, **request.headers}
            if request.body is not None and data is not None and not upload.is_streamed:
                headers["content-length"] = str(len(request.body))
            url = URL(self.address.url + request.target, encoded=True)
            response = await session.request(request.method, url, headers=headers, data=data, allow_redirects=False)
            upload.answer(response)
            return response

    async def _read(self, request: Request, upload: _Upload, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Time spent by the caller does not count as the daemon's silence."""
        content = response.content
        try:
            while not content.at_eof():
                async with asyncio.timeout(request.timeout_s):
                    piece = await content.readany()
                if piece:
                    yield piece
        except (TimeoutError, aiohttp.ClientError) as error:
            if upload.error is not None:
                raise upload.error from None
            if isinstance(error, TimeoutError):
                raise silent(request) from error
            raise broken(request, self.address, _reason(error), unread=False) from error

    def _session(self, *, is_new: bool) -> aiohttp.ClientSession:
        """Return the pool of connections. The first call creates it, because it belongs to a running event loop."""
        self._check_usable()
        if is_new:
            if self._unshared is None:
                self._unshared = self._open_session(force_close=True)
            return self._unshared
        if self._kept_alive is None:
            self._kept_alive = self._open_session(keepalive_timeout=rules.IDLE_S)
        return self._kept_alive

    def _check_usable(self) -> None:
        if self._is_closed:
            raise DaemonUnreachable("cannot send: this client is closed")
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise InvalidRequest("cannot send: this client belongs to another event loop; make a client for each loop")

    def _open_session(
        self,
        *,
        middlewares: tuple[aiohttp.ClientMiddlewareType, ...] = (_send_once,),
        raise_for_status: bool | Callable[[aiohttp.ClientResponse], Awaitable[None]] = False,
        **options: Any,
    ) -> aiohttp.ClientSession:
        connector: aiohttp.BaseConnector
        if self.address.socket is not None:
            connector = aiohttp.UnixConnector(str(self.address.socket), limit=MAX_CONNECTIONS, **options)
        else:
            tls = True if self._context is None else self._context
            connector = aiohttp.TCPConnector(ssl=tls, limit=MAX_CONNECTIONS, **options)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_AUTOMATIC_HEADERS,
            timeout=aiohttp.ClientTimeout(),  # none: a deadline here limits the daemon's silence, not the whole call
            middlewares=middlewares,
            response_class=_Response,
            raise_for_status=raise_for_status,
        )


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it was closed"
    if isinstance(error, aiohttp.ClientResponseError):
        return "the answer is not HTTP"
    return str(error) or type(error).__name__
