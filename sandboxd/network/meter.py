"""The meter of one sandbox's egress: how much it has moved, how fast it may, and how much it may in all.

It counts what enters and leaves the sandbox. It holds no bytes: a connection waits here before it begins, and before it
moves some.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from sandboxd.network.audit import AuditDraft
from sandboxd.network.byte_stream import ByteStream
from sandboxd.network.rules import Denied

MIB = 1_048_576
_BYTES_BURST_S = 0.25


class Meter:
    """Shared by all connections of a sandbox."""

    def __init__(self, max_mb: int = 0, rate_mb_s: float = 0.0, rate_connections_s: float = 0.0) -> None:
        self._max_bytes = max_mb * MIB
        self._bytes = _Pace(rate_mb_s * MIB, burst=rate_mb_s * MIB * _BYTES_BURST_S)
        self._begun = _Pace(rate_connections_s, burst=max(1.0, rate_connections_s))
        self.total_bytes = 0

    async def begin(self) -> None:
        """Count a connection, or a request within one, and wait until it fits the rate.

        Each costs the daemon far more than its bytes do, and leaves a record.
        """
        await self._begun.take(1)

    def check(self) -> None:
        """Refuse a new connection if the sandbox has used up what it may move."""
        if self._max_bytes and self.total_bytes >= self._max_bytes:
            raise Denied(
                f"this sandbox has moved {self.total_bytes // MIB} MiB of the {self._max_bytes // MIB} MiB that it may"
            )

    async def take(self, size_bytes: int, *, is_limited: bool = True) -> None:
        """Count these bytes, and wait until they fit the rate. Raise Denied if they exceed a total that is limited."""
        self.total_bytes += size_bytes
        if is_limited and self._max_bytes and self.total_bytes > self._max_bytes:
            self.check()
        await self._bytes.take(size_bytes)


class _Pace:
    """A rate a second, and how much may be taken at once. Whatever exceeds it waits; 0 means no limit."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst_s = burst / rate if rate else 0.0
        self._ready_at = 0.0
        """When everything that was taken so far fits the rate."""

    async def take(self, amount: float) -> None:
        if self._rate:
            now = anyio.current_time()
            self._ready_at = max(self._ready_at, now - self._burst_s) + amount / self._rate
            if self._ready_at > now:
                await anyio.sleep(self._ready_at - now)


class SandboxEnd:
    """The sandbox's end of a connection: counted by the meter and in the draft of its record.

    The total limits what is carried, not a request's head and a refusal: a sandbox that has used it up is told so.
    """

    def __init__(self, stream: ByteStream, meter: Meter, draft: AuditDraft, moved: Callable[[], None]) -> None:
        """`moved` is called whenever bytes have moved."""
        self._stream = stream
        self._moved = moved
        self._meter = meter
        self._draft = draft
        self._unread: bytes = b""
        self.is_limited = False
        """Whether the total of the meter ends the connection."""
        self.has_ended = False
        """Whether the sandbox was told that nothing more follows."""

    async def receive(self) -> bytes:
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        data = await self._stream.receive()
        self._draft.bytes_out += len(data)
        self._moved()
        await self._meter.take(len(data), is_limited=self.is_limited)
        return data

    async def send(self, data: bytes) -> None:
        self._draft.bytes_in += len(data)
        await self._meter.take(len(data), is_limited=self.is_limited)
        await self._stream.send(data)
        self._moved()

    async def send_eof(self) -> None:
        self.has_ended = True
        await self._stream.send_eof()

    def unread(self, data: bytes) -> None:
        """Give back bytes that were received and not used: the next `receive` returns them."""
        self._unread = data + self._unread
