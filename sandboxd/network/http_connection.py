"""One HTTP/1.1 connection on either side of the proxy: h11 on a ByteStream, with bounds.

What h11 refuses is refused here. Nothing is decided about a request, and no body is kept: each part is read when it is
asked for, so a slow reader slows its writer.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import anyio
import h11

from sandboxd.errors import SandboxError
from sandboxd.network.byte_stream import ByteStream
from sandboxd.network.http_head import HttpRefusal, RequestHead

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 100
MAX_METHOD_CHARS: Final = 32
_LINGER_S: Final = 2.0
_MAX_PHRASE_BYTES: Final = 200
STREAM_ERRORS: Final = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, SandboxError)
"""What a ByteStream raises when its other end has failed."""


class ClientGone(Exception):
    """The client in the sandbox has closed its connection, or the connection failed."""

    def __init__(self) -> None:
        super().__init__("the client closed the connection before its answer was complete")


class OriginFailed(Exception):
    """The origin closed its connection too early, or its answer is not HTTP/1.1."""

    def __init__(self) -> None:
        super().__init__("cannot get an answer: the host closed the connection, or what it sent is not HTTP/1.1")


class HttpClientConnection:
    """The connection of a client in a sandbox, which sends requests."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._received = self._sent = 0
        self.has_sent_request = False
        """Whether the whole request, with its body, has been read."""
        self.has_body = False
        self.is_gone = False

    async def read_request(self) -> RequestHead | None:
        """Return the head of the next request, or None if the client has ended; raise HttpRefusal if it is invalid."""
        if self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            self._http.start_next_cycle()
        self._received = self._sent = 0
        self.has_sent_request = self.has_body = False
        event = await self._next()
        if not isinstance(event, h11.Request):
            return None
        head = RequestHead(
            event.method.decode(), event.target.decode(), event.headers.raw_items(), event.http_version < b"1.1"
        )
        size = sum(len(name) + len(value) + 4 for name, value in head.headers) + len(event.target)
        if size > MAX_HEAD_BYTES or len(head.headers) > MAX_HEADERS:
            raise HttpRefusal(431, f"cannot read the request: its head exceeds {MAX_HEADERS} headers or 64 KiB")
        if len(head.method) > MAX_METHOD_CHARS:
            raise HttpRefusal(501, "cannot read the request: its method is unknown")
        if head.method == "CONNECT" and any(head.has(name) for name in (b"transfer-encoding", b"content-length")):
            raise HttpRefusal(400, "cannot read the request: CONNECT has no body")
        if head.has(b"transfer-encoding") and (head.has(b"content-length") or head.is_http_1_0):
            raise HttpRefusal(400, "cannot read the request: its body has two lengths; send one of them")
        return head

    @property
    def byte_counts(self) -> tuple[int, int]:
        """How much was received and sent since the last request was asked for."""
        return self._received, self._sent

    @property
    def rest(self) -> bytes:
        """The bytes read beyond the head of a CONNECT: the first of the tunnel."""
        return self._http.trailing_data[0]

    async def accept_tunnel(self) -> None:
        """Answer a CONNECT: from here on the stream belongs to the tunnel."""
        await self.next_part()
        await self.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))

    async def next_part(self) -> bytes:
        """Return the next part of the request's body, or nothing at its end; raise HttpRefusal if it is cut."""
        while not self.has_sent_request:
            event = await self._next()
            if isinstance(event, h11.Data):
                self.has_body = True
                return event.data
            if not isinstance(event, h11.EndOfMessage):
                raise HttpRefusal(400, "cannot read the request: it ended within its body")
            self.has_sent_request = True
        return b""

    async def wait_gone(self) -> bool:
        """After a whole request: return True if the client closes the connection, False once it sends something."""
        if not self._http.trailing_data[0]:  # one request in advance is enough to keep
            await self._receive()
        return self.is_gone

    @property
    def has_answered(self) -> bool:
        """Whether the answer to the current request has begun."""
        return self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE)

    @property
    def is_reusable(self) -> bool:
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE and not self.is_gone

    async def send(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            self._sent += len(data)
            try:
                await self._stream.send(data)
            except STREAM_ERRORS:
                raise ClientGone from None

    async def refuse(self, refusal: HttpRefusal) -> None:
        """Answer with the refusal. The connection can only be ended then."""
        text = f"{refusal.text}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
        headers.append(("Connection", "close"))
        # Most clients show only the status line of an answer to CONNECT, so it says what it can.
        phrase = refusal.text.partition(";")[0].encode("ascii", "replace")[:_MAX_PHRASE_BYTES]
        answer = self._http.send(h11.Response(status_code=refusal.status, headers=headers, reason=phrase)) or b""
        with suppress(h11.LocalProtocolError):  # the answer to HEAD has no body
            answer += self._http.send(h11.Data(data=text)) or b""
        self._sent += len(answer)
        with suppress(*STREAM_ERRORS):
            await self._stream.send(answer)

    async def end(self) -> None:
        """End the answers. Until the client has closed, and not for long, discard what it still sends.

        Closing at once could reset the connection before the client has read the answer.
        """
        with anyio.move_on_after(_LINGER_S), suppress(*STREAM_ERRORS):
            await self._stream.send_eof()
            while not self.is_gone and await self._stream.receive():
                pass

    async def _next(self) -> h11.Event | type[h11.PAUSED]:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                await self._receive()
        except h11.RemoteProtocolError as error:
            raise HttpRefusal(error.error_status_hint, "cannot read the request: it is not valid HTTP/1.1") from None
        return event  # type: ignore[return-value]  # not NEED_DATA

    async def _receive(self) -> None:
        try:
            data = await self._stream.receive()
        except STREAM_ERRORS:
            raise ClientGone from None
        self._received += len(data)
        self.is_gone = not data
        self._http.receive_data(data)


class HttpOriginConnection:
    """The connection to an origin, which answers requests."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.has_answered = False
        """Whether anything has arrived since the last request."""
        self.is_stale = False

    async def send(self, event: h11.Event) -> None:
        try:
            if data := self._http.send(event):
                await self._stream.send(data)
        except STREAM_ERRORS:
            raise OriginFailed from None

    async def next_event(self) -> h11.Event | type[h11.PAUSED]:
        """Return the next part of the answer."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                data = await self._stream.receive()
                self.has_answered = self.has_answered or bool(data)
                self._http.receive_data(data)
        except (*STREAM_ERRORS, h11.RemoteProtocolError):
            raise OriginFailed from None
        return event  # type: ignore[return-value]  # not NEED_DATA

    async def watch_idle(self, _: anyio.CancelScope) -> None:
        """Between requests: notice when the origin closes, or sends something unasked."""
        with suppress(*STREAM_ERRORS):
            await self._stream.receive()
        self.is_stale = True

    def start_next(self) -> bool:
        """Return whether the connection can carry one more request, and prepare it."""
        both_done = self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}
        if not both_done or self._http.trailing_data[0] or self.is_stale:
            return False
        self._http.start_next_cycle()
        self.has_answered = False
        return True
