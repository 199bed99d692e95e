"""A ByteStream over a real socket, for tests of what reads and writes one."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketStream


class SocketByteStream:
    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream

    async def receive(self) -> bytes:
        try:
            return await self._stream.receive()
        except anyio.EndOfStream:
            return b""

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def wait_delivered(self) -> None:
        """Nothing is held on the way: the kernel has all that was sent."""


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[SocketByteStream, SocketByteStream]]:
    """Yield both ends of a connection."""
    one, other = socket.socketpair()
    async with await SocketStream.from_socket(one) as here, await SocketStream.from_socket(other) as there:
        yield SocketByteStream(here), SocketByteStream(there)
