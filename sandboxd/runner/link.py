"""One connection of a runner, on the daemon's side: greeting, frames in, frames out.

It owns a non-blocking socket on the event loop. A bad frame ends the connection and nothing else; a runner that stops
reading cannot fill the daemon's memory, because callers await `wait_writable` first.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Protocol

import anyio

from sandboxd.runner.inside import wire
from sandboxd.runner.protocol import Hello, read_hello

GREETING_TIMEOUT_S = 30.0
"""Generous, because a runner on a busy host is slow; the listener limits the connections that have not greeted yet."""
HIGH_WATER_BYTES = 1_048_576
IN_FLIGHT_BYTES = 16_384
"""How much the kernel holds for the runner (it doubles the number) while processes inside have streams open, because a
call waits behind it: a command beside a download at full speed takes about 1.3 times as long as alone, with the
kernel's default 1.55 times. Without streams the default stays, because files are uploaded faster with it."""
DEAF_BYTES = 4 * HIGH_WATER_BYTES
"""With this much unsent, nothing more is read: a runner that asks without reading the answers cannot fill memory."""

_received = memoryview(bytearray(122_880))  # shared by all links: each read empties it before the loop continues


class LinkOwner(Protocol):
    """Receives what a link reports. The listener implements it."""

    def greeted(self, link: RunnerLink, hello: Hello) -> None:
        """Accept a runner that has authenticated itself."""

    def lost(self, link: RunnerLink, reason: str) -> None:
        """Note that the connection is over, greeted or not."""

    def received(self, kind: int, call: int, head: bytes, data: bytes) -> None:
        """Take a frame of a greeted runner. Raise WireError if it is invalid."""


class RunnerLink:
    # Event loop callbacks on a plain socket, which anyio does not offer. anyio's streams add a task, a lock and two
    # checkpoints to every call; this way a call is one send, one receive and one wake-up.

    def __init__(self, connection: socket.socket, owner: LinkOwner, secret: bytes) -> None:
        self._socket = connection
        self._owner = owner
        self._secret = secret
        self._frames = wire.FrameReader()
        self._challenge = secrets.token_bytes(wire.NONCE_BYTES)
        self._unsent = bytearray()
        self._writable: anyio.Event | None = None
        self._waiting: dict[Callable[[], None], None] = {}
        self._is_deaf = False
        self._greeted = False
        self.is_open = True
        connection.setblocking(False)
        self._usual_bytes = (
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
        )  # the kernel doubles it again
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(connection.fileno(), self._readable)
        self._timer = self.loop.call_later(GREETING_TIMEOUT_S, self.close, "it did not greet in time")
        self.send(wire.pack(wire.CHALLENGE, 0, None, self._challenge))

    def send(self, frame: bytes) -> None:
        """Send a frame, and buffer what the socket does not take now. On a closed link the frame is dropped."""
        if not self.is_open:
            return
        if self._unsent:
            self._hold(frame)
            return
        try:
            sent = self._socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._break_soon()
            return
        if sent < len(frame):
            self._hold(frame[sent:])

    def send_data(self, call: int, data: memoryview) -> None:
        """Send a piece of a body or a stream, without a copy of what the socket takes now."""
        header = wire.HEADER.pack(wire.DATA, call, 0, len(data))
        if not self.is_open:
            return
        if self._unsent:
            self._hold(header, data)
            return
        try:
            sent = self._socket.sendmsg((header, data))
        except BlockingIOError:
            sent = 0
        except OSError:
            self._break_soon()
            return
        if sent < len(header):
            self._hold(header[sent:], data)
        elif sent < len(header) + len(data):
            self._hold(data[sent - len(header) :])

    def _hold(self, *parts: bytes | memoryview) -> None:
        if not self._unsent:
            self.loop.add_writer(self._socket.fileno(), self._flush)
        for part in parts:
            self._unsent += part
        if self._writable is None and len(self._unsent) > HIGH_WATER_BYTES:
            self._writable = anyio.Event()
        if not self._is_deaf and len(self._unsent) > DEAF_BYTES:
            self._is_deaf = True
            self.loop.remove_reader(self._socket.fileno())

    def _break_soon(self) -> None:
        self.loop.call_soon(self.close, "its connection broke")  # deferred: the caller is in the middle of a call

    def put_calls_first(self, is_wanted: bool) -> None:
        """Hold little in the kernel while streams are open, so that calls do not wait behind much."""
        if self.is_open:
            size_bytes = IN_FLIGHT_BYTES if is_wanted else self._usual_bytes
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size_bytes)

    @property
    def is_full(self) -> bool:
        return self._writable is not None

    async def wait_writable(self) -> None:
        """Wait until the runner has read everything that was sent."""
        while self._writable is not None:
            await self._writable.wait()

    @property
    def is_busy(self) -> bool:
        """Whether anything is unsent. Data of a body or a stream waits then, so that calls do not queue behind it."""
        return bool(self._unsent)

    def when_idle(self, action: Callable[[], None]) -> None:
        """Call this once nothing is unsent, in the order of the first requests; at most once for equal actions."""
        self._waiting[action] = None

    def forget(self, action: Callable[[], None]) -> None:
        self._waiting.pop(action, None)

    def close(self, reason: str) -> None:
        """Close the connection now, and fail its waiting calls with the reason."""
        if not self.is_open:
            return
        self.is_open = False
        self._timer.cancel()
        self.loop.remove_reader(self._socket.fileno())
        self.loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._unsent.clear()
        self._wake()
        self._owner.lost(self, reason)

    def _readable(self) -> None:
        try:
            size = self._socket.recv_into(_received)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self.close("its connection was closed")
            return
        try:
            for kind, call, head, data in self._frames.feed(bytes(_received[:size])):
                if self._greeted:
                    self._owner.received(kind, call, head, data)
                else:
                    self._greet(kind, head, data)
                if not self.is_open:
                    return
        except wire.WireError as error:
            self.close(f"it sent {error}")

    def _flush(self) -> None:
        try:
            with memoryview(self._unsent) as unsent:  # no copy: the socket may take little of it
                sent = self._socket.send(unsent[: wire.MAX_DATA_BYTES])
        except BlockingIOError:
            return
        except OSError:
            self.close("its connection broke")
            return
        del self._unsent[:sent]
        if not self._unsent:
            self.loop.remove_writer(self._socket.fileno())
        if self._is_deaf and len(self._unsent) <= HIGH_WATER_BYTES:
            self._is_deaf = False
            self.loop.add_reader(self._socket.fileno(), self._readable)
        self._wake()

    def _wake(self) -> None:
        if self._writable is not None and len(self._unsent) <= HIGH_WATER_BYTES:
            self._writable.set()
            self._writable = None
        if self._waiting and not self._unsent:
            waiting, self._waiting = self._waiting, {}
            for action in waiting:
                action()

    def _greet(self, kind: int, head: bytes, data: bytes) -> None:
        if kind != wire.PROOF or len(data) <= wire.NONCE_BYTES:
            raise wire.WireError("a greeting without a proof of the secret")
        hello = read_hello(wire.read_head(head))
        nonce, proof = data[: wire.NONCE_BYTES], data[wire.NONCE_BYTES :]
        if not wire.is_proof(wire.prove(self._secret, "runner", hello.protocol, self._challenge, nonce), proof):
            raise wire.WireError("a wrong proof of the secret")
        self._greeted = True
        self._frames.trust()
        self._timer.cancel()
        answer = wire.prove(self._secret, "daemon", wire.VERSION, self._challenge, nonce)
        self.send(wire.pack(wire.ACCEPT, 0, None, answer))
        self._owner.greeted(self, hello)
