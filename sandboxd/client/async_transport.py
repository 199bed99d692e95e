"""Connections of the async client over a unix socket or TCP, kept alive and shared by tasks.

It never sends a request twice unless the call is safe to repeat. It needs an asyncio event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from sandboxd.client.address import Address
from sandboxd.client.async_connection import AsyncConnection, Broken, Silent, connect
from sandboxd.client.calls import Answer, Call
from sandboxd.client.errors import AnswerLost, DaemonUnreachable

MAX_CONNECTIONS = 512

Body = bytes | AsyncIterable[bytes] | None


class AsyncTransport:
    """Owns the connections. One request at a time on each; a task that finds none idle opens one."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[AsyncConnection] = []
        self._room: anyio.Semaphore | None = None
        """Made when it is first used, inside the event loop that uses it."""
        self._is_closed = False

    async def send(self, call: Call[Any], body: Body = None) -> Answer:
        """Send a call and return its whole answer. A safe call whose connection broke is sent once more."""
        content = call.body if body is None else body
        may_repeat = call.is_safe and (content is None or isinstance(content, bytes))
        while True:
            try:
                async with self._lent() as connection:
                    await connection.ask(call, self.address, content)
                    return await connection.whole_answer()
            except Broken as error:
                if not may_repeat:
                    raise self._lost(error) from error
                may_repeat = False
            except Silent as error:
                raise AnswerLost(f"cannot wait longer: no answer within {call.timeout_s} s") from error

    @asynccontextmanager
    async def stream(self, call: Call[Any]) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """Send a call and read its answer piece by piece. Leaving early closes the connection."""
        try:
            async with self._lent() as connection:
                await connection.ask(call, self.address, call.body)
                yield await connection.status(), connection.pieces()
        except Broken as error:
            raise self._lost(error) from error
        except Silent as error:
            raise AnswerLost(f"cannot wait longer: no answer within {call.timeout_s} s") from error

    async def close(self) -> None:
        self._is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _lent(self) -> _Lent:
        if self._is_closed:
            raise DaemonUnreachable("cannot send: this client is closed")
        if self._room is None:
            self._room = anyio.Semaphore(MAX_CONNECTIONS)
        return _Lent(self, self._room)

    async def take(self) -> AsyncConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:  # the daemon closes idle connections
                return connection
        try:
            return await connect(self.address)
        except OSError as error:
            raise DaemonUnreachable(f"cannot reach the daemon at {self.address}: {error.strerror or error}") from error

    def put_back(self, connection: AsyncConnection) -> None:
        if connection.is_usable and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.close()

    def _lost(self, error: Broken) -> AnswerLost:
        return AnswerLost(f"cannot tell the outcome: the connection to {self.address} was lost ({error})")


class _Lent:
    """A connection for one exchange. A class, because a generator's context manager costs several times as much."""

    __slots__ = ("_connection", "_room", "_transport")

    def __init__(self, transport: AsyncTransport, room: anyio.Semaphore) -> None:
        self._transport = transport
        self._room = room

    async def __aenter__(self) -> AsyncConnection:
        try:
            self._room.acquire_nowait()  # the usual case, without a look at the event loop
        except anyio.WouldBlock:
            await self._room.acquire()
        try:
            self._connection = await self._transport.take()
        except BaseException:
            self._room.release()
            raise
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        self._transport.put_back(self._connection)
        self._room.release()
