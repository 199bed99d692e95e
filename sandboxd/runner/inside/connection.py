"""The one connection to the daemon: greet, take frames, send frames, and connect again when it breaks.

Sends never block: what the socket does not accept is buffered here, and a producer of output checks `is_congested` and
waits for the drain. It does not interpret calls.
"""

from __future__ import annotations

import socket

from . import wire
from .greeting import GREETING_TIMEOUT_S, Greeting
from .hub import READABLE, WRITABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .hub import Hub, Timer

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.25
CONGESTED_BYTES = 1_048_576


class Connection:
    def __init__(
        self,
        hub: Hub,
        address: str,
        secret: bytes,
        on_frame: Callable[[int, int, bytes, bytes], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._hub = hub
        self._address = address
        self._secret = secret
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._pause_s = FIRST_PAUSE_S
        self._socket: socket.socket | None = None
        self._greeting: Greeting | None = None
        self._greeting_timer: Timer | None = None
        self._frames = wire.FrameReader()
        self._unsent = bytearray()
        self._waiting: list[Callable[[], None]] = []
        self._waiting_for_idle: list[Callable[[], None]] = []

    @property
    def is_congested(self) -> bool:
        return len(self._unsent) > CONGESTED_BYTES

    def when_drained(self, action: Callable[[], None]) -> None:
        """Call `action` once the daemon has received everything unsent, or the connection is lost."""
        self._waiting.append(action)

    @property
    def is_busy(self) -> bool:
        """Whether anything is unsent. A stream waits then, so that answers of calls do not queue behind its data."""
        return bool(self._unsent)

    def when_idle(self, action: Callable[[], None]) -> None:
        """Call `action` once nothing is unsent, or the connection is lost."""
        self._waiting_for_idle.append(action)

    def connect(self) -> None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            link.connect(self._address)
        except OSError:  # no daemon is listening, or its queue is full: retry soon in both cases
            link.close()
            self._hub.after(self._pause_s, self.connect)
            self._pause_s = min(self._pause_s * 1.5, LONGEST_PAUSE_S)
            return
        self._socket = link
        self._frames = wire.FrameReader()
        self._greeting = Greeting(self._secret)
        self._greeting_timer = self._hub.after(GREETING_TIMEOUT_S, self._lose)
        self._hub.watch(link.fileno(), READABLE, self._ready)

    def send(self, frame: bytes | memoryview) -> None:
        """Send a frame, or buffer it until the socket accepts it. Without a connection it is dropped."""
        if self._socket is None:
            return
        if self._unsent:
            self._unsent += frame
            return
        try:
            sent = self._socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._hub.after(0, self._lose)  # deferred: the caller is in the middle of a call
            return
        if sent < len(frame):
            self._unsent += frame[sent:]
            self._hub.rewatch(self._socket.fileno(), READABLE | WRITABLE)

    def _ready(self) -> None:
        link = self._socket
        if link is None:
            return
        if self._unsent:
            self._flush(link)
        try:
            piece = link.recv(wire.CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._lose()
            return
        try:
            for kind, call, head, data in self._frames.feed(piece):
                if self._greeting is None:
                    self._on_frame(kind, call, head, data)
                else:
                    self._greet(self._greeting, kind, data)
                if self._socket is not link:
                    return
        except wire.WireError:
            self._lose()

    def _greet(self, greeting: Greeting, kind: int, data: bytes) -> None:
        self.send(greeting.take(kind, data))
        if greeting.done:
            self._greeting = None
            self._frames.trust(wire.MAX_CALL_HEAD_BYTES)
            self._pause_s = FIRST_PAUSE_S
            if self._greeting_timer is not None:
                self._hub.cancel(self._greeting_timer)

    def _flush(self, link: socket.socket) -> None:
        try:
            with memoryview(self._unsent) as unsent:  # no copy: the socket may take little of it
                sent = link.send(unsent[: wire.MAX_DATA_BYTES])
        except BlockingIOError:
            return
        except OSError:
            return  # the next recv fails too, and ends the connection
        del self._unsent[:sent]
        if not self._unsent:
            self._hub.rewatch(link.fileno(), READABLE)
        if not self.is_congested:
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not self._unsent:
            waiting += self._waiting_for_idle
            self._waiting_for_idle = []
        for action in waiting:
            action()

    def _lose(self) -> None:
        link, self._socket = self._socket, None
        if link is None:
            return
        if self._greeting_timer is not None:
            self._hub.cancel(self._greeting_timer)
        self._hub.unwatch(link.fileno())
        link.close()
        was_trusted, self._greeting = self._greeting is None, None
        self._unsent.clear()
        if was_trusted:
            self._on_lost()
        self._wake()
        self._hub.after(self._pause_s, self.connect)
        self._pause_s = min(self._pause_s * 1.5, LONGEST_PAUSE_S)
