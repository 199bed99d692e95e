"""The event stream of an engine, read by one thread and passed to the event loop.

A lost stream is reopened with backoff and continues after the last event; `Resynced` follows every attachment. Nothing
polls: the thread blocks in a read, and shutting down the connection wakes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from memo.backoff import Backoff
from sandboxd.engine.docker.causes import Outage, RawEvent
from sandboxd.engine.protocol import Resynced
from sandboxd.retries import Retries

_BACKOFF = Backoff(first=timedelta(seconds=0.05), longest=timedelta(seconds=1))  # I10: the state is correct within 2 s
_BACKLOG = 1024


class StreamLost(Exception):
    """The engine is unreachable, or its stream broke."""


class EventStream(Protocol):
    def __iter__(self) -> Iterator[RawEvent]:
        """Block until the next event; stop, or raise StreamLost, when the stream is gone."""

    def wake(self) -> None:
        """Unblock a read in another thread. It may be called from any thread, any number of times."""

    def close(self) -> None:
        """Close the connection. Called by the reading thread when it is done."""


class EventWatch:
    """One subscription: a thread, its stream, and the queue to the event loop that created it."""

    def __init__(self, connect: Callable[[int], EventStream], outage: Outage) -> None:
        """`connect(since_ns)` opens the stream and blocks; it raises StreamLost if the engine is unreachable.

        `outage` records when the stream is lost and when it is attached.
        """
        self._connect = connect
        self._outage = outage
        self._loop = anyio.lowlevel.current_token()
        self._send, self._receive = anyio.create_memory_object_stream[RawEvent | Resynced](_BACKLOG)
        self._since_ns = time.time_ns()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._stream: EventStream | None = None
        self._thread = threading.Thread(target=self._run, name="engine-events", daemon=True)
        self._thread.start()

    async def __aiter__(self) -> AsyncIterator[RawEvent | Resynced]:
        with suppress(anyio.ClosedResourceError):  # closed between two events
            async for event in self._receive:
                yield event

    async def aclose(self) -> None:
        """End the thread and wait for it."""
        self._receive.close()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._stop)
        self._send.close()

    def _stop(self) -> None:
        with self._lock:
            self._stopping.set()
            stream = self._stream
        if stream is not None:
            stream.wake()
        self._thread.join()

    def _run(self) -> None:
        retries = Retries(_BACKOFF)
        # The loop or its listener may be gone before this thread stops; remaining events are then dropped.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.RunFinishedError):
            while not self._stopping.is_set():
                try:
                    stream = self._open()
                    self._outage.end(time.time_ns())
                    retries.reset()
                    self._read(stream)
                except StreamLost:
                    pass
                if not self._stopping.is_set():
                    self._outage.begin(time.time_ns())
                self._stopping.wait(retries.next_pause_s())

    def _open(self) -> EventStream:
        stream = self._connect(self._since_ns)
        with self._lock:
            self._stream = stream
            if self._stopping.is_set():
                stream.wake()  # stopped while connecting, before `stop` could see this stream
        return stream

    def _read(self, stream: EventStream) -> None:
        try:
            self._deliver(Resynced())
            told_until_ns = self._since_ns
            for event in stream:
                if event.at_ns >= told_until_ns:  # Podman counts in seconds and repeats events
                    self._since_ns = event.at_ns + 1
                    self._deliver(event)
        finally:
            with self._lock:
                self._stream = None
            stream.close()

    def _deliver(self, event: RawEvent | Resynced) -> None:
        anyio.from_thread.run(self._send.send, event, token=self._loop)
