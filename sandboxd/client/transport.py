"""Connections of the synchronous client over a unix socket or TCP, kept alive and shared by threads.

It never sends a request twice unless the first was not read or the call is safe to repeat.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sandboxd.client import keep_alive
from sandboxd.client.address import Address
from sandboxd.client.calls import Answer, Call
from sandboxd.client.errors import DaemonUnreachable
from sandboxd.client.http1 import LAST_CHUNK, AnswerReader, BadAnswer, chunk, render_head

MAX_IDLE = 16
PIECE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Upload:
    """The streamed part of a body. A thread sends it while the answer is read, which may come first."""

    pieces: Iterable[bytes]


Body = bytes | Iterable[bytes] | Upload | None


class _Sender:
    """The thread of an upload. It never raises: an error of its source is kept for the reader of the answer."""

    def __init__(self, sock: socket.socket, pieces: Iterable[bytes]) -> None:
        self._sock = sock
        self._pieces = iter(pieces)
        self._is_stopped = False
        self.is_done = False
        """Whether everything has been sent."""
        self.error: BaseException | None = None
        threading.Thread(target=self._send, name="upload", daemon=True).start()

    def stop(self) -> None:
        """Stop sending. The source may be read for one more chunk, which is dropped."""
        self._is_stopped = True

    def _send(self) -> None:
        while not self._is_stopped:
            try:
                piece = next(self._pieces, None)
            except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
                self.error = error
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)  # makes the daemon kill the command, which wakes the reader
                return
            try:
                if piece is None:
                    self._sock.sendall(LAST_CHUNK)
                    self.is_done = True
                    return
                if piece and not self._is_stopped:
                    self._sock.sendall(chunk(piece))
            except OSError:
                return  # the reader of the answer reports why


class _Connection:
    """A socket and the answer being read from it."""

    __slots__ = ("answer", "idle_since", "sender", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.answer = AnswerReader()
        self.sender: _Sender | None = None
        self.idle_since = 0.0

    @property
    def is_reusable(self) -> bool:
        is_sent = self.sender is None or self.sender.is_done
        return is_sent and self.answer.is_whole and self.answer.may_keep_alive

    def close(self) -> None:
        if self.sender is not None:
            self.sender.stop()
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)  # its thread may be sending
        self.sock.close()

    def ask(self, call: Call[Any], address: Address, body: Body) -> None:
        self.answer = AnswerReader()
        self.sender = None
        if isinstance(body, Upload):
            self.sock.sendall(render_head(call, address, None) + chunk(call.body or b""))
            self.sender = _Sender(self.sock, body.pieces)
            return
        if body is None or isinstance(body, bytes):
            content = body or b""
            head = render_head(call, address, len(content))
            if len(content) <= PIECE_BYTES:
                self.sock.sendall(head + content)
            else:
                self.sock.sendall(head)
                self.sock.sendall(content)
            return
        self.sock.sendall(render_head(call, address, None))
        for piece in body:
            if piece:
                self.sock.sendall(chunk(piece))
        self.sock.sendall(LAST_CHUNK)

    def read_more(self) -> None:
        data = self.sock.recv(PIECE_BYTES)
        if not data:
            raise BadAnswer("it was closed")
        self.answer.feed(data)

    def pieces(self) -> Iterator[bytes]:
        while True:
            if piece := self.answer.take():
                yield piece
            elif self.answer.is_whole:
                return
            else:
                self.read_more()


class Transport:
    """Owns the connections, each with one request at a time; opens a new one if none is idle."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: deque[_Connection] = deque()
        """Idle connections, longest idle first; the last one is reused."""
        self._lock = threading.Lock()
        self._is_closed = False

    def send(self, call: Call[Any], body: Body = None) -> Answer:
        """Send a call and return its whole answer."""
        with self._answered(call, body) as connection:
            answer = connection.answer
            while not answer.is_whole:
                connection.read_more()
            return Answer(answer.status, answer.take(), answer.headers)

    @contextmanager
    def stream(self, call: Call[Any], body: Body = None) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Send a call and stream its answer. Leaving early closes the connection."""
        with self._answered(call, body) as connection:
            yield connection.answer.status, connection.pieces()

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, deque(), True
        for connection in idle:
            connection.close()

    @contextmanager
    def _answered(self, call: Call[Any], body: Body) -> Iterator[_Connection]:
        """Yield a connection on which the answer has begun."""
        connection = self._begin(call, call.body if body is None else body)
        try:
            yield connection
        except TimeoutError as error:
            raise keep_alive.silent(call) from error
        except (BadAnswer, OSError) as error:
            _raise_source_error(connection)
            raise keep_alive.broken(call, self.address, _reason(error), unread=False) from error
        finally:
            if connection.is_reusable:
                self._put_back(connection)
            else:
                connection.close()

    def _begin(self, call: Call[Any], body: Body) -> _Connection:
        """Send a call and wait for its answer to begin; it may be retried once if the connection breaks."""
        is_second = False
        while True:
            connection = self._take(call.timeout_s, is_new=is_second)
            try:
                connection.ask(call, self.address, body)
                while not connection.answer.status:
                    connection.read_more()
            except TimeoutError as error:
                connection.close()
                raise keep_alive.silent(call) from error
            except (BadAnswer, OSError) as error:
                connection.close()
                _raise_source_error(connection)
                unread = not connection.answer.has_begun and keep_alive.is_unread(self.address, error)
                if is_second or not keep_alive.may_resend(call, body, unread=unread):
                    raise keep_alive.broken(call, self.address, _reason(error), unread=unread) from error
                is_second = True
            except BaseException:
                connection.close()
                raise
            else:
                return connection

    def _take(self, timeout_s: float | None, *, is_new: bool) -> _Connection:
        """Return a connection that the daemon has not closed: an idle one, or a new one."""
        oldest = time.monotonic() - keep_alive.IDLE_S
        while True:
            with self._lock:
                if self._is_closed:
                    raise DaemonUnreachable("cannot send: this client is closed")
                while self._idle and self._idle[0].idle_since <= oldest:
                    self._idle.popleft().close()
                connection = self._idle.pop() if self._idle and not is_new else None
            if connection is None:
                return _Connection(self._connect(timeout_s))
            if not _is_readable(connection.sock):  # else the daemon has closed it
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()

    def _connect(self, timeout_s: float | None) -> socket.socket:
        address = self.address
        try:
            if address.socket is None:
                return socket.create_connection((address.host, address.port), timeout_s)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(timeout_s)
                sock.connect(str(address.socket))
            except OSError:
                sock.close()
                raise
        except OSError as error:
            raise DaemonUnreachable(f"cannot reach the daemon at {address}: {error.strerror or error}") from error
        return sock

    def _put_back(self, connection: _Connection) -> None:
        connection.idle_since = time.monotonic()
        with self._lock:
            if not self._is_closed and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()


def _raise_source_error(connection: _Connection) -> None:
    if connection.sender is not None and connection.sender.error is not None:
        raise connection.sender.error


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _is_readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
