"""Streams: bytes both ways between the daemon and a socket inside the container, and those that the daemon dials.

Each direction has its own credit, so a side that does not read stops only its own stream. A stream ends when both
directions have ended, or when either side breaks. It never blocks, and holds at most one window for each stream.
"""

from __future__ import annotations

import errno
import os
import socket
from abc import ABC, abstractmethod

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
CREDIT_BYTES = wire.WINDOW_BYTES // 2
"""Credit is returned in pieces of at least this size, because each costs both sides a frame."""
_LOOPBACK = ("127.0.0.1", "::1")

_frame = memoryview(bytearray(wire.HEADER_BYTES + wire.CHUNK_BYTES))  # shared: a frame is sent or copied at once


class SocketStream(ABC):
    """Moves the bytes of one stream, from `_begin` on: data and credit, and a result at its end."""

    def __init__(self, runner: RunnerCore, call: int, connected: socket.socket) -> None:
        self._runner = runner
        self._hub = runner.hub
        self._call = call
        self._socket = connected
        self._credit = wire.WINDOW_BYTES
        self._owed = 0
        """How much the socket has taken for which the daemon has not got its credit back."""
        self._unsent = bytearray()
        self._is_moving = False
        self._is_reading = True
        """Whether the process may still send."""
        self._is_writing = True
        """Whether the daemon may still send."""
        self._is_ending = False
        self._is_waiting = False
        self._watched = 0
        self.is_over = False

    def take_data(self, data: bytes) -> None:
        if self._is_writing and data:
            self._write(data)

    def take_end(self) -> None:
        """Tell the process that nothing more follows, once everything is written."""
        self._is_ending = True
        self._write()

    def take_credit(self, size_bytes: int) -> None:
        self._credit += size_bytes
        self._update()

    def cancel(self) -> None:
        self._close()

    def answer(self, *, is_reset: bool) -> None:
        self._runner.connection.send(wire.pack(wire.RESULT, self._call, {"reset": is_reset}))

    def _begin(self) -> None:
        self._is_moving = True
        self._write()

    @abstractmethod
    def _forget(self) -> None:
        """Take this stream, which is over, out of its table."""

    def _ready(self) -> None:
        if self._unsent:
            self._write()
        if self._runner.connection.is_busy:
            self._update()  # another stream was first
        elif self._is_reading and not self.is_over and self._credit > 0:
            self._read()

    def _read(self) -> None:
        start = wire.HEADER_BYTES
        try:
            size = self._socket.recv_into(_frame[start:], min(wire.CHUNK_BYTES, self._credit))
        except BlockingIOError:
            return
        except OSError:
            self._break(is_reset=True)
            return
        if size:
            self._credit -= size
            wire.HEADER.pack_into(_frame, 0, wire.DATA, self._call, 0, size)
            self._runner.connection.send(_frame[: start + size])
        else:
            self._is_reading = False
            self._runner.connection.send(wire.pack(wire.END, self._call))
        self._update()

    def _write(self, data: bytes = b"") -> None:
        """Write this data after what is unsent, as much as the socket takes now."""
        if not self._is_moving or not self._is_writing or self._unsent:
            self._unsent += data
            data = b""
        if not self._is_moving or not self._is_writing:
            return
        try:
            written = self._socket.send(self._unsent or data) if self._unsent or data else 0
        except BlockingIOError:
            written = 0
        except OSError:
            self._break(is_reset=True)
            return
        if data:
            self._unsent += data[written:]
        else:
            del self._unsent[:written]
        self._give_credit(written)
        if self._is_ending and not self._unsent:
            self._is_writing = False
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self._break(is_reset=True)
                return
        self._update()

    def _give_credit(self, written: int) -> None:
        self._owed += written
        is_delivered = self._is_ending and not self._unsent  # the daemon may wait to learn that
        if self._owed >= CREDIT_BYTES or (is_delivered and self._owed):
            self._runner.connection.send(wire.pack_credit(self._call, self._owed))
            self._owed = 0

    def _update(self) -> None:
        """Watch what there is to do, or end the stream if there is nothing more."""
        if self.is_over or not self._is_moving:
            return
        if not self._is_reading and not self._is_writing:
            self._break()
            return
        wants_read = self._is_reading and self._credit > 0
        if wants_read and self._runner.connection.is_busy:
            wants_read = False  # answers of calls go first
            if not self._is_waiting:
                self._is_waiting = True
                self._runner.connection.when_idle(self._resume)
        self._watch((READABLE if wants_read else 0) | (WRITABLE if self._unsent else 0))

    def _resume(self) -> None:
        self._is_waiting = False
        self._update()

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
        """End the stream and answer, because it is complete or the process has broken it."""
        if not self.is_over:
            self._close()
            self.answer(is_reset=is_reset)

    def _close(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._watch(0)
            self._socket.close()
            self._unsent = bytearray()
            self._forget()


class DialledStream(SocketStream):
    """A stream to a server: an empty frame once it is connected, then its bytes."""

    def __init__(self, runner: RunnerCore, call: int, head: dict[str, Any]) -> None:
        if runner.streams >= MAX_STREAMS:
            raise Failure("Busy", f"cannot open this stream: {MAX_STREAMS} are open in this sandbox; close one")
        self._targets = _addresses(head)
        super().__init__(runner, call, self._connect())
        runner.streams += 1
        self._timer = self._hub.after(CONNECT_S, self._expire)
        self._watch(WRITABLE)

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

    def _ready(self) -> None:
        if self._is_moving:
            super()._ready()
            return
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._try_next(number)
            return
        self._hub.cancel(self._timer)
        self._runner.connection.send(wire.pack(wire.DATA, self._call, {}))
        self._begin()

    def _try_next(self, number: int) -> None:
        self._watch(0)
        try:
            if not self._targets:
                raise _refusal(number)
            following = self._connect()
        except Failure as failure:
            self._refuse(failure)
            return
        self._socket.close()
        self._socket = following
        self._watch(WRITABLE)

    def _expire(self) -> None:
        self._refuse(_refusal(errno.ETIMEDOUT))

    def _refuse(self, failure: Failure) -> None:
        self._close()
        self._runner.refuse(self._call, failure)

    def _forget(self) -> None:
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
