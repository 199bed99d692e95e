"""A server on a unix socket that answers every request alike and closes kept-alive connections when a test says so.

It keeps the requests that it read, because only those can have had an effect.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b"
RESULT = b'{"exit_code":0,"stdout":"","stderr":"","timed_out":false,"truncated":false,"duration_ms":1}'


class Closing(Enum):
    """When a connection is closed. A new one first answers one request, except with UNREAD_ALWAYS."""

    NEVER = "never"
    IDLE = "after it has been idle"
    UNREAD = "when the next request has arrived, without reading it"
    UNREAD_ALWAYS = "when any request has arrived, without reading it"
    READ = "when the next request has been read, without an answer"


class ClosingServer:
    def __init__(self, path: Path, closing: Closing, idle_s: float) -> None:
        self.path = path
        self.closing = closing
        self.idle_s = idle_s
        self.requests: list[bytes] = []
        self.connections = 0
        self.closed = threading.Semaphore(0)
        """Released whenever a connection is closed."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            has_answered = False
            while self._wait(connection, self.idle_s if has_answered and self.closing is Closing.IDLE else None):
                if self.closing is Closing.UNREAD_ALWAYS or (has_answered and self.closing is Closing.UNREAD):
                    break
                if not (request := self._read(connection)):
                    break
                self.requests.append(request)
                if has_answered and self.closing is Closing.READ:
                    break
                body = b"event: exit\ndata: %b\n\n" % RESULT if b"text/event-stream" in request else RESULT
                connection.sendall(ANSWER % (len(body), body))
                has_answered = True
        self.closed.release()

    def _wait(self, connection: socket.socket, timeout_s: float | None) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))

    def _read(self, connection: socket.socket) -> bytes:
        data = b""
        while True:
            piece = connection.recv(65_536)
            if not piece:
                return b""
            data += piece
            head, end, body = data.partition(b"\r\n\r\n")
            if end and len(body) >= _content_length(head):
                return data


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


@contextmanager
def closing_server(path: Path, closing: Closing, *, idle_s: float = 0.02) -> Iterator[ClosingServer]:
    server = ClosingServer(path, closing, idle_s)
    try:
        yield server
    finally:
        server.stop()
