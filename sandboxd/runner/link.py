"""One connection of a runner, on the daemon's side: greeting, frames in, frames out.

It owns a non-blocking socket on the event loop. A bad frame ends the connection and nothing else; a runner that stops
reading cannot fill the daemon's memory, because callers await `wait_writable` first.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from typing import Protocol

import anyio

from sandboxd.runner.inside import wire
from sandboxd.runner.protocol import Hello, read_hello

GREETING_TIMEOUT_S = 30.0
"""Generous, because a runner on a busy host is slow; the listener limits the connections that have not greeted yet."""
HIGH_WATER_BYTES = 1_048_576

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
        self._greeted = False
        self.is_open = True
        connection.setblocking(False)
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(connection.fileno(), self._readable)
        self._timer = self.loop.call_later(GREETING_TIMEOUT_S, self.close, "it did not greet in time")
        self.send(wire.pack(wire.CHALLENGE, 0, None, self._challenge))

    def send(self, frame: bytes) -> None:
        """Send a frame, and buffer what the socket does not take now. On a closed link the frame is dropped."""
        if not self.is_open:
            return
        if self._unsent:
            self._unsent += frame
        else:
            try:
                sent = self._socket.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.loop.call_soon(
                    self.close, "its connection broke"
                )  # deferred: the caller is in the middle of a call
                return
            if sent == len(frame):
                return
            self._unsent += frame[sent:]
            self.loop.add_writer(self._socket.fileno(), self._flush)
        if self._writable is None and len(self._unsent) > HIGH_WATER_BYTES:
            self._writable = anyio.Event()

    @property
    def is_full(self) -> bool:
        return self._writable is not None

    async def wait_writable(self) -> None:
        """Wait until the runner has read everything that was sent."""
        while self._writable is not None:
            await self._writable.wait()

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
            sent = self._socket.send(self._unsent[: wire.MAX_DATA_BYTES])
        except BlockingIOError:
            return
        except OSError:
            self.close("its connection broke")
            return
        del self._unsent[:sent]
        if not self._unsent:
            self.loop.remove_writer(self._socket.fileno())
        if len(self._unsent) <= HIGH_WATER_BYTES:
            self._wake()

    def _wake(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None

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
