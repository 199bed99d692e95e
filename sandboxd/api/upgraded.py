"""The bytes of a connection after its upgrade from HTTP to another protocol, with flow control in both directions.

It holds one read from the socket and one full write buffer. It does not know which protocol the bytes belong to.
"""

from __future__ import annotations

import asyncio

import anyio
from uvicorn.protocols.http.flow_control import FlowControl

UPGRADE = "sandboxd.upgrade"
"""Scope key of a weak reference to the connection, present if the request asks for an upgrade to a WebSocket."""
PIECE_BYTES = 16_384
"""The most that one `receive` returns. A piece of the smallest frames becomes a few thousand objects."""


class UpgradedStream:
    """Bytes in and out. The connection feeds it; the app receives, sends, and decides when it ends."""

    def __init__(self, transport: asyncio.Transport, flow: FlowControl, first: bytes, *, ping_s: float) -> None:
        self._transport = transport
        self._flow = flow
        self._unread = bytearray(first)
        self._is_over = False
        self._arrival = anyio.Event()
        self.ping_s = ping_s
        """How often a protocol with pings should send one."""
        self.leaving = anyio.Event()
        """Set when the connection is lost or the daemon stops: the app should end."""
        self.is_draining = False
        self.last_heard = anyio.current_time()

    def feed(self, data: bytes) -> None:
        """Take bytes from the socket, and stop reading until the app has taken them."""
        self._unread += data
        self.last_heard = anyio.current_time()
        self._flow.pause_reading()
        self._arrival.set()

    def end(self) -> None:
        """Note that the connection is lost."""
        self._is_over = True
        self._arrival.set()
        self.leaving.set()

    def drain(self) -> None:
        """Note that the daemon stops: the app should say goodbye and return."""
        self.is_draining = True
        self.leaving.set()

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def is_held_up(self) -> bool:
        """Whether the app has not yet taken bytes that arrived, so that silence says nothing about the client."""
        return bool(self._unread)

    @property
    def is_writable(self) -> bool:
        """Whether the client reads: at most a full write buffer waits for it."""
        return not self._flow.write_paused and not self._is_over

    async def receive(self) -> bytes:
        """Return the next bytes; empty at the end."""
        while not self._unread:
            if self._is_over:
                return b""
            self._arrival = anyio.Event()
            self._flow.resume_reading()
            await self._arrival.wait()
        piece = bytes(self._unread[:PIECE_BYTES])
        del self._unread[:PIECE_BYTES]
        return piece

    async def send(self, data: bytes) -> None:
        """Send bytes, and wait while the client does not read what it was sent before. Dropped once it is over."""
        self.send_nowait(data)
        await self._flow.drain()

    async def flush(self) -> None:
        """Wait until the client's kernel has taken everything that was sent. Nothing may be sent afterwards."""
        if not self._is_over:
            self._transport.set_write_buffer_limits(high=0)
            await self._flow.drain()

    def send_nowait(self, data: bytes) -> None:
        """Send a few bytes without waiting for the client to read."""
        if data and not self._is_over:
            self._transport.write(data)

    def close(self) -> None:
        """End the connection: bytes that the client has not read are dropped."""
        if self._transport.get_write_buffer_size():
            self.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
