"""Streams that processes inside a container have opened to the daemon: their table and their limit.

They are not calls and take no place of one. Each keeps its place until the daemon closes it, even if the runner has
ended it before, so a runner can never make the daemon hold more of them than it was allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from sandboxd.errors import SandboxdError, SandboxError, StreamClosed
from sandboxd.runner.inside import wire
from sandboxd.runner.link import RunnerLink
from sandboxd.runner.pending_call import PendingCall
from sandboxd.runner.stream import RunnerStream

LONGEST_S = 2_592_000.0


class OpenedStream(PendingCall):
    """The state of one stream. Its place is free once it is cancelled, so it is cancelled exactly once."""

    __slots__ = ("_forget", "_is_cancelled")

    def __init__(self, stream_id: int, link: RunnerLink, forget: Callable[[OpenedStream], None]) -> None:
        super().__init__(stream_id, link, wire.WINDOW_BYTES, LONGEST_S)
        self._forget = forget
        self._is_cancelled = False

    def cancel(self) -> None:
        if not self._is_cancelled:
            self._is_cancelled = True
            self._forget(self)
            super().cancel()

    def close(self) -> None:
        super().close()
        self.cancel()


class AcceptedStream(RunnerStream):
    """A stream that a process inside has opened. Its owner must close it, as a context manager or directly.

    Closing drops what is not written inside yet. To deliver all of it, `send_eof` and `wait_delivered`.
    """

    def __init__(self, opened: OpenedStream) -> None:
        super().__init__(opened, lambda: _checking(opened))
        self._opened = opened

    def close(self) -> None:
        """Close the stream in the container, if it is not over, and free its place. Safe to call again."""
        self._opened.close()
        self._opened.fail(StreamClosed("cannot use this stream: it is closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _checking(opened: OpenedStream) -> Iterator[None]:
    try:
        yield
    except wire.WireError as error:
        opened.link.close(f"it sent {error}")
        raise SandboxError(f"cannot use the runner's answer: it sent {error}") from None


class AcceptedStreams:
    """All streams that one runner has opened and the daemon has not closed."""

    def __init__(self) -> None:
        self._streams: dict[int, OpenedStream] = {}
        self._most = 0
        """The most that were allowed on this connection. What the runner opens before it learns of less is harmless."""
        self.is_open = False
        """Whether new streams are wanted now."""
        self.accept: Callable[[AcceptedStream], None] | None = None

    def allow(self, most: int) -> None:
        """Allow the runner this many streams at a time; none with 0."""
        self._most = max(self._most, most)
        self.is_open = most > 0

    def detach(self, error: SandboxdError) -> None:
        """Fail every stream, because the connection is gone, and allow no more until the next connection."""
        self.fail(error)
        self._streams.clear()
        self.allow(0)
        self._most = 0

    def fail(self, error: SandboxdError) -> None:
        for stream in self._streams.values():
            stream.fail(error)

    def interrupt(self, error: SandboxdError) -> None:
        for stream in tuple(self._streams.values()):
            stream.interrupt(error)

    def receive(self, link: RunnerLink | None, kind: int, stream_id: int, head: bytes, data: bytes) -> None:
        """Open a stream, or pass a frame to it; drop the frame if the stream is closed."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.receive(kind, head, data)
        elif kind == wire.OPEN:
            if link is None or not stream_id & wire.OPENED or len(self._streams) >= self._most:
                raise wire.WireError("a stream that it may not open")
            self._open(link, stream_id)

    def _open(self, link: RunnerLink, stream_id: int) -> None:
        if not self.is_open or self.accept is None:
            link.send(wire.pack(wire.CANCEL, stream_id))
            return
        if not self._streams:
            link.put_calls_first(True)
        opened = self._streams[stream_id] = OpenedStream(stream_id, link, self._forget)
        stream = AcceptedStream(opened)
        try:
            self.accept(stream)
        except Exception as error:  # noqa: BLE001  # an error of the daemon's own must not cost the runner's connection
            stream.close()
            link.loop.call_exception_handler({"message": "cannot accept a stream of a sandbox", "exception": error})

    def _forget(self, stream: OpenedStream) -> None:
        if self._streams.get(stream.id) is stream:
            del self._streams[stream.id]
            if not self._streams:
                stream.link.put_calls_first(False)
