"""A WebSocket of the synchronous client: messages in and out of a socket that the transport has opened.

Frames are the library's. Its own threaded client is not used: it reads in a thread of its own, and holds one lock while
it writes and while it handles what it reads, so a daemon that waits for us to read could wait forever.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.protocol import State
from websockets.uri import parse_uri

from sandboxd.client.address import Address
from sandboxd.client.errors import malformed_answers, raise_problem
from sandboxd.client.request import SOCKET_SILENT_S, socket_lost, socket_refused
from sandboxd.websocket_codec import NORMAL, WebSocketCodec

CLOSE_S = 2.0
MAX_MESSAGE_BYTES = 1_048_576
_READ_BYTES = 65_536


class ClientSocket:
    """One open WebSocket. One thread may receive while others send or close."""

    def __init__(self, sock: socket.socket, address: Address, release: Callable[[], None]) -> None:
        """Take a connected socket; `release` closes it."""
        self._sock = sock
        self._address = address
        self._release = release
        self._buffer = bytearray(_READ_BYTES)
        self._messages: deque[str | bytes] = deque()
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._framing = threading.Lock()
        """Held while frames are read or made, never while the socket is used."""
        self._codec: WebSocketCodec

    def shake_hands(self, target: str, headers: Mapping[str, str], timeout_s: float) -> None:
        """Open the WebSocket; raise the daemon's error if it refuses."""
        scheme = "wss" if self._address.is_tls else "ws"
        uri = parse_uri(f"{scheme}://{self._address.authority}{target}")
        protocol = ClientProtocol(uri, max_size=MAX_MESSAGE_BYTES)
        self._codec = WebSocketCodec(protocol, max_message_bytes=MAX_MESSAGE_BYTES)
        request = protocol.connect()
        for name, value in headers.items():
            if name in request.headers:
                del request.headers[name]
            request.headers[name] = value
        protocol.send_request(request)
        try:
            self._sock.settimeout(timeout_s)
            self._sock.sendall(self._codec.take_output())
            while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
                data = self._read()
                if not data:
                    raise ConnectionResetError("it was closed")
                self._messages.extend(self._codec.receive(data))
            self._sock.settimeout(SOCKET_SILENT_S)
        except OSError as error:
            raise socket_lost(self._address, str(error)) from error
        problem = protocol.handshake_exc
        if isinstance(problem, InvalidStatus):
            raise_problem(problem.response.status_code, bytes(problem.response.body or b""))
        if problem is not None:
            with malformed_answers():
                raise ValueError(problem)

    def receive(self) -> str | bytes:
        """Return the next message; raise AnswerLost once the socket is closed, whoever closed it."""
        with self._reading:
            while not self._messages:
                try:
                    self._receive_more()
                except OSError as error:
                    raise socket_lost(self._address, str(error) or "it was closed") from error
            return self._messages.popleft()

    def send(self, message: str | bytes) -> None:
        """Send a message; raise DaemonUnreachable if the socket is closed, so that nothing was sent."""
        with self._writing:
            with self._framing:
                frame = self._codec.encode(message)
            if not frame:
                raise socket_refused(self._address, "it was closed")
            try:
                sent = self._sock.send(frame)
            except OSError as error:
                raise socket_refused(self._address, str(error)) from error
            try:
                self._sock.sendall(frame[sent:])
            except OSError as error:
                raise socket_lost(self._address, str(error)) from error
        self._answer()

    def close(self) -> None:
        """Say goodbye, and wait a moment for the daemon to have read everything that was sent before."""
        with self._framing:
            frame = self._codec.close(NORMAL)
        if self._writing.acquire(timeout=CLOSE_S):
            try:
                with suppress(OSError):
                    self._sock.settimeout(CLOSE_S)
                    self._sock.sendall(frame)
            finally:
                self._writing.release()
        deadline = time.monotonic() + CLOSE_S
        if self._reading.acquire(timeout=CLOSE_S):
            try:
                with suppress(OSError):
                    while time.monotonic() < deadline:
                        self._receive_more()
            finally:
                self._reading.release()
        with suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # wakes a thread that still waits
        with self._reading, self._writing:
            self._release()

    def _receive_more(self) -> None:
        """Read once; raise OSError at the end."""
        data = b"" if self._codec.end is not None else self._read()
        if not data:
            end = self._codec.end
            raise ConnectionResetError("it was closed" if end is None else f"it was closed with code {end.code}")
        with self._framing:
            self._messages.extend(self._codec.receive(data))
        self._answer()

    def _answer(self) -> None:
        """Send answers to pings and closes, unless another thread writes: that one sends them when it is done."""
        while self._writing.acquire(blocking=False):
            try:
                with self._framing:
                    output = self._codec.take_output()
                if not output:
                    return
                with suppress(OSError):  # the reader of the next message reports it
                    self._sock.sendall(output)
            finally:
                self._writing.release()

    def _read(self) -> bytes:
        # Not `recv`: a shared TLS socket guards only this.
        return bytes(self._buffer[: self._sock.recv_into(self._buffer)])
