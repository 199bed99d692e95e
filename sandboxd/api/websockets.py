"""WebSockets: the handshake of a request, and one open socket with typed messages, pings and close codes.

A handshake is an ordinary request up to its answer, so authentication, routing, admission and errors are those of every
request. It bounds what a client can make the daemon hold: a message, one read from the socket, and a write buffer. A
client that does not read stops its socket's own `send`, and nothing else. Compression is refused, because a small frame
could then hold a large message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import anyio
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from websockets.datastructures import Headers
from websockets.exceptions import InvalidUpgrade
from websockets.http11 import Request as HandshakeRequest
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from sandboxd.api.admission import seat_of
from sandboxd.api.budget import allotment
from sandboxd.api.refusals import ClientLeft, UpgradeRequired
from sandboxd.api.upgraded import UPGRADE, UpgradedStream
from sandboxd.errors import InvalidRequest, SandboxdError
from sandboxd.websocket_codec import FAILED, GOING_AWAY, LOST, NORMAL, WebSocketCodec

_log = structlog.get_logger("sandboxd.api")

MAX_MESSAGE_BYTES = 65_536
_MESSAGES_HELD = 4
"""How much a socket may hold, in messages: one each way, one read from the socket, and the write buffer."""
_SILENT_PINGS = 3
"""A client that has sent nothing for this many intervals, not even the answer to a ping, is gone."""
_GOODBYE_S = 2.0
"""How long to wait for the answer to a close frame."""


class SocketClosed(Exception):  # not an error: the client may close at any time
    """Raised by `receive` once the client has closed the socket or is gone."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class WebSocket:
    """One open socket. One task may receive while others send."""

    def __init__(self, stream: UpgradedStream, subprotocol: str | None, max_message_bytes: int) -> None:
        self._stream = stream
        self._codec = WebSocketCodec(max_message_bytes=max_message_bytes)
        self._messages: deque[str | bytes] = deque()
        self.subprotocol = subprotocol

    async def receive(self) -> str | bytes:
        """Return the next message: text as str, binary as bytes. Raise SocketClosed when there is none."""
        while not self._messages:
            if (end := self._codec.end) is not None:
                raise SocketClosed(end.code, end.reason)
            data = await self._stream.receive()
            if not data:
                raise SocketClosed(LOST, "")
            self._messages.extend(self._codec.receive(data))
            if output := self._codec.take_output():
                # Awaited, so that a client that sends pings and never reads the answers is not read either.
                await self._stream.send(output)
        return self._messages.popleft()

    async def send(self, message: str | bytes) -> None:
        """Send a message, and wait while the client does not read. Dropped if the socket is closed."""
        await self._stream.send(self._codec.encode(message))

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Send a close frame; what is sent afterwards is dropped."""
        await self._stream.send(self._codec.close(code, reason))

    async def run(self, talk: Callable[[WebSocket], Awaitable[None]]) -> None:
        """Run `talk` until it returns, the client is gone or the daemon stops; then close the socket. Never raises."""
        code, reason = NORMAL, ""
        async with anyio.create_task_group() as tasks:
            talking = anyio.CancelScope()
            tasks.start_soon(self._keep_alive, talking)
            try:
                with talking:
                    await talk(self)
            except SocketClosed:
                pass
            except SandboxdError as error:
                code, reason = FAILED, error.code
            except Exception as error:  # noqa: BLE001  # no other boundary can answer once the socket is open
                _log.error("WebSocket failed", exc_info=error)
                code, reason = FAILED, "internal.error"
            if self._stream.is_draining:
                code, reason = GOING_AWAY, "the daemon is stopping"
            await self._say_goodbye(code, reason)
            tasks.cancel_scope.cancel()

    async def _keep_alive(self, talking: anyio.CancelScope) -> None:
        """Ping the client; end the talk if it is gone or the daemon stops."""
        stream = self._stream
        while not stream.leaving.is_set():
            with anyio.move_on_after(stream.ping_s):
                await stream.leaving.wait()
            is_silent = anyio.current_time() - stream.last_heard > _SILENT_PINGS * stream.ping_s
            if is_silent and not stream.is_held_up:
                stream.abort()
            elif stream.is_writable:
                stream.send_nowait(self._codec.ping())
        talking.cancel()

    async def _say_goodbye(self, code: int, reason: str) -> None:
        """Close the socket and wait a moment for the client to agree, so that it reads everything before that."""
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _GOODBYE_S):
            await self.close(code, reason)
            while self._codec.end is None:
                data = await self._stream.receive()
                if not data:
                    break
                self._codec.receive(data)
        self._stream.close()


class UpgradableConnection(Protocol):
    """What a handshake needs from the connection. `connection.HttpConnection` implements it."""

    transport: asyncio.Transport

    @property
    def is_upgradable(self) -> bool: ...
    def upgrade(self, head: bytes) -> UpgradedStream: ...


class Handshake:
    """A valid request for a WebSocket that has a place among the open sockets, but no answer yet."""

    def __init__(
        self, request: Request, *, subprotocols: Sequence[str] = (), max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        """Raise UpgradeRequired or InvalidRequest for a request that is not a handshake, Busy if there is no room."""
        self._max_message_bytes = max_message_bytes
        self._library = ServerProtocol(subprotocols=[Subprotocol(name) for name in subprotocols] or None)
        self._response = self._library.accept(_as_handshake(request))
        problem = self._library.handshake_exc
        if isinstance(problem, InvalidUpgrade):
            raise UpgradeRequired("cannot answer this request: this route speaks WebSocket; connect with its client")
        if problem is not None:
            raise InvalidRequest(f"cannot open a WebSocket: {str(problem)[:200]}")
        allotment(request).take(_MESSAGES_HELD * max_message_bytes)
        self._upgrade = claim_upgrade(request.scope, request.scope["path_params"]["session"])

    async def serve(self, talk: Callable[[WebSocket], Awaitable[None]]) -> Response:
        """Accept the socket and run `talk` on it. Return the response for the route to return: all has been sent."""
        stream = self._upgrade(self._response.serialize())
        await WebSocket(stream, self._library.subprotocol, self._max_message_bytes).run(talk)
        return _Answered()


def claim_upgrade(scope: Scope, session: str) -> Callable[[bytes], UpgradedStream]:
    """Give a request for an upgrade its place among the open sockets of a session.

    Return the function that answers it with a head and takes over the connection. Raise InvalidRequest if the request
    has a body, Busy or LimitReached if there is no room.
    """
    find: Callable[[], UpgradableConnection | None] = scope[UPGRADE]

    def find_connection() -> UpgradableConnection:
        connection = find()
        if connection is None or connection.transport.is_closing():
            raise ClientLeft
        return connection

    # The parser takes a body for the first bytes of the other protocol, where a proxy would take it for a body.
    has_body = any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )
    if has_body or not find_connection().is_upgradable:
        raise InvalidRequest("cannot open a WebSocket: the request has a body; send it without one")
    seat_of(scope).move_to_sockets(session)
    return lambda head: find_connection().upgrade(head)


def _as_handshake(request: Request) -> HandshakeRequest:
    scope = request.scope
    headers = Headers((name.decode("ascii"), value.decode("latin-1")) for name, value in scope["headers"])
    handshake = HandshakeRequest(scope["path"], headers)
    # Fields of websockets 17, which checks them; older versions leave that to the server.
    handshake.method, handshake.protocol = scope["method"], f"HTTP/{scope['http_version']}"
    return handshake


class _Answered(Response):
    """The response of a socket that is over."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        return
