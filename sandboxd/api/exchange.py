"""One request and its answer, as an app of ASGI sees them. Owns the framing of the answer.

An answer whose size is known leaves in one write, because every write wakes the client. One that comes piece by
piece leaves as it comes. It never touches the socket but through its connection.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Protocol

from starlette.types import Message, Scope

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus}
_BODYLESS = (204, 304)


class Wire(Protocol):
    """The connection an exchange runs on."""

    transport: asyncio.Transport
    is_last: bool
    """Whether the connection ends after this exchange."""

    @property
    def drained(self) -> asyncio.Future[None] | None: ...
    def resume_reading(self) -> None: ...
    def ended(self, *, keep_alive: bool) -> None: ...


class Exchange:
    __slots__ = (
        "_expects_continue",
        "_has_all_body",
        "_has_told_end",
        "_head",
        "_held",
        "_held_bytes",
        "_is_chunked",
        "_is_gone",
        "_is_over",
        "_is_silent",
        "_keep_alive",
        "_waiter",
        "_wire",
        "scope",
    )

    def __init__(self, wire: Wire, scope: Scope, *, keep_alive: bool) -> None:
        self.scope = scope
        self._wire = wire
        self._keep_alive = keep_alive
        self._held: list[bytes] = []
        """What has come of the request's body and was not taken yet."""
        self._held_bytes = 0
        self._has_all_body = False
        self._has_told_end = False
        self._waiter: asyncio.Future[None] | None = None
        self._head: bytes | None = None
        """The head of the answer, while it waits for the first piece of the body."""
        self._is_chunked = False
        self._is_silent = scope["method"] == "HEAD"
        self._is_gone = False
        self._is_over = False
        self._expects_continue = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in scope["headers"]
        )

    def take_body(self, piece: bytes) -> int:
        """A piece of the request's body came. Return how much of it is held."""
        if self._is_over:
            return 0  # answered without being read: what still comes is dropped
        self._held.append(piece)
        self._held_bytes += len(piece)
        self._wake()
        return self._held_bytes

    def end_body(self) -> None:
        self._has_all_body = True
        self._wake()

    def disconnect(self) -> None:
        self._is_gone = True
        self._wake()

    async def receive(self) -> Message:
        """Give the body as it comes. After its end, wait for the client to go away or the answer to be complete."""
        if not self._has_news:
            if self._expects_continue and not self._has_all_body:
                self._expects_continue = False
                self._wire.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._wire.resume_reading()
            while not self._has_news:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        if self._is_gone or self._is_over:
            return {"type": "http.disconnect"}
        held, self._held, self._held_bytes = self._held, [], 0
        self._has_told_end = self._has_all_body
        body = held[0] if len(held) == 1 else b"".join(held)
        return {"type": "http.request", "body": body, "more_body": not self._has_all_body}

    @property
    def _has_news(self) -> bool:
        return bool(self._held) or self._has_all_body > self._has_told_end or self._is_gone or self._is_over

    async def send(self, message: Message) -> None:
        if self._is_gone or self._is_over:
            return
        if message["type"] == "http.response.start":
            self._start(message)
            return
        self._send_piece(message.get("body", b""), is_last=not message.get("more_body", False))
        if (drained := self._wire.drained) is not None and not self._is_over:
            await asyncio.shield(drained)

    def close(self) -> None:
        """The app has returned. An answer that is not complete breaks the connection: that is how a client learns."""
        if not self._is_over:
            self._end(keep_alive=False)

    def _start(self, message: Message) -> None:
        status: int = message["status"]
        has_length = False
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        for name, value in message["headers"]:
            lines.append(b"%b: %b\r\n" % (name, value))
            has_length = has_length or name == b"content-length"
        self._is_silent = self._is_silent or status in _BODYLESS
        if not has_length and not self._is_silent:
            if self.scope["http_version"] == "1.1":
                self._is_chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
            else:
                self._keep_alive = False  # the end of the connection is the end of the answer
        if self._expects_continue and not self._has_all_body:
            self._keep_alive = False  # nobody knows whether the body still comes
        if not self._keep_alive or self._wire.is_last:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if has_length:
            self._head = head
        else:
            self._wire.transport.write(head)  # at once: the first piece may be long in coming

    def _send_piece(self, body: bytes, *, is_last: bool) -> None:
        head, self._head = self._head, None
        if self._is_silent:
            body = b""
        elif self._is_chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if is_last else b"")
        if head is not None:
            body = head + body
        if body:
            self._wire.transport.write(body)
        if is_last:
            self._end(keep_alive=self._keep_alive)

    def _end(self, *, keep_alive: bool) -> None:
        self._is_over = True
        self._wake()
        self._wire.ended(keep_alive=keep_alive)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
