"""The entrance of the proxy: accepts connections on a loopback port, and opens a stream to the daemon for each.

It interprets nothing that passes. It accepts only while a daemon allows it and a place is free; until then connections
wait in the kernel. A place is free again when the daemon cancels the stream.
"""

from __future__ import annotations

import errno
import socket

from . import wire
from .container_paths import PROXY_PORT
from .failure import Failure, reason_of
from .hub import READABLE
from .streams import SocketStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .core import RunnerCore

MAX_ENTRANCE_STREAMS = 256
"""More than any daemon allows."""
BACKLOG = 256
ACCEPTS_AT_ONCE = 8
"""So that other calls are answered in between."""
REST_S = 0.1
"""How long to wait after the kernel has refused to accept, because of too many open files, for example."""


class EntranceStream(SocketStream):
    """One accepted connection."""

    def __init__(self, runner: RunnerCore, entrance: ProxyEntrance, stream_id: int, accepted: socket.socket) -> None:
        super().__init__(runner, stream_id, accepted)
        self._entrance = entrance
        runner.connection.send(wire.pack(wire.OPEN, stream_id))
        self._begin()

    def _forget(self) -> None:
        self._entrance.ended(self._call)


class ProxyEntrance:
    def __init__(self, runner: RunnerCore) -> None:
        self._runner = runner
        self._hub = runner.hub
        self._listening: socket.socket | None = None
        self._is_watched = False
        self._is_resting = False
        self._most = 0
        """How many streams the connected daemon allows."""
        self._places: dict[int, EntranceStream | None] = {}
        """The streams by id; None for one that is over and that the daemon has not cancelled yet."""
        self._last = 0

    @property
    def port(self) -> int:
        """The port that it has; 0 if it is closed."""
        return PROXY_PORT if self._listening is not None else 0

    def allow(self, most: int) -> None:
        """Open it for this many streams at a time; close it, and end its streams, with 0."""
        if not most:
            self._close()
        elif self._listening is None:
            self._listening = _listen()
        self._most = min(most, MAX_ENTRANCE_STREAMS)
        self._update()

    def lost(self) -> None:
        """End the streams, because the daemon is gone. The port stays ours, and the next daemon says what it allows."""
        self._most = 0
        self._end_streams()
        self._places.clear()
        self._update()

    def get(self, stream_id: int) -> EntranceStream | None:
        return self._places.get(stream_id)

    def cancel(self, stream_id: int) -> None:
        """End a stream, if it is not over, and free its place."""
        stream = self._places.pop(stream_id, None)
        if stream is not None:
            stream.cancel()
        self._update()

    def ended(self, stream_id: int) -> None:
        if stream_id in self._places:
            self._places[stream_id] = None

    def _close(self) -> None:
        if self._listening is not None:
            self._watch(False)
            self._listening.close()
            self._listening = None
        for stream in self._end_streams():
            stream.answer(is_reset=True)

    def _end_streams(self) -> list[EntranceStream]:
        streams = [stream for stream in self._places.values() if stream is not None]
        for stream in streams:
            stream.cancel()
        return streams

    def _update(self) -> None:
        self._watch(len(self._places) < self._most and not self._is_resting)

    def _watch(self, wanted: bool) -> None:
        if self._listening is None or wanted == self._is_watched:
            return
        if wanted:
            self._hub.watch(self._listening.fileno(), READABLE, self._accept)
        else:
            self._hub.unwatch(self._listening.fileno())
        self._is_watched = wanted

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if self._listening is None or len(self._places) >= self._most:
                break
            try:
                accepted, _address = self._listening.accept()
            except BlockingIOError:
                break
            except ConnectionAbortedError:
                continue
            except OSError:
                self._rest()
                break
            accepted.setblocking(False)
            self._last = self._last % (wire.OPENED - 1) + 1
            stream_id = wire.OPENED | self._last
            self._places[stream_id] = None  # before it begins, because it may end at once
            stream = EntranceStream(self._runner, self, stream_id, accepted)
            if not stream.is_over:
                self._places[stream_id] = stream
        self._update()

    def _rest(self) -> None:
        self._is_resting = True
        self._hub.after(REST_S, self._resume)

    def _resume(self) -> None:
        self._is_resting = False
        self._update()


def _listen() -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(("127.0.0.1", PROXY_PORT))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        why = reason_of(error)
        if error.errno == errno.EADDRINUSE:
            why = "another process in the sandbox listens there; end it and try again"
        raise Failure("Conflict", f"cannot open the proxy on port {PROXY_PORT}: {why}") from None
    return found
