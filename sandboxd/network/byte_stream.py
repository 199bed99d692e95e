"""ByteStream: bytes both ways, each with its own end and flow control. Every part here reads and writes one.

A SandboxStream is one whose other end is a process in a sandbox.
"""

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


class SandboxStream(ByteStream, Protocol):
    """A connection to or from a process in a sandbox. Closing it drops what is not written there yet."""

    async def wait_delivered(self) -> None:
        """After `send_eof`: wait until all that was sent is written inside, or the stream is over."""
