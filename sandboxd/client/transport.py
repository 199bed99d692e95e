"""Connections of the ordinary client over a unix socket or TCP, kept alive and shared by threads.

It never sends a request twice unless nothing of the first had left, or the call is safe to repeat.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sandboxd.client.address import Address
from sandboxd.client.calls import Answer, Call
from sandboxd.client.errors import AnswerLost, DaemonUnreachable
from sandboxd.client.http1 import LAST_CHUNK, AnswerReader, BadAnswer, chunk, render_head

MAX_IDLE = 16
PIECE_BYTES = 65_536

Body = bytes | Iterable[bytes] | None


class _Connection:
    """A socket and the answer that is being read from it."""

    __slots__ = ("answer", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.answer = AnswerReader()

    def ask(self, call: Call[Any], address: Address, body: Body) -> None:
        self.answer = AnswerReader()
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
            raise ConnectionResetError("it was closed")
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
    """Owns the connections. One request at a time on each; a thread that finds none idle opens one."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[_Connection] = []
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
        """Send a call and read its answer piece by piece. Leaving early closes the connection."""
        with self._answered(call, body) as connection:
            yield connection.answer.status, connection.pieces()

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for connection in idle:
            connection.sock.close()

    @contextmanager
    def _answered(self, call: Call[Any], body: Body) -> Iterator[_Connection]:
        """Give a connection on which the answer has begun."""
        connection = self._begin(call, call.body if body is None else body)
        try:
            yield connection
        except TimeoutError as error:
            raise self._silent(call) from error
        except (BadAnswer, OSError) as error:
            raise self._lost(error) from error
        finally:
            if connection.answer.is_whole and connection.answer.may_keep_alive:
                self._put_back(connection)
            else:
                connection.sock.close()

    def _begin(self, call: Call[Any], body: Body) -> _Connection:
        may_repeat = call.is_safe and (body is None or isinstance(body, bytes))
        while True:
            connection, is_used = self._take(call.timeout_s)
            try:
                connection.ask(call, self.address, body)
                while not connection.answer.status:
                    connection.read_more()
            except TimeoutError as error:
                connection.sock.close()
                raise self._silent(call) from error
            except (BadAnswer, OSError) as error:
                connection.sock.close()
                if not (is_used and may_repeat):
                    raise self._lost(error) from error
                may_repeat = False  # once
            except BaseException:
                connection.sock.close()
                raise
            else:
                return connection

    def _take(self, timeout_s: float | None) -> tuple[_Connection, bool]:
        while True:
            with self._lock:
                if self._is_closed:
                    raise DaemonUnreachable("cannot send: this client is closed")
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return _Connection(self._connect(timeout_s)), False
            # The daemon closes idle connections. One that is readable now holds its goodbye, so nothing is lost yet.
            if not _is_readable(connection.sock):
                connection.sock.settimeout(timeout_s)
                return connection, True
            connection.sock.close()

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
        with self._lock:
            if not self._is_closed and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
                return
        connection.sock.close()

    def _silent(self, call: Call[Any]) -> AnswerLost:
        return AnswerLost(f"cannot wait longer: no answer within {call.timeout_s} s")

    def _lost(self, error: Exception) -> AnswerLost:
        reason = str(error) or type(error).__name__
        return AnswerLost(f"cannot tell the outcome: the connection to {self.address} was lost ({reason})")


def _is_readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
