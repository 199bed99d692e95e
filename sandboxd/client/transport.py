"""Connections of the synchronous client over a unix socket, TCP or TLS, kept alive and shared by threads.

It speaks HTTP with `http.client`, and sends a request twice only if the first was not read or repeating it is safe.
"""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxd.client import request as rules
from sandboxd.client.address import Address
from sandboxd.client.errors import DaemonUnreachable
from sandboxd.client.request import MAX_ANSWER_BYTES, Answer, Request, broken, is_unread, silent, too_large
from sandboxd.client.tls import SharedTlsSocket, make_context

if TYPE_CHECKING:
    from sandboxd.client.websocket import ClientSocket

MAX_IDLE = 16
PIECE_BYTES = 65_536

_Broken = (http.client.HTTPException, OSError)
"""What http.client raises when a connection ends, or receives something that is not a valid answer."""


class _Connection:
    """One connection with one exchange at a time."""

    def __init__(self, http_connection: _OneWrite) -> None:
        self._http = http_connection
        self._sock: socket.socket = http_connection.sock
        self._response: http.client.HTTPResponse | None = None
        self._sender: _Sender | None = None
        self.idle_since = 0.0

    @property
    def is_reusable(self) -> bool:
        """Whether the last exchange is complete and the daemon keeps the connection open."""
        is_sent = self._sender is None or self._sender.is_done
        response = self._response
        return is_sent and response is not None and response.isclosed() and not response.will_close

    @property
    def is_quiet(self) -> bool:
        """Whether nothing can be read: a readable idle connection has been closed by the daemon."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not poll.poll(0)

    @property
    def source_error(self) -> BaseException | None:
        return None if self._sender is None else self._sender.error

    def open_socket(self, target: str, address: Address, on_close: Callable[[ClientSocket], None]) -> ClientSocket:
        """Turn this new connection into a WebSocket, which closes it."""
        from sandboxd.client.websocket import ClientSocket  # only for terminals: it loads the library

        headers = {"Host": address.authority}
        if address.token is not None:
            headers["Authorization"] = f"Bearer {address.token}"

        def release() -> None:
            self.close()
            on_close(opened)

        opened = ClientSocket(self._sock, address, release)
        try:
            opened.shake_hands(target, headers, rules.SHORT_S)
        except BaseException:
            self.close()
            raise
        return opened

    def close(self) -> None:
        if self._sender is not None:
            self._sender.stop()
        if self._response is not None:
            self._response.close()
        self._http.close()
        self._sock.close()

    def ask(self, request: Request, address: Address, stream: Iterable[bytes] | None) -> http.client.HTTPResponse:
        """Send a request, and return its answer once the head has arrived."""
        self._sock.settimeout(request.timeout_s)
        self._sender = None
        connection = self._http
        connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("host", address.authority)
        if address.token is not None:
            connection.putheader("authorization", f"Bearer {address.token}")
        for name, value in request.headers.items():
            connection.putheader(name, value.encode())
        try:
            if stream is None:
                body = request.body or b""
                if body or request.method not in ("GET", "HEAD"):
                    connection.putheader("content-length", str(len(body)))
                connection.endheaders(body or None)
                connection.flush()
            else:
                connection.putheader("transfer-encoding", "chunked")
                connection.endheaders()
                connection.flush()
                self._sender = _Sender(self._sock, chain((request.body or b"",), stream))
                self._wait_for_answer(self._sender, request.timeout_s)
        except (BrokenPipeError, ConnectionResetError) as error:
            # The daemon may have answered, and closed the connection without reading the rest of the body.
            with suppress(*_Broken):
                return self._answer()
            raise error from None
        return self._answer()

    def _wait_for_answer(self, sender: _Sender, timeout_s: float | None) -> None:
        """Wait until the answer begins. Every chunk that is sent restarts the time."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while timeout_s is not None:
            rest_s = sender.last_sent + timeout_s - time.monotonic()
            if poll.poll(max(rest_s, 0) * 1000):
                return
            if rest_s <= 0:
                raise TimeoutError("timed out")

    def _answer(self) -> http.client.HTTPResponse:
        self._response = self._http.getresponse()
        return self._response


class _Sender:
    """Sends a streamed body in a thread while the answer, which may arrive first, is read.

    It never raises: an error in its source is kept for the reader of the answer.
    """

    def __init__(self, sock: socket.socket, pieces: Iterable[bytes]) -> None:
        self._sock = sock
        self._pieces = iter(pieces)
        self._is_stopped = False
        self._lock = threading.Lock()
        """Held while the thread uses the socket, which must not be closed then: its descriptor could be reused."""
        self.last_sent = time.monotonic()
        self.is_done = False
        """Whether everything has been sent."""
        self.error: BaseException | None = None
        threading.Thread(target=self._send, name="upload", daemon=True).start()

    def stop(self) -> None:
        """Stop using the socket. The source may be read for one more chunk, which is dropped."""
        self._is_stopped = True
        _hang_up(self._sock)  # the thread may be sending
        with self._lock:
            pass

    def _send(self) -> None:
        while not self._is_stopped:
            try:
                piece = next(self._pieces, None)
                frame = b"0\r\n\r\n" if piece is None else b"%x\r\n%b\r\n" % (len(piece), piece)
            except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
                self.error = error
                with self._lock:
                    if not self._is_stopped:
                        _hang_up(self._sock)  # makes the daemon kill the command, which wakes the reader
                return
            try:
                with self._lock:
                    if self._is_stopped:
                        return
                    if piece is None or piece:  # an empty chunk would end the body
                        self._sock.sendall(frame)
            except OSError:
                return  # the reader of the answer reports why
            self.last_sent = time.monotonic()
            if piece is None:
                self.is_done = True
                return


