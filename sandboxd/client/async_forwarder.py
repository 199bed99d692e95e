"""A local port that leads into a sandbox, for the async client: each local connection is one tunnel."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self

from sandboxd.client.errors import KNOWN_ERRORS, DaemonUnreachable
from sandboxd.client.forwarding import (
    KEEP_ALIVE_S,
    LOCAL_HOST,
    MAX_CONNECTIONS,
    PIECE_BYTES,
    check_local_port,
    not_listening,
)
from sandboxd.client.streams import AsyncCallback, async_notify


class AsyncTunnelEnd(Protocol):
    """What a forwarder needs from a connection to a sandbox."""

    async def receive(self) -> bytes: ...
    async def send(self, data: bytes) -> None: ...
    async def send_eof(self) -> None: ...
    async def keep_alive(self) -> None: ...
    async def close(self) -> None: ...


class AsyncForwarder:
    """`async with sandbox.ports.forward(8000) as forwarder:` listens; leaving the block ends every connection."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[AsyncTunnelEnd]],
        local_port: int,
        on_failure: AsyncCallback[Exception] | None,
    ) -> None:
        check_local_port(local_port)
        self._connect = connect
        self._on_failure = on_failure
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.host = LOCAL_HOST
        self.port = local_port
        """The local port; in the block, the one that it listens on."""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        try:
            self._listener = socket.create_server((self.host, self.port))
        except OSError as error:
            raise not_listening(self.port, error) from error
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept(self._listener))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks = [*self._connections]
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        places = asyncio.Semaphore(MAX_CONNECTIONS)
        while True:
            await places.acquire()
            local, _ = await loop.sock_accept(listener)
            task = asyncio.create_task(self._serve(local))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            task.add_done_callback(lambda _task: places.release())

    async def _serve(self, local: socket.socket) -> None:
        with local:
            local.setblocking(False)
            try:
                tunnel = await self._connect()
                try:
                    await _relay(local, tunnel)
                finally:
                    await tunnel.close()
            except KNOWN_ERRORS as error:
                await async_notify(self._on_failure, error)
            except OSError:
                return  # the local program has left


async def _relay(local: socket.socket, tunnel: AsyncTunnelEnd) -> None:
    """Copy bytes until both sides have ended, or one of them fails."""
    ways = [asyncio.create_task(_send(local, tunnel)), asyncio.create_task(_receive(local, tunnel))]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        for way in done:
            way.result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _send(local: socket.socket, tunnel: AsyncTunnelEnd) -> None:
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(local, PIECE_BYTES):
            await tunnel.send(data)
        await tunnel.send_eof()
    except DaemonUnreachable:
        return  # the tunnel is closed; its reader says why


async def _receive(local: socket.socket, tunnel: AsyncTunnelEnd) -> None:
    loop = asyncio.get_running_loop()
    while data := await tunnel.receive():
        writing = asyncio.create_task(loop.sock_sendall(local, data))
        try:
            while not (await asyncio.wait([writing], timeout=KEEP_ALIVE_S))[0]:
                await tunnel.keep_alive()
            writing.result()
        finally:
            writing.cancel()
    local.shutdown(socket.SHUT_WR)
