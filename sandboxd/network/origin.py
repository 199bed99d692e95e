"""Connections from the daemon to the hosts that sandboxes ask for, to addresses that were checked before.

Nothing is read ahead: a host's bytes stay in the kernel until the sandbox takes them.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import anyio

from sandboxd.network.addresses import Unreachable
from sandboxd.network.host_names import IPAddress

PIECE_BYTES = 65_536


class OriginStream:
    """A TCP connection as a ByteStream. Leaving its block closes it.

    A plain socket, because anyio's stream on uvloop reads megabytes ahead of a reader that has stopped.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    async def receive(self) -> bytes:
        while True:
            try:
                return self._socket.recv(PIECE_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)

    async def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)

    async def send_eof(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()


async def connect_to(addresses: Sequence[IPAddress], port: int, timeout_s: float) -> OriginStream:
    """Connect to the first of these addresses that answers. Names are never resolved here."""
    reason = "it has no address"
    deadline = anyio.current_time() + timeout_s
    for number, address in enumerate(addresses):
        # Each address gets a fair share of the time that is left, so that a silent one does not take all of it.
        share_s = (deadline - anyio.current_time()) / (len(addresses) - number)
        try:
            with anyio.fail_after(share_s):
                return OriginStream(await _connect(address, port))
        except TimeoutError:
            reason = "it did not answer in time"
        except OSError as error:
            reason = os.strerror(error.errno).lower() if error.errno else "it refused the connection"
    raise Unreachable(f"cannot connect to port {port}: {reason}")


async def _connect(address: IPAddress, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
    except BaseException:
        connection.close()
        raise
    return connection
