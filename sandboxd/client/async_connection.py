"""One connection of the async client: one exchange at a time, with its answer whole or streamed.

An asyncio protocol and not an anyio stream: an exchange is one write, one wake-up and no task. It never retries.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from sandboxd.client.address import Address
from sandboxd.client.calls import Answer, Call
from sandboxd.client.http1 import LAST_CHUNK, AnswerReader, BadAnswer, chunk, render_head

HELD_BYTES = 262_144
"""How much of a streamed answer is buffered before reading pauses."""
PIECE_BYTES = 262_144


class Broken(Exception):
    """The connection ended, or received something that is not a valid answer."""

    def __init__(self, reason: str, system_error: Exception | None = None) -> None:
        super().__init__(reason)
        self.system_error = system_error
        """The system's error, if the connection ended before the first byte of the answer."""


class Silent(Exception):
    """The daemon sent nothing for as long as the call waits."""


async def connect(address: Address) -> AsyncConnection:
    loop = asyncio.get_running_loop()
    if address.socket is not None:
        _, connection = await loop.create_unix_connection(AsyncConnection, str(address.socket))
    else:
        _, connection = await loop.create_connection(AsyncConnection, address.host, address.port)
    return connection


class AsyncConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer: AnswerReader | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_open = True
        self._is_streaming = False
        self._is_paused = False
        self._is_sending = False
        self._sending: asyncio.Task[None] | None = None
        self._patience_s: float | None = None
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._poll = select.poll()
        self.idle_since = 0.0
        """When the owner put it back, on the monotonic clock."""

    @property
    def is_usable(self) -> bool:
        """Whether another call can be sent: the connection is open and the last exchange is complete."""
        answer = self._answer
        return (
            self._is_open and not self._is_sending and (answer is None or (answer.is_whole and answer.may_keep_alive))
        )

    @property
    def is_quiet(self) -> bool:
        """Whether the socket has no unread data or end of file: the event loop may not have polled it for a while."""
        return not self._poll.poll(0)

    def close(self) -> None:
        self._is_open = False
        self._stop_timer()
        if self._sending is not None:
            self._sending.cancel()
        if self._is_sending:
            self._transport.abort()  # close() would wait for the daemon to read what is written, perhaps for ever
        else:
            self._transport.close()

    async def ask(self, call: Call[Any], address: Address, body: bytes | AsyncIterable[bytes] | None) -> None:
        """Send a call; stop sending its body if the daemon answers before it has read all of it.

        A streamed body follows the call's own in a task: its next chunk may come later than the answer.
        """
        if body is None or isinstance(body, bytes):
            content = body or b""
            head = render_head(call, address, len(content))
            self._begin(call.timeout_s)
            self._transport.write(head + content[:PIECE_BYTES])
            for start in range(PIECE_BYTES, len(content), PIECE_BYTES):
                if not await self._sent(content[start : start + PIECE_BYTES]):
                    return
            self._is_sending = False
        else:
            head = render_head(call, address, None)
            self._begin(call.timeout_s)
            self._transport.write(head + chunk(call.body) if call.body else head)
            self._sending = self._loop.create_task(self._send_stream(body))

    async def _send_stream(self, body: AsyncIterable[bytes]) -> None:
        try:
            async for piece in body:
                if piece and not await self._sent(chunk(piece)):
                    return
            self._is_sending = not await self._sent(LAST_CHUNK)
        except Exception as error:  # noqa: BLE001  # raised in the caller, which waits for the answer
            self._fail(error)

    async def whole_answer(self) -> Answer:
        answer = self._answer
        assert answer is not None  # noqa: S101  # only after `ask`
        while not answer.is_whole:
            await self._news()
        self._patience_s = None
        return Answer(answer.status, answer.take(), answer.headers)

    async def status(self) -> int:
        answer = self._answer
        assert answer is not None  # noqa: S101
        self._is_streaming = True
        while not answer.status:
            await self._news()
        return answer.status

    async def pieces(self) -> AsyncIterator[bytes]:
        answer = self._answer
        assert answer is not None  # noqa: S101
        while True:
            if piece := answer.take():
                self._resume()
                yield piece
            elif answer.is_whole:
                self._patience_s = None
                return
            else:
                await self._news()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # streams only
        self._transport = transport
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or answer.is_whole:
            self._fail(Broken("it sent data without a request"))
            return
        self._heard_at = self._loop.time()
        try:
            answer.feed(data)
        except BadAnswer as error:
            self._fail(Broken(str(error)))
            return
        if self._is_streaming and answer.held_bytes > HELD_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        if answer.is_whole or self._is_streaming:
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        has_answer = self._answer is not None and self._answer.has_begun
        self._fail(Broken(str(error) if error else "it was closed", None if has_answer else error))

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def _begin(self, patience_s: float | None) -> None:
        self._answer = AnswerReader()
        self._is_sending = True
        self._is_streaming = False
        self._patience_s = patience_s
        self._listen()

    async def _sent(self, piece: bytes) -> bool:
        """Write once there is room; return False if the answer has already begun or the connection is closed."""
        if self._drained is not None:
            await self._drained
        answer = self._answer
        if not self._is_open or answer is None or answer.is_whole or answer.status >= 400:
            return False
        self._heard_at = self._loop.time()
        self._transport.write(piece)
        return True

    async def _news(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        await self._waiter
        if self._error is not None and not (self._answer is not None and self._answer.is_whole):
            raise self._error

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        if self._is_open:
            self.close()
        self.resume_writing()
        self._wake()

    def _resume(self) -> None:
        self._listen()  # time spent by the caller does not count as the daemon's silence
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def _listen(self) -> None:
        """Restart the silence timer. One timer serves many short calls, so most calls set none."""
        self._heard_at = self._loop.time()
        if self._patience_s is None:
            return
        due = self._heard_at + self._patience_s
        if self._timer is None or self._timer_due > due:
            self._stop_timer()
            self._timer, self._timer_due = self._loop.call_at(due, self._look), due

    def _look(self) -> None:
        self._timer = None
        if self._patience_s is None or self._is_paused:
            return
        due = self._heard_at + self._patience_s
        if due > self._loop.time():
            self._timer, self._timer_due = self._loop.call_at(due, self._look), due
        else:
            self._fail(Silent())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
