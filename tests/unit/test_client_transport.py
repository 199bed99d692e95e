"""The transports of both clients against a server that answers with given bytes: deadlines, bounds, lost answers."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop

from sandboxd.client import AnswerLost, AsyncClient, Client, DaemonUnreachable
from sandboxd.client.address import Address
from sandboxd.client.async_transport import AsyncTransport
from sandboxd.client.request import Answer, Request
from sandboxd.client.transport import Transport
from sandboxd.errors import InvalidRequest

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"

Send = Callable[[Address, Request], Answer]


def _ordinary(address: Address, request: Request) -> Answer:
    transport = Transport(address)
    try:
        return transport.send(request)
    finally:
        transport.close()


def _async(address: Address, request: Request) -> Answer:
    async def work() -> Answer:
        transport = AsyncTransport(address)
        try:
            return await transport.send(request)
        finally:
            await transport.close()

    return asyncio.run(work())


@pytest.fixture(params=[_ordinary, _async])
def send(request: pytest.FixtureRequest) -> Send:
    chosen: Send = request.param
    return chosen


class Scripted:
    """A TCP server that answers the requests of each connection with the given bytes, then closes it."""

    def __init__(self, *connections: list[bytes], waits: bool = False) -> None:
        self.may_close = threading.Event()
        """Until it is set no connection is closed; set from the start unless the server `waits`."""
        if not waits:
            self.may_close.set()
        self.requests: list[bytes] = []
        self.closed = threading.Semaphore(0)
        """Released whenever a connection is closed."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(host="127.0.0.1", port=self._listener.getsockname()[1], token="t")
        self._thread = threading.Thread(target=self._serve, args=(connections,))
        self._thread.start()

    def _serve(self, connections: tuple[list[bytes], ...]) -> None:
        for answers in connections:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(30)
                for answer in answers:
                    if not (request := connection.recv(65_536)):
                        break
                    self.requests.append(request)
                    connection.sendall(answer)
                self.may_close.wait(30)
            self.closed.release()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(30)


@contextmanager
def scripted(*connections: list[bytes], waits: bool = False) -> Iterator[Scripted]:
    server = Scripted(*connections, waits=waits)
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
def test_a_write_whose_answer_is_lost_is_never_sent_twice(method: str) -> None:
    """The connection has been used before, which is when aiohttp alone would send PUT and DELETE again."""
    request = Request(method, "/x", b"{}" if method != "DELETE" else None)

    async def asynchronously(address: Address) -> None:
        transport = AsyncTransport(address)
        try:
            await transport.send(Request("GET", "/x"))
            with pytest.raises(AnswerLost, match="may or may not have been carried out"):
                await transport.send(request)
        finally:
            await transport.close()

    def ordinarily(address: Address) -> None:
        transport = Transport(address)
        try:
            transport.send(Request("GET", "/x"))
            with pytest.raises(AnswerLost, match="may or may not have been carried out"):
                transport.send(request)
        finally:
            transport.close()

    for act in (ordinarily, lambda address: asyncio.run(asynchronously(address))):
        with scripted([OK, b""], [OK]) as server:
            act(server.address)
        assert [one.split()[0] for one in server.requests] == [b"GET", method.encode()]


