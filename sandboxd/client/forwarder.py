"""A local port that leads into a sandbox, for the synchronous client: each local connection is one tunnel.

A connection has two threads, one for each direction. They are daemon threads: a program may end without them.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from sandboxd.client.errors import KNOWN_ERRORS
from sandboxd.client.forwarding import (
    KEEP_ALIVE_S,
    LOCAL_HOST,
    MAX_CONNECTIONS,
    PIECE_BYTES,
    check_local_port,
    not_listening,
)
from sandboxd.client.streams import Callback, notify


class TunnelEnd(Protocol):
    """What a forwarder needs from a connection to a sandbox."""

    def receive(self) -> bytes: ...
    def send(self, data: bytes) -> None: ...
    def send_eof(self) -> None: ...
    def keep_alive(self) -> None: ...
    def close(self) -> None: ...


class Forwarder:
    """`with sandbox.ports.forward(8000) as forwarder:` listens; leaving the block ends every connection."""

    def __init__(
        self, connect: Callable[[], TunnelEnd], local_port: int, on_failure: Callback[Exception] | None
    ) -> None:
        check_local_port(local_port)
        self._connect = connect
        self._on_failure = on_failure
        self._places = threading.Semaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._locals: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._is_closed = False
        self.host = LOCAL_HOST
        self.port = local_port
        """The local port; in the block, the one that it listens on."""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def __enter__(self) -> Self:
        try:
            self._listener = socket.create_server((self.host, self.port))
        except OSError as error:
            raise not_listening(self.port, error) from error
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_closed = True
            for local in self._locals:
                _end(local)
        if self._listener is not None:
            _end(self._listener)  # wakes the thread that accepts
            self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            self._places.acquire()
            try:
                local, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_closed:
                    local.close()
                    return
                self._locals.add(local)
            threading.Thread(target=self._serve, args=(local,), daemon=True).start()

    def _serve(self, local: socket.socket) -> None:
        try:
            tunnel = self._connect()
            try:
                self._relay(local, tunnel)
            finally:
                tunnel.close()
        except KNOWN_ERRORS as error:
            if not self._is_closed:
                notify(self._on_failure, error)
        except OSError:
            pass  # the local program has left
        finally:
            with self._lock:
                self._locals.discard(local)
            local.close()
            self._places.release()

    def _relay(self, local: socket.socket, tunnel: TunnelEnd) -> None:
        """Copy bytes until both sides have ended, or one of them fails."""
        sender = threading.Thread(target=_send, args=(local, tunnel), daemon=True)
        sender.start()
        try:
            _receive(local, tunnel)
            sender.join()
        except BaseException:
            _end(local)  # ends the sender too
            raise


def _send(local: socket.socket, tunnel: TunnelEnd) -> None:
    try:
        while data := local.recv(PIECE_BYTES):
            tunnel.send(data)
        tunnel.send_eof()
    except OSError:
        tunnel.close()  # the local program has broken the connection
    except KNOWN_ERRORS:
        return  # the reader of the tunnel says why


def _receive(local: socket.socket, tunnel: TunnelEnd) -> None:
    while data := tunnel.receive():
        _write_all(local, data, tunnel)
    local.shutdown(socket.SHUT_WR)


def _write_all(local: socket.socket, data: bytes, tunnel: TunnelEnd) -> None:
    """Write to the local program. While it does not read, the daemon hears that this end still exists."""
    unsent = memoryview(data)
    waiting = select.poll()
    waiting.register(local, select.POLLOUT)
    while unsent:
        if not waiting.poll(KEEP_ALIVE_S * 1000):
            tunnel.keep_alive()
            continue
        with suppress(BlockingIOError):
            unsent = unsent[local.send(unsent, socket.MSG_DONTWAIT) :]


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
