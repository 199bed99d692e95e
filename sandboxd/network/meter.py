"""The meter of one sandbox's egress: how much it has moved, how fast it may, and how much it may in all.

It counts what enters and leaves the sandbox. It holds no bytes: a connection waits here before it moves some.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from sandboxd.network.audit import AuditDraft
from sandboxd.network.byte_stream import ByteStream
from sandboxd.network.rules import Denied

MIB = 1_048_576
_BURST_S = 0.25
"""How much of a second's allowance may move at once."""


class Meter:
    """Shared by all connections of a sandbox."""

    def __init__(self, max_mb: int = 0, rate_mb_s: float = 0.0) -> None:
        self._max_bytes = max_mb * MIB
        self._rate = rate_mb_s * MIB
        self._ready_at = 0.0
        """When everything that was taken so far fits the rate."""
        self.total_bytes = 0

    def check(self) -> None:
        """Refuse a new connection if the sandbox has used up what it may move."""
        if self._max_bytes and self.total_bytes >= self._max_bytes:
            raise Denied(
                f"this sandbox has moved {self.total_bytes // MIB} MiB of the {self._max_bytes // MIB} MiB that it may"
            )

    async def take(self, size_bytes: int) -> None:
        """Count these bytes, and wait until they fit the rate. Raise Denied once the total is exceeded."""
        self.total_bytes += size_bytes
        if self._max_bytes and self.total_bytes > self._max_bytes:
            self.check()
        if self._rate:
            now = anyio.current_time()
            self._ready_at = max(self._ready_at, now - _BURST_S) + size_bytes / self._rate
            if self._ready_at > now:
                await anyio.sleep(self._ready_at - now)


class SandboxEnd:
    """The sandbox's end of a connection: counted by the meter and in the draft of its record."""

    def __init__(self, stream: ByteStream, meter: Meter, draft: AuditDraft, moved: Callable[[], None]) -> None:
        """`moved` is called whenever bytes have moved."""
        self._stream = stream
        self._moved = moved
        self._meter = meter
        self._draft = draft
        self._unread: bytes = b""

    async def receive(self) -> bytes:
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        data = await self._stream.receive()
        self._draft.bytes_out += len(data)
        self._moved()
        await self._meter.take(len(data))
        return data

    async def send(self, data: bytes) -> None:
        self._draft.bytes_in += len(data)
        await self._meter.take(len(data))
        await self._stream.send(data)
        self._moved()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    def unread(self, data: bytes) -> None:
        """Give back bytes that were received and not used: the next `receive` returns them."""
        self._unread = data + self._unread
