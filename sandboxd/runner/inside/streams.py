"""Streams to servers inside the container: bytes both ways between the daemon and a socket that a process listens on.

Each direction has its own credit, so a side that does not read stops only its own stream. A stream ends when both
directions have ended, or when either side breaks. It never blocks, and holds at most one window for each stream.
"""

from __future__ import annotations

import errno
import os
import socket

from . import wire
from .failure import Failure, reason_of
from .hub import READABLE, WRITABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .core import RunnerCore

MAX_STREAMS = 128
"""How many streams one sandbox may have, fewer than calls: an open stream must not take the place of a command."""
CONNECT_S = 10.0
_LOOPBACK = ("127.0.0.1", "::1")


class Stream:
    """One stream: an empty frame once it is connected, then data and credit, and a result at its end."""

    def __init__(self, runner: RunnerCore, call: int, head: dict[str, Any]) -> None:
        if runner.streams >= MAX_STREAMS:
            raise Failure("Busy", f"cannot open this stream: {MAX_STREAMS} are open in this sandbox; close one")
        self._runner = runner
        self._hub = runner.hub
        self._call = call
        self._credit = wire.WINDOW_BYTES
        self._unsent = bytearray()
        self._is_connected = False
        self._is_reading = True
        """Whether the server may still send."""
        self._is_writing = True
        """Whether the daemon may still send."""
        self._is_ending = False
        self._watched = 0
        self._is_over = False
        self._targets = _addresses(head)
        self._socket = self._connect()
        runner.streams += 1
        self._timer = self._hub.after(CONNECT_S, self._expire)
        self._watch(WRITABLE)

    def take_data(self, data: bytes) -> None:
        if self._is_writing and data:
            self._unsent += data
            self._write()

    def take_end(self) -> None:
        """Tell the server that nothing more follows, once everything is written."""
        self._is_ending = True
        self._write()

    def take_credit(self, size_bytes: int) -> None:
        self._credit += size_bytes
        self._update()

    def cancel(self) -> None:
        self._close()

    def _connect(self) -> socket.socket:
        """Begin to connect to the next address; raise Failure if no address is left."""
        while True:
            family, address = self._targets.pop(0)
            found = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            number = found.connect_ex(address)
            if number in (0, errno.EINPROGRESS):
                return found
            found.close()
            if not self._targets:
                raise _refusal(number)

    def _connected(self) -> None:
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._watch(0)
            self._socket.close()
            try:
                if not self._targets:
                    raise _refusal(number)
                self._socket = self._connect()
            except Failure as failure:
                self._end()
                self._runner.refuse(self._call, failure)
                return
            self._watch(WRITABLE)
            return
        self._is_connected = True
        self._hub.cancel(self._timer)
        self._runner.connection.send(wire.pack(wire.DATA, self._call, {}))
        self._write()

    def _expire(self) -> None:
        self._close()
        self._runner.refuse(self._call, _refusal(errno.ETIMEDOUT))

    def _ready(self) -> None:
        if not self._is_connected:
            self._connected()
            return
        if self._unsent:
            self._write()
        if self._is_reading and not self._is_over and self._credit > 0:
            self._read()

    def _read(self) -> None:
        try:
            piece = self._socket.recv(min(wire.CHUNK_BYTES, self._credit))
        except BlockingIOError:
            return
        except OSError:
            self._break(is_reset=True)
            return
        if piece:
            self._credit -= len(piece)
            self._runner.connection.send(wire.pack(wire.DATA, self._call, None, piece))
        else:
            self._is_reading = False
            self._runner.connection.send(wire.pack(wire.END, self._call))
        self._update()

    def _write(self) -> None:
        if not self._is_connected or not self._is_writing:
            return
        written = 0
        if self._unsent:
            try:
                written = self._socket.send(self._unsent)
            except BlockingIOError:
                pass
            except OSError:
                self._break(is_reset=True)
                return
            del self._unsent[:written]
        if written:
            self._runner.connection.send(wire.pack_credit(self._call, written))
        if self._is_ending and not self._unsent:
            self._is_writing = False
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self._break(is_reset=True)
                return
        self._update()

    def _update(self) -> None:
        """Watch what there is to do, or end the stream if there is nothing more."""
        if self._is_over or not self._is_connected:
            return
        if not self._is_reading and not self._is_writing:
            self._break()
            return
        wants_read = self._is_reading and self._credit > 0
        if wants_read and self._runner.connection.is_congested:
            wants_read = False
            self._runner.connection.when_drained(self._update)
        self._watch((READABLE if wants_read else 0) | (WRITABLE if self._unsent else 0))

    def _watch(self, events: int) -> None:
        if events == self._watched:
            return
        fd = self._socket.fileno()
        if not events:
            self._hub.unwatch(fd)
        elif self._watched:
            self._hub.rewatch(fd, events)
        else:
            self._hub.watch(fd, events, self._ready)
        self._watched = events

    def _break(self, *, is_reset: bool = False) -> None:
        """End the stream and answer, because it is complete or the server has broken it."""
        if not self._is_over:
            self._close()
            self._runner.connection.send(wire.pack(wire.RESULT, self._call, {"reset": is_reset}))

    def _close(self) -> None:
        if not self._is_over:
            self._watch(0)
            self._socket.close()
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._hub.cancel(self._timer)
        self._runner.streams -= 1
        self._runner.forget(self._call, self)


def _addresses(head: dict[str, Any]) -> list[tuple[int, Any]]:
    """Return what to try, in order: a socket's path, or a port on the loopback addresses."""
    if "unix" in head:
        return [(socket.AF_UNIX, head["unix"])]
    families = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
    return [(families[host], (host, head["port"])) for host in _LOOPBACK]


def _refusal(number: int) -> Failure:
    if number in (errno.ECONNREFUSED, errno.ENOENT, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return Failure("NothingListens", "cannot connect: no process in the sandbox listens there; start it first")
    return Failure("NothingListens", f"cannot connect: {reason_of(OSError(number, os.strerror(number)))}")