@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_a_tcp_connection_that_was_closed_while_the_event_loop_was_blocked_is_not_used(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with scripted([OK], [OK], waits=True) as server, asyncio.Runner(loop_factory=factory) as runner:
        transport = AsyncTransport(server.address)
        runner.run(transport.send(Request("POST", "/x")))
        server.may_close.set()
        assert server.closed.acquire(timeout=30)
        runner.run(transport.send(Request("POST", "/x")))
        runner.run(transport.close())


@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_a_tcp_connection_that_was_closed_while_a_task_blocked_the_event_loop_is_not_used(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def work(server: Scripted) -> None:
        transport = AsyncTransport(server.address)
        await transport.send(Request("POST", "/x"))
        server.may_close.set()
        assert server.closed.acquire(timeout=30)  # blocks the event loop
        await transport.send(Request("POST", "/x"))
        await transport.close()

    with scripted([OK], [OK], waits=True) as server, asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work(server))
    assert len(server.requests) == 2


def test_an_idempotent_write_whose_answer_is_lost_is_sent_once_more(send: Send) -> None:
    with scripted([b""], [OK]) as server:
        assert send(server.address, Request("PUT", "/x", b"{}", is_idempotent=True)).body == b"{}"
    assert len(server.requests) == 2


def test_a_silent_daemon_is_abandoned_after_the_deadline(send: Send) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address(host="127.0.0.1", port=silent.getsockname()[1])
        with pytest.raises(AnswerLost, match=r"no answer within 0\.2 s"):
            send(address, Request("POST", "/x", timeout_s=0.2))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"not HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-many: 1\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx-long: " + b"a" * 100_000 + b"\r\n\r\n",
    ],
    ids=["short", "short chunk", "no last chunk", "not HTTP", "many headers", "long header"],
)
def test_an_answer_that_is_cut_off_or_not_http_is_lost(send: Send, answer: bytes) -> None:
    with scripted([answer]) as server, pytest.raises(AnswerLost, match="may or may not have been carried out"):
        send(server.address, Request("POST", "/x"))


def test_an_answer_larger_than_the_bound_is_refused(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.client.transport.MAX_ANSWER_BYTES", 1000)
    monkeypatch.setattr("sandboxd.client.async_transport.MAX_ANSWER_BYTES", 1000)
    body = b"x" * 1001
    for rest in (
        b"content-length: 1001\r\n\r\n" + body,
        b"transfer-encoding: chunked\r\n\r\n3e9\r\n" + body + b"\r\n0\r\n\r\n",
    ):
        with (
            scripted([b"HTTP/1.1 200 OK\r\n" + rest]) as server,
            pytest.raises(InvalidRequest, match="stream the file with open_file"),
        ):
            send(server.address, Request("POST", "/x"))


def test_the_token_is_sent_as_a_bearer_token_and_headers_as_utf_8(send: Send) -> None:
    with scripted([OK]) as server:
        send(server.address, Request("POST", "/x", b"{}", {"x-memo-reason": "für ☃"}))
    head = server.requests[0].partition(b"\r\n\r\n")[0].lower()
    assert b"authorization: bearer t" in head
    assert "x-memo-reason: für ☃".encode() in head


def test_a_header_with_a_line_break_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="line break"):
        Request("GET", "/x", headers={"x-memo-reason": "a\r\nx-other: b"})


