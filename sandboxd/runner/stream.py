"""A stream to a process inside a container, on the daemon's side: bytes both ways, each with its own flow control.

What is not received yet is bounded by a window, and so is what is sent and not read there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from sandboxd.errors import StreamClosed
from sandboxd.runner.inside import wire
from sandboxd.runner.pending_call import PendingCall


class RunnerStream:
    """One open stream. One task may receive while another one sends."""

    def __init__(self, pending: PendingCall, checking: Callable[[], AbstractContextManager[None]]) -> None:
        self._pending = pending
        self._checking = checking

    async def receive(self) -> bytes:
        """Return the next bytes; none once the other side has ended. Raise StreamClosed if it was reset."""
        pending = self._pending
        while True:
            while pending.chunks:
                _kind, _head, data = pending.chunks.popleft()
                if data:
                    pending.allow(len(data))
                    return data
            if pending.error is not None:
                raise pending.error.with_traceback(None)
            if pending.head is not None and self._is_reset(pending.head):
                raise StreamClosed("cannot receive from the sandbox: the process there has reset the connection")
            if pending.is_ended or pending.head is not None:
                return b""
            await pending.changed()

    def _is_reset(self, head: bytes) -> bool:
        with self._checking():
            return bool(wire.read_head(head).get("reset"))

    async def send(self, data: bytes) -> None:
        """Send bytes, and wait while the other side does not read. Raise StreamClosed if it has closed the stream."""
        await self._pending.send_piece(data)
        if self._pending.error is not None:
            raise self._pending.error.with_traceback(None)
        if self._pending.is_over:
            raise StreamClosed("cannot send to the sandbox: the process there has closed the connection")

    async def send_eof(self) -> None:
        """Tell the other side that nothing more follows. It may still send."""
        self._pending.send_end()

    async def wait_delivered(self) -> None:
        """After `send_eof`: wait until all that was sent is written inside, or the stream is over."""
        await self._pending.wait_delivered()
