"""ByteStream: bytes both ways, each with its own end and flow control. Every part here reads and writes one."""

from __future__ import annotations

from typing import Protocol


class ByteStream(Protocol):
    """One open connection. One task may receive while another one sends. Errors of either end are exceptions."""

    async def receive(self) -> bytes:
        """Return the next bytes, or none once the other side has ended."""

    async def send(self, data: bytes) -> None:
        """Send bytes, and wait while the other side does not read."""

    async def send_eof(self) -> None:
        """Tell the other side that nothing more follows. It may still send."""