class Transport:
    """Owns the connections, each with one request at a time; opens a new one if none is idle."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._context = make_context() if address.is_tls else None
        self._idle: deque[_Connection] = deque()
        """Idle connections, longest idle first; the last one is reused."""
        self._sockets: set[ClientSocket] = set()
        self._lock = threading.Lock()
        self._is_closed = False

    def send(self, request: Request, stream: Iterable[bytes] | None = None) -> Answer:
        """Send a request and return its whole answer. A streamed body follows the request's own."""
        with self._answered(request, stream) as (response, pieces):
            body = bytearray()
            for piece in pieces:
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise too_large()
            return Answer(response.status, bytes(body), response.headers)

    @contextmanager
    def stream(self, request: Request, stream: Iterable[bytes] | None = None) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Send a request and stream its answer. Leaving early closes the connection."""
        with self._answered(request, stream) as (response, pieces):
            yield response.status, pieces

    def open_socket(self, target: str) -> ClientSocket:
        """Open a WebSocket, on a connection of its own."""
        connection = self._take(rules.SHORT_S, is_new=True)
        opened = connection.open_socket(target, self.address, self._sockets.discard)
        with self._lock:
            self._sockets.add(opened)
        return opened

    def close(self) -> None:
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, deque(), True
            sockets = list(self._sockets)
        for connection in idle:
            connection.close()
        for opened in sockets:
            opened.close()

    @contextmanager
    def _answered(
        self, request: Request, stream: Iterable[bytes] | None
    ) -> Iterator[tuple[http.client.HTTPResponse, Iterator[bytes]]]:
        connection, response = self._begin(request, stream)
        try:
            yield response, self._read(request, connection, response)
        finally:
            if connection.is_reusable:
                self._put_back(connection)
            else:
                connection.close()

    def _read(self, request: Request, connection: _Connection, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """Yield the body as it arrives."""
        read = response.read1 if response.chunked else response.read
        try:
            while piece := read(PIECE_BYTES):
                yield piece
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)  # `read` with a size does not raise it
        except TimeoutError as error:
            raise silent(request) from error
        except _Broken as error:
            if connection.source_error is not None:
                raise connection.source_error from None
            raise broken(request, self.address, _reason(error), unread=False) from error

    def _begin(self, request: Request, stream: Iterable[bytes] | None) -> tuple[_Connection, http.client.HTTPResponse]:
        """Send a request and wait for its answer to begin; it may be sent once more if the connection breaks."""
        is_second = False
        while True:
            connection = self._take(request.timeout_s, is_new=is_second)
            try:
                return connection, connection.ask(request, self.address, stream)
            except TimeoutError as error:
                connection.close()
                raise silent(request) from error
            except _Broken as error:
                connection.close()
                if connection.source_error is not None:
                    raise connection.source_error from None
                # A streamed body cannot be sent again, and the daemon acts on it before it has read all of it.
                unread = stream is None and is_unread(self.address, error)
                if is_second or stream is not None or not (request.is_safe or unread):
                    raise broken(request, self.address, _reason(error), unread=unread) from error
                is_second = True
            except BaseException:
                connection.close()
                raise

    def _take(self, timeout_s: float | None, *, is_new: bool) -> _Connection:
        """Return a connection that the daemon has not closed: an idle one, or a new one."""
        oldest = time.monotonic() - rules.IDLE_S
        while True:
            with self._lock:
                if self._is_closed:
                    raise DaemonUnreachable("cannot send: this client is closed")
                while self._idle and self._idle[0].idle_since <= oldest:
                    self._idle.popleft().close()
                connection = self._idle.pop() if self._idle and not is_new else None
            if connection is None:
                return _connect(self.address, self._context, timeout_s)
            if connection.is_quiet:
                return connection
            connection.close()

    def _put_back(self, connection: _Connection) -> None:
        connection.idle_since = time.monotonic()
        with self._lock:
            if not self._is_closed and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()


class _OneWrite(http.client.HTTPConnection):
    """Sends the head of a request together with its body, so that both arrive or neither."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unsent: list[bytes] = []

    def send(self, data: Any) -> None:
        self._unsent.append(data)

    def flush(self) -> None:
        parts, self._unsent = self._unsent, []
        if sum(map(len, parts)) <= PIECE_BYTES:
            parts = [b"".join(parts)]
        for part in parts:
            for start in range(0, len(part), PIECE_BYTES):  # the timeout of `sendall` is for all that it sends
                self.sock.sendall(memoryview(part)[start : start + PIECE_BYTES])


class _TlsConnection(_OneWrite, http.client.HTTPSConnection):
    pass


class _UnixConnection(_OneWrite):
    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _connect(address: Address, context: ssl.SSLContext | None, timeout_s: float | None) -> _Connection:
    connection: _OneWrite
    if address.socket is not None:
        connection = _UnixConnection(address.socket, timeout_s)
    elif context is not None:
        connection = _TlsConnection(address.host, address.port, timeout=timeout_s, context=context)
    else:
        connection = _OneWrite(address.host, address.port, timeout=timeout_s)
    try:
        connection.connect()
        if isinstance(connection.sock, SharedTlsSocket):
            connection.sock.share()
    except OSError as error:
        connection.close()
        raise DaemonUnreachable(f"cannot reach the daemon at {address}: {error.strerror or error}") from error
    except BaseException:
        connection.close()
        raise
    return _Connection(connection)


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):
        # Not the TLS socket's own method, after which another thread could send in plaintext.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.RemoteDisconnected):
        return "it was closed"
    return str(error) or type(error).__name__
