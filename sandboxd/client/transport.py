"""Connections of the ordinary client: http.client over a unix socket or TCP, kept alive and shared by threads.

Knows requests and answers as bytes. It never sends a request twice unless nothing of the first had left, or the
call is safe to repeat.
"""

from __future__ import annotations

import http.client
import select
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sandboxd.client.address import Address
from sandboxd.client.calls import Answer, Call
from sandboxd.client.errors import AnswerLost, DaemonUnreachable

MAX_IDLE = 16
PIECE_BYTES = 65_536

Body = bytes | Iterable[bytes] | None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Transport:
    """Owns the connections. One request at a time on each; a thread that finds none idle opens one."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def send(self, call: Call[Any], body: Body = None) -> Answer:
        """Send a call and return its whole answer."""
        with self._answer(call, body) as response:
            return Answer(response.status, response.read(), response.headers)

    @contextmanager
    def stream(self, call: Call[Any], body: Body = None) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Send a call and read its answer piece by piece. Leaving early closes the connection."""
        with self._answer(call, body) as response:
            yield response.status, _pieces(response)

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for connection in idle:
            connection.close()

    @contextmanager
    def _answer(self, call: Call[Any], body: Body) -> Iterator[http.client.HTTPResponse]:
        connection, response = self._begin(call, call.body if body is None else body)
        try:
            yield response
        except (http.client.HTTPException, OSError) as error:
            raise self._lost(error) from error
        finally:
            if response.isclosed() and not response.will_close:
                self._put_back(connection)
            else:
                response.close()
                connection.close()

    def _begin(self, call: Call[Any], body: Body) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        may_repeat = call.is_safe and (body is None or isinstance(body, bytes))
        while True:
            connection, is_used = self._take(call.timeout_s)
            try:
                connection.request(call.method, call.target, body, self._headers(call), encode_chunked=_is_stream(body))
                return connection, connection.getresponse()
            except TimeoutError as error:
                connection.close()
                raise AnswerLost(f"cannot wait longer: no answer within {call.timeout_s:g} s") from error
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                if not (is_used and may_repeat):
                    raise self._lost(error) from error
                may_repeat = False  # once

    def _headers(self, call: Call[Any]) -> dict[str, bytes]:
        headers = {name: value.encode() for name, value in call.headers.items()}  # http.client's own choice is latin-1
        if self.address.token is not None:
            headers["authorization"] = f"Bearer {self.address.token}".encode()
        return headers

    def _take(self, timeout_s: float | None) -> tuple[http.client.HTTPConnection, bool]:
        while True:
            with self._lock:
                if self._is_closed:
                    raise DaemonUnreachable("cannot send: this client is closed")
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect(timeout_s), False
            # The daemon closes idle connections. One that is readable now holds its goodbye, so nothing is lost yet.
            if connection.sock is not None and not _is_readable(connection.sock):
                connection.sock.settimeout(timeout_s)
                return connection, True
            connection.close()

    def _connect(self, timeout_s: float | None) -> http.client.HTTPConnection:
        address = self.address
        connection = (
            _UnixConnection(str(address.socket), timeout_s)
            if address.socket is not None
            else http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
        )
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise DaemonUnreachable(f"cannot reach the daemon at {address}: {error.strerror or error}") from error
        return connection

    def _put_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _lost(self, error: Exception) -> AnswerLost:
        reason = str(error) or type(error).__name__
        return AnswerLost(f"cannot tell the outcome: the connection to {self.address} was lost ({reason})")


def _pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while piece := response.read1(PIECE_BYTES):
        yield piece


def _is_stream(body: Body) -> bool:
    return body is not None and not isinstance(body, bytes)


def _is_readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
