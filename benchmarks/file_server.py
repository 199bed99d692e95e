"""A server on loopback in its own process that sends as many bytes as a path asks for, over plain HTTP and TLS.

`/bytes/N` is N zero bytes, sent from memory: no file is read or left behind. `/sent` is how much it has sent so far. It
ends when its standard input closes, so it never outlives the benchmark that started it.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from sandboxd.network.certificates import SandboxAuthority

HOST = "files.test"
CHUNK_BYTES = 1_048_576
"""How much is sent before it is counted."""
_HEAD_BYTES = 65_536
_READY_S = 30
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class FileServer:
    """The ports of a running server."""

    http: int
    https: int

    async def sent_bytes(self) -> int:
        async with await anyio.connect_tcp("127.0.0.1", self.http) as connection:
            await connection.send(b"GET /sent HTTP/1.1\r\n\r\n")
            answer = b"".join([part async for part in connection])
        return int(answer.rpartition(b"\r\n")[2])


@asynccontextmanager
async def serving_files() -> AsyncIterator[FileServer]:
    async with await anyio.open_process([sys.executable, "-m", __name__], stderr=None) as process:
        assert process.stdout is not None
        try:
            with anyio.fail_after(_READY_S):
                ready = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", _HEAD_BYTES)
            yield FileServer(**json.loads(ready))
        finally:
            process.kill()


class _Sender:
    """Answers requests, and counts what was sent."""

    def __init__(self) -> None:
        self._content = os.memfd_create("content")
        os.ftruncate(self._content, CHUNK_BYTES)
        self._chunk = memoryview(bytes(CHUNK_BYTES))
        self._lock = threading.Lock()
        self._sent_bytes = 0

    def listen(self, context: ssl.SSLContext | None) -> int:
        """Accept connections in a thread and serve each in its own; return the port."""
        listening = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)

        def accept() -> None:
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=self._serve, args=(connection, context), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return int(listening.getsockname()[1])

    def _serve(self, connection: socket.socket, context: ssl.SSLContext | None) -> None:
        with suppress(OSError), connection:  # the client has gone
            if context is None:
                self._answer(connection, lambda size: os.sendfile(connection.fileno(), self._content, 0, size))
            else:
                with context.wrap_socket(connection, server_side=True) as secured:
                    self._answer(secured, lambda size: secured.send(self._chunk[:size]))

    def _answer(self, connection: socket.socket, send: Callable[[int], int]) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            received = connection.recv(_HEAD_BYTES)
            if not received or len(head) > _HEAD_BYTES:
                return
            head += received
        path = head.split(b" ", 2)[1].decode("ascii", "replace")
        if path == "/sent":
            text = b"%d" % self._sent_bytes
            connection.sendall(_head_of(len(text)) + text)
            return
        left = int(path.removeprefix("/bytes/"))
        connection.sendall(_head_of(left))
        while left > 0:
            sent = send(min(left, CHUNK_BYTES))
            left -= sent
            with self._lock:
                self._sent_bytes += sent
        connection.shutdown(socket.SHUT_WR)


def _head_of(size_bytes: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % size_bytes


def main() -> None:
    sender = _Sender()
    context = anyio.run(SandboxAuthority("benchmark").context_for, HOST)
    print(json.dumps({"http": sender.listen(None), "https": sender.listen(context)}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
