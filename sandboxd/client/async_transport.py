"""Connections of the async client over a unix socket or TCP, kept alive and shared by tasks.

It never sends a request twice unless the first was not read or the call is safe to repeat. It uses asyncio and not
anyio, whose backend would be imported during the first call.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sandboxd.client import keep_alive
from sandboxd.client.address import Address
from sandboxd.client.async_connection import AsyncConnection, Broken, Silent, connect
from sandboxd.client.calls import Answer, Call
from sandboxd.client.errors import DaemonUnreachable

MAX_CONNECTIONS = 512

Body = bytes | AsyncIterable[bytes] | None


class AsyncTransport:
    """Owns the connections, each with one request at a time; opens a new one if none is idle."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: deque[AsyncConnection] = deque()
        """Idle connections, longest idle first; the last one is reused."""
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        self._is_closed = False

    async def send(self, call: Call[Any], body: Body = None) -> Answer:
        """Send a call and return its whole answer; if its connection breaks, it may be retried once on a new one."""
        content = call.body if body is None else body
        is_second = False
        while True:
            try:
                async with self._lent(is_new=is_second) as connection:
                    await connection.ask(call, self.address, content)
                    return await connection.whole_answer()
            except Broken as error:
                self._check_resend(call, content, error, may=not is_second)
                is_second = True
            except Silent as error:
                raise keep_alive.silent(call) from error

    @asynccontextmanager
    async def stream(self, call: Call[Any], body: Body = None) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """Send a call and stream its answer. Leaving early closes the connection."""
        content = call.body if body is None else body
        is_second = has_status = False
        while True:
            try:
                async with self._lent(is_new=is_second) as connection:
                    await connection.ask(call, self.address, content)
                    status = await connection.status()
                    has_status = True
                    yield status, connection.pieces()
                    return
            except Broken as error:
                self._check_resend(call, content, error, may=not (is_second or has_status))
                is_second = True
            except Silent as error:
                raise keep_alive.silent(call) from error

    async def close(self) -> None:
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _check_resend(self, call: Call[Any], body: Body, error: Broken, *, may: bool) -> None:
        """Return if the call may be retried; otherwise raise its error."""
        unread = keep_alive.is_unread(self.address, error.system_error)
        if not (may and keep_alive.may_resend(call, body, unread=unread)):
            raise keep_alive.broken(call, self.address, str(error), unread=unread) from error

    def _lent(self, *, is_new: bool) -> _Lent:
        if self._is_closed:
            raise DaemonUnreachable("cannot send: this client is closed")
        return _Lent(self, self._room, is_new)

    async def take(self, *, is_new: bool) -> AsyncConnection:
        """Return a connection that the daemon has not closed: an idle one, or a new one."""
        idle = self._idle
        oldest = time.monotonic() - keep_alive.IDLE_S
        while idle and (idle[0].idle_since <= oldest or not idle[0].is_usable):
            idle.popleft().close()
        while idle and not is_new:
            connection = idle.pop()
            if connection.is_usable and connection.is_quiet:
                return connection
            connection.close()
        try:
            return await connect(self.address)
        except OSError as error:
            raise DaemonUnreachable(f"cannot reach the daemon at {self.address}: {error.strerror or error}") from error

    def put_back(self, connection: AsyncConnection) -> None:
        if connection.is_usable and not self._is_closed:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()


class _Lent:
    """A connection for one exchange. A class, because a generator's context manager costs several times as much."""

    __slots__ = ("_connection", "_is_new", "_room", "_transport")

    def __init__(self, transport: AsyncTransport, room: asyncio.Semaphore, is_new: bool) -> None:
        self._transport = transport
        self._room = room
        self._is_new = is_new

    async def __aenter__(self) -> AsyncConnection:
        await self._room.acquire()
        try:
            self._connection = await self._transport.take(is_new=self._is_new)
        except BaseException:
            self._room.release()
            raise
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        self._transport.put_back(self._connection)
        self._room.release()