def test_an_error_of_the_caller_inside_a_streamed_answer_stays_what_it_is() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfile"

    async def asynchronously(address: Address) -> None:
        async with AsyncClient(url=address.url, token="t") as client, client.open_file("s", "/workspace/a"):
            raise OSError("disk full")

    def ordinarily(address: Address) -> None:
        with Client(url=address.url, token="t") as client, client.open_file("s", "/workspace/a"):
            raise OSError("disk full")

    for act in (ordinarily, lambda address: asyncio.run(asynchronously(address))):
        with scripted([answer]) as server, pytest.raises(OSError, match="disk full"):
            act(server.address)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_error_in_the_source_is_raised_although_the_answer_has_begun(is_streamed: bool) -> None:
    """The answer has begun but never ends: without the error, its reader would wait for the deadline."""
    begun = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n" if is_streamed else b""

    def pieces(sent: threading.Event) -> Iterator[bytes]:
        yield b"one"
        sent.wait(30)
        raise RuntimeError("source failed")

    def run(act: Callable[[Address, Iterator[bytes]], Any]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sent = threading.Event()

            def serve() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(begun)
                    sent.set()
                    while connection.recv(65_536):
                        pass

            thread = threading.Thread(target=serve)
            thread.start()
            address = Address(host="127.0.0.1", port=listener.getsockname()[1])
            with pytest.raises(RuntimeError, match="source failed"):
                act(address, pieces(sent))
            thread.join(30)

    def ordinarily(address: Address, source: Iterator[bytes]) -> None:
        with Client(url=address.url, token="t") as client:
            list(client.exec_stream("s", "cat", stdin=source))

    def asynchronously(address: Address, source: Iterator[bytes]) -> None:
        async def work() -> None:
            async with AsyncClient(url=address.url, token="t") as client:
                [item async for item in client.exec_stream("s", "cat", stdin=source)]

        asyncio.run(work())

    run(ordinarily)
    run(asynchronously)


def test_a_command_whose_stdin_was_lost_on_the_way_may_have_run() -> None:
    """The daemon starts a command before it has read all of its stdin, so a reset proves nothing."""
    for is_async in (False, True):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve(listener: socket.socket = listener) -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(100)

            thread = threading.Thread(target=serve)
            thread.start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(AnswerLost) as lost:
                _exec_endlessly(url, is_async=is_async)
            assert isinstance(lost.value, DaemonUnreachable)
            assert not lost.value.retryable
            thread.join(30)


def _exec_endlessly(url: str, *, is_async: bool) -> None:
    stdin = (bytes(65_536) for _ in range(1000))
    if not is_async:
        with Client(url=url, token="t") as client:
            client.exec("s", "cat", stdin=stdin)
        return

    async def work() -> None:
        async with AsyncClient(url=url, token="t") as client:
            await client.exec("s", "cat", stdin=stdin)

    asyncio.run(work())


def test_a_client_is_refused_in_a_second_event_loop_before_it_sends() -> None:
    with scripted([OK, OK]) as server, asyncio.Runner() as first, asyncio.Runner() as second:
        transport = AsyncTransport(server.address)
        first.run(transport.send(Request("POST", "/x")))
        with pytest.raises(InvalidRequest, match="belongs to another event loop"):
            second.run(transport.send(Request("POST", "/x")))
        first.run(transport.close())
    assert len(server.requests) == 1


class SlowReader:
    """A TCP server that reads a chunked body to its end, or nothing after the head, and then answers."""

    def __init__(self, *, reads_body: bool) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(host="127.0.0.1", port=self._listener.getsockname()[1])
        self._reads_body = reads_body
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(30)
            received = b""
            while self._reads_body and not received.endswith(b"0\r\n\r\n"):
                received = (received + connection.recv(65_536))[-100:]
            connection.sendall(OK)
            self.done.wait(30)

    def stop(self) -> None:
        self.done.set()
        self._thread.join(30)
        self._listener.close()


def test_an_upload_may_take_longer_than_the_daemon_may_be_silent() -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(6):
            time.sleep(0.4)
            yield b"piece"

    async def async_pieces() -> AsyncIterator[bytes]:
        for _ in range(6):
            await asyncio.sleep(0.4)
            yield b"piece"

    request = Request("PUT", "/x", timeout_s=1.5)
    server = SlowReader(reads_body=True)
    transport = Transport(server.address)
    assert transport.send(request, pieces()).status == 200
    transport.close()
    server.stop()

    async def work(address: Address) -> int:
        async_transport = AsyncTransport(address)
        try:
            return (await async_transport.send(request, async_pieces())).status
        finally:
            await async_transport.close()

    server = SlowReader(reads_body=True)
    assert asyncio.run(work(server.address)) == 200
    server.stop()


def test_no_thread_uses_a_connection_after_it_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon answers without reading, so the upload is stuck in a write when its connection is closed."""
    failures: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda failed: failures.append(failed.exc_value))
    server = SlowReader(reads_body=False)
    transport = Transport(server.address)
    before = threading.active_count()
    assert transport.send(Request("PUT", "/x"), itertools.repeat(bytes(1_000_000), 1000)).status == 200
    transport.close()
    for thread in threading.enumerate():
        if thread.name == "upload":
            thread.join(30)
    assert threading.active_count() <= before
    assert failures == []
    server.stop()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_source_of_text_is_refused_instead_of_sent(is_async: bool) -> None:
    async def texts() -> AsyncIterator[Any]:
        yield "text"

    async def work(address: Address) -> None:
        async with AsyncClient(url=address.url, token="t") as client:
            await client.write_file("s", "/workspace/a", texts())

    source: Any = iter(["text"])
    with scripted([b"", b""]) as server, pytest.raises(InvalidRequest, match="it consists of str, not bytes"):
        if is_async:
            asyncio.run(work(server.address))
        else:
            with Client(url=server.address.url, token="t") as client:
                client.write_file("s", "/workspace/a", source)
