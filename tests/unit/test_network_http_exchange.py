"""Requests through the proxy's parts: what reaches the origin, what comes back, and what is refused.

Clients, proxy and origins talk over real sockets and real TLS.
"""

from __future__ import annotations

import base64
import gzip
import os
import re
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from anyio import to_thread

from sandboxd.network.byte_stream import ByteStream
from sandboxd.network.credentials import Credential
from sandboxd.network.http_connection import HttpClientConnection
from sandboxd.network.http_head import (
    Headers,
    HttpRefusal,
    OutgoingRequest,
    RequestHead,
    end_to_end,
    host_header_matches,
    parse_absolute,
)
from sandboxd.network.tls_stream import TlsStream, wrap_client, wrap_server
from sandboxd.network_settings import CredentialOptions
from tests.unit.http_proxy import AUTHORITY, ORIGINS, Origin, Proxy, ok, serving
from tests.unit.socket_byte_stream import SocketByteStream, connected

pytestmark = pytest.mark.anyio

TOKEN = "ghp_0123456789/abcdef"


@pytest.fixture
def credential(monkeypatch: pytest.MonkeyPatch) -> Credential:
    monkeypatch.setenv("AGENT_TOKEN", TOKEN)
    return with_token()


def with_token(**options: Any) -> Credential:
    return Credential("github", CredentialOptions(**{"host": "127.0.0.1", "variable": "AGENT_TOKEN", **options}))


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[SocketByteStream]:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        yield SocketByteStream(stream)


@asynccontextmanager
async def tunnel(proxy: Proxy, port: int) -> AsyncIterator[TlsStream]:
    """Yield a TLS connection to the proxy that takes it for one to the origin."""
    async with connection(proxy.port) as stream:
        await stream.send(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")
        context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem.decode())
        yield await wrap_client(stream, "127.0.0.1", context)


async def everything(stream: ByteStream) -> bytes:
    data = b""
    while part := await stream.receive():
        data += part
    return data


async def until(stream: ByteStream, end: bytes) -> bytes:
    """Return what arrives up to and including these bytes."""
    data = b""
    while not data.endswith(end):
        part = await stream.receive()
        assert part, f"it ended after {data!r}"
        data += part
    return data


def get(port: int, path: str = "/", *headers: str, method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *headers]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


def header(head: bytes, name: str) -> list[bytes]:
    return re.findall(rb"(?im)^%b: *(.*?)\r?$" % name.encode(), head)


async def plain(request: bytes, origin: Origin, proxy: Proxy | None = None) -> tuple[bytes, Proxy]:
    """Send a plain request, in which PORT stands for the origin's port; return what comes back until the end."""
    origin.tls = False
    async with serving(origin, proxy or Proxy()) as (proxy, port), connection(proxy.port) as client:
        await client.send(request.replace(b"PORT", str(port).encode()))
        return await everything(client), proxy


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
GET = b"GET http://127.0.0.1:PORT/a?b=c HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n"


async def test_a_plain_request_reaches_the_origin_in_origin_form_without_the_proxys_headers() -> None:
    origin = Origin(lambda head, body: ok(b"hello", "Keep-Alive: timeout=5", "X-Kept: 1"))
    private = b"Proxy-Authorization: x\r\nConnection: X-Private, host\r\nX-Private: 1\r\nTE: trailers\r\nX-Kept: 2\r\n"
    answer, proxy = await plain(GET + private + b"\r\n", origin)
    (head,) = origin.heads
    assert head.startswith(b"GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")
    assert head.endswith(b"\r\nX-Kept: 2")
    assert head.count(b"\r\n") == 2
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert header(answer, "Connection") == [b"close"]
    assert header(answer, "Keep-Alive") == header(answer, "Via") == []
    assert header(answer, "X-Kept") == [b"1"]
    assert answer.endswith(b"\r\n\r\nhello")
    (exchange,) = proxy.exchanges
    assert (exchange.method, exchange.status, exchange.decision) == ("GET", 200, "allowed")
    assert exchange.bytes_in == len(answer)


async def test_bodies_of_known_and_unknown_length_are_carried() -> None:
    post = GET.replace(b"GET", b"POST")
    for request in (b"Content-Length: 5\r\n\r\nhello", b"Content-Length: 0\r\n\r\n"):
        answer, _ = await plain(post + request, Origin())
        assert answer.endswith(b"\r\n\r\n" + request.partition(b"\r\n\r\n")[2])

    received = []

    async def chunked(stream: ByteStream) -> None:
        received.append(await until(stream, b"0\r\n\r\n"))
        await stream.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nTrailer: dropped\r\n\r\n"
        )

    async with serving(chunked, Proxy()) as (proxy, port), connection(proxy.port) as client:
        await client.send(post.replace(b"PORT", str(port).encode()) + b"Transfer-Encoding: chunked\r\n\r\n")
        await client.send(b"5;extension=x\r\nhello\r\n0\r\nTrailer: dropped\r\n\r\n")
        answer = await everything(client)
    assert header(received[0], "Transfer-Encoding") == [b"chunked"]
    assert received[0].endswith(b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("method", "given", "ending"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nConnection: close\r\n\r\n", b"\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n", b"\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\nConnection: close\r\n\r\n", b"\r\n\r\n"),
        (b"GET", b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end", b"\r\n\r\na\r\nto the end\r\n0\r\n\r\n"),
        (b"GET", b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nto the end", b"\r\n\r\na\r\nto the end\r\n0\r\n\r\n"),
        (b"GET", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok(b"late"), b"\r\n\r\nlate"),
    ],
)
async def test_answers_with_and_without_a_body_end_where_they_should(
    method: bytes, given: bytes, ending: bytes
) -> None:
    answer, proxy = await plain(GET.replace(b"GET", method) + b"\r\n", Origin(lambda head, body: given))
    assert answer.endswith(ending)
    assert answer.startswith(given[:12].replace(b"1.0", b"1.1"))
    assert proxy.exchanges[0].decision == "allowed"


async def test_an_answer_to_an_old_client_has_no_chunks_and_no_interim_answer() -> None:
    given = (
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    )
    answer, _ = await plain(GET.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n", Origin(lambda head, body: given))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nabc")


async def test_a_client_that_waits_for_permission_to_send_its_body_gets_the_origins() -> None:
    async def permitting(stream: ByteStream) -> None:
        assert header(await until(stream, b"\r\n\r\n"), "Expect") == [b"100-continue"]
        await stream.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await stream.send(ok(await until(stream, b"hello")))

    post = GET.replace(b"GET", b"POST") + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    async with serving(permitting, Proxy()) as (proxy, port), connection(proxy.port) as client:
        await client.send(post.replace(b"PORT", str(port).encode()))
        assert await until(client, b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
        await client.send(b"hello")
        assert (await everything(client)).endswith(b"hello")


async def test_an_early_answer_ends_the_upload() -> None:
    async def refusing(stream: ByteStream) -> None:
        await until(stream, b"\r\n\r\n")
        await stream.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await stream.receive()  # it reads no more than that

    post = GET.replace(b"GET", b"POST") + b"Content-Length: 100000000\r\n\r\n"
    async with serving(refusing, Proxy()) as (proxy, port), connection(proxy.port) as client:
        await client.send(post.replace(b"PORT", str(port).encode()))
        assert header(await until(client, b"\r\n\r\n"), "Connection") == [b"close"]
        assert await everything(client) == b""


async def test_a_body_is_not_kept_when_the_client_does_not_read() -> None:
    """The origin can send only what fits into the buffers of the connections."""
    sent = 0
    blocked = anyio.Event()

    async def endless(stream: ByteStream) -> None:
        nonlocal sent
        await until(stream, b"\r\n\r\n")
        await stream.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while not blocked.is_set() and sent < 1 << 30:
            with anyio.move_on_after(1) as scope:
                await stream.send(bytes(1 << 20))
                sent += 1 << 20
            if scope.cancelled_caught:
                blocked.set()

    async with serving(endless, Proxy()) as (proxy, port), connection(proxy.port) as client:
        await client.send(GET.replace(b"PORT", str(port).encode()) + b"\r\n")
        await blocked.wait()
    assert sent < 64 << 20


async def test_a_client_that_goes_away_ends_the_request_to_the_origin() -> None:
    ended = anyio.Event()

    async def silent(stream: ByteStream) -> None:
        await until(stream, b"\r\n\r\n")
        assert await stream.receive() == b""
        ended.set()

    async with serving(silent, Proxy()) as (proxy, port):
        async with connection(proxy.port) as client:
            await client.send(GET.replace(b"PORT", str(port).encode()) + b"\r\n")
        await ended.wait()


async def test_an_answer_that_the_origin_cuts_is_not_ended_for_the_client() -> None:
    for cut in (b"Content-Length: 10\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"):
        given = b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + cut
        answer, proxy = await plain(GET + b"\r\n", Origin(lambda head, body, given=given: given))  # type: ignore[misc]
        assert b"half" in answer
        assert not answer.endswith(b"0\r\n\r\n")
        assert (proxy.exchanges[0].decision, proxy.exchanges[0].status) == ("failed", 200)

        origin = Origin(lambda head, body, given=given: given)  # type: ignore[misc]
        async with serving(origin, Proxy()) as (proxy, port), tunnel(proxy, port) as client:
            await client.send(get(port))
            with pytest.raises(ssl.SSLError):  # and not an end
                await everything(client)


@pytest.mark.parametrize("given", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"])
async def test_an_origin_that_does_not_answer_in_http_is_a_502(given: bytes) -> None:
    answer, proxy = await plain(GET + b"\r\n", Origin(lambda head, body: given))
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"cannot get an answer" in answer
    assert (proxy.exchanges[0].decision, proxy.exchanges[0].status) == ("failed", 502)


async def test_an_upgrade_is_refused_with_a_sentence() -> None:
    origin = Origin()
    answer, proxy = await plain(GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", origin)
    assert answer.startswith(b"HTTP/1.1 501 ")
    assert header(answer, "Content-Type") == [b"text/plain; charset=utf-8"]
    assert b"cannot upgrade the connection" in answer
    assert origin.heads == []
    assert [exchange.decision for exchange in proxy.exchanges] == ["denied"]
    answer, _ = await plain(
        GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n", origin
    )
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP2-Settings" not in origin.heads[0]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /a HTTP/1.1\r\n\r\n", 400),
        (GET + b"Host: other\r\n\r\n", 400),
        (GET + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (GET + b"Content-Length: -1\r\n\r\n", 400),
        (GET + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (GET.replace(b"1.1\r", b"1.0\r") + b"Transfer-Encoding: chunked\r\n\r\n", 400),
        (GET + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"X" * 40 + GET[3:] + b"\r\n", 501),
        (b"CONNECT h.example:443 HTTP/1.1\r\nHost: h.example:443\r\nContent-Length: 5\r\n\r\nhello", 400),
        (GET + b"Bad Name: x\r\n\r\n", 400),
        (GET + b"Bad: a\x00b\r\n\r\n", 400),
        (GET + b"Name : x\r\n\r\n", 400),
        (GET + b"".join(b"X-%d: y\r\n" % n for n in range(101)) + b"\r\n", 431),
        (GET + b"X: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (GET + b"X: " + b"y" * 400_000, 431),
    ],
)
async def test_a_head_that_is_ambiguous_or_too_long_is_refused(request_bytes: bytes, status: int) -> None:
    origin = Origin()
    answer, _ = await plain(request_bytes, origin)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert header(answer, "Connection") == [b"close"]
    assert b"cannot read the request" in answer
    assert origin.heads == []


async def test_a_second_request_behind_the_first_is_not_carried() -> None:
    origin = Origin()
    answer, _ = await plain(GET + b"\r\n" + GET + b"\r\n", origin)
    assert answer.count(b"HTTP/1.1 200") == 1
    assert len(origin.heads) == 1


async def test_a_folded_header_and_bare_line_feeds_reach_the_origin_in_one_form() -> None:
    origin = Origin()
    await plain(GET.replace(b"\r\n", b"\n") + b"X-Folded: a\n b\n\n", origin)
    assert header(origin.heads[0], "X-Folded") == [b"a b"]
    assert b"\n" not in origin.heads[0].replace(b"\r\n", b"")


async def test_a_body_that_breaks_its_framing_is_refused() -> None:
    async def silent(stream: ByteStream) -> None:
        await everything(stream)

    post = GET.replace(b"GET", b"POST") + b"Transfer-Encoding: chunked\r\n\r\nnot a chunk\r\n"
    async with serving(silent, Proxy()) as (proxy, port), connection(proxy.port) as client:
        await client.send(post.replace(b"PORT", str(port).encode()))
        assert (await everything(client)).startswith(b"HTTP/1.1 400 ")


async def test_what_follows_the_head_of_a_connect_belongs_to_the_tunnel() -> None:
    async with connected() as (here, there):
        await there.send(b"CONNECT h.example:443 HTTP/1.1\r\nHost: h.example:443\r\n\r\n\x16\x03\x01")
        client = HttpClientConnection(here)
        head = await client.read_request()
        assert head is not None
        assert (head.method, head.target) == ("CONNECT", "h.example:443")
        await client.accept_tunnel()
        assert client.rest == b"\x16\x03\x01"
        answer = await there.receive()
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"


async def test_a_client_that_sends_nothing_and_ends_is_not_an_error() -> None:
    async with connected() as (here, there):
        await there.send_eof()
        assert await HttpClientConnection(here).read_request() is None


async def test_a_refused_connect_is_answered() -> None:
    async with connected() as (here, there):
        await there.send(b"CONNECT h.example:443 HTTP/1.1\r\nHost: h.example:443\r\n\r\n")
        client = HttpClientConnection(here)
        await client.read_request()
        async with anyio.create_task_group() as tasks:
            await client.refuse(HttpRefusal(403, "cannot reach h.example: not allowed"))
            tasks.start_soon(client.end)
            answer = await everything(there)
            await there.send_eof()
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.endswith(b"\r\n\r\ncannot reach h.example: not allowed\n")


async def test_a_terminated_connection_carries_many_requests_over_one_to_the_origin(credential: Credential) -> None:
    origin = Origin(lambda head, body: ok(head.split(b" ")[1]))
    async with serving(origin, Proxy(credential.authorise)) as (proxy, port), tunnel(proxy, port) as client:
        for n in range(5):
            await client.send(get(port, f"/{n}?q={n}", "Authorization: Bearer mine"))
            assert (await until(client, f"/{n}?q={n}".encode())).startswith(b"HTTP/1.1 200 ")
        await client.send(get(port, "/a") + get(port, "/b"))  # pipelined
        await until(client, b"/b")
        await client.send_eof()
        assert await everything(client) == b""
    assert origin.connections == 1
    assert [header(head, "Authorization") for head in origin.heads] == [[f"Bearer {TOKEN}".encode()]] * 7
    assert [exchange.path for exchange in proxy.exchanges] == ["/0", "/1", "/2", "/3", "/4", "/a", "/b"]
    assert {(exchange.method, exchange.status, exchange.decision) for exchange in proxy.exchanges} == {
        ("GET", 200, "allowed")
    }


async def test_an_origin_that_closes_between_requests_is_connected_again(credential: Credential) -> None:
    origin = Origin(lambda head, body: ok(b"x", "Connection: close"))
    async with serving(origin, Proxy(credential.authorise)) as (proxy, port), tunnel(proxy, port) as client:
        for _ in range(3):
            await client.send(get(port, "/", "Content-Length: 3", method="POST") + b"abc")
            answer = await until(client, b"\r\n\r\nx")
            assert header(answer, "Connection") == []
    assert origin.connections == 3


async def test_a_request_whose_kept_connection_just_died_is_repeated_only_if_that_is_harmless(
    credential: Credential,
) -> None:
    def answer(head: bytes, body: bytes) -> bytes:
        return b"" if len(origin.heads) in (2, 4) else ok(b"x")  # the second on each connection: none

    origin = Origin(answer)
    async with serving(origin, Proxy(credential.authorise)) as (proxy, port), tunnel(proxy, port) as client:
        for _ in range(2):
            await client.send(get(port))
            await until(client, b"\r\n\r\nx")
        assert origin.connections == 2
        await client.send(get(port, "/", "Content-Length: 1", method="POST") + b"a")
        assert (await everything(client)).startswith(b"HTTP/1.1 502 ")
    assert origin.connections == 2


async def test_a_request_that_the_credential_does_not_permit_is_refused_and_not_sent(credential: Credential) -> None:
    origin = Origin()
    limited = with_token(methods=("GET",), paths=("/repos/acme/**",))
    async with serving(origin, Proxy(limited.authorise)) as (proxy, port):
        for request in (
            get(port, "/repos/acme/x", method="DELETE"),
            get(port, "/repos/acme/../x?a=b"),
            get(port, "/repos/acme/x", method="HEAD"),
        ):
            async with tunnel(proxy, port) as client:
                await client.send(request)
                answer = await everything(client)
            assert answer.startswith(b"HTTP/1.1 403 ")
        async with tunnel(proxy, port) as client:
            await client.send(get(port, "/repos/acme/x", "Connection: close"))
            assert (await everything(client)).startswith(b"HTTP/1.1 200 ")
    assert len(origin.heads) == 1
    assert [exchange.decision for exchange in proxy.exchanges] == ["denied"] * 3 + ["allowed"]
    assert proxy.exchanges[1].path == "/repos/acme/../x"
    reason = "cannot DELETE /repos/acme/x: requests to this host use the credential github, which permits GET on /repos"
    assert (proxy.exchanges[0].reason or "").startswith(reason)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 403),
        (b"GET https://127.0.0.1:PORT/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", 400),
        (b"GET /#x HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", 400),
        (b"TRACE / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", 403),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n", 400),
        (b"garbage\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", 501),
    ],
)
async def test_a_terminated_request_must_be_for_the_host_connected_to(
    credential: Credential, request_bytes: bytes, status: int
) -> None:
    origin = Origin()
    async with serving(origin, Proxy(credential.authorise)) as (proxy, port), tunnel(proxy, port) as client:
        await client.send(request_bytes.replace(b"PORT", str(port).encode()))
        assert (await everything(client)).startswith(b"HTTP/1.1 %d " % status)
    assert origin.connections == 0
    assert [exchange.status for exchange in proxy.exchanges] == [status]


def echo(head: bytes, body: bytes) -> bytes:
    """Send the request's head back in a header, the reason, and the body."""
    line = b" ".join(head.split(b"\r\n"))
    return ok(head + body, f"X-Echo: {line.decode()}").replace(b"200 OK", b"200 " + line)


@pytest.mark.parametrize("options", [{}, {"username": "git"}, {"query": "key"}, {"header": "X-Key", "template": "{}"}])
async def test_an_echo_of_the_secret_is_redacted(credential: Credential, options: dict[str, str]) -> None:
    origin = Origin(echo)
    wanted = ("Accept-Encoding: gzip", "Range: bytes=0-3", "Connection: close")
    used = with_token(**options)
    async with serving(origin, Proxy(used.authorise)) as (proxy, port), tunnel(proxy, port) as client:
        await client.send(get(port, "/x?key=mine", *wanted))
        answer = await everything(client)
    sent = origin.heads[0]
    assert header(sent, "Accept-Encoding") == [b"identity"]
    assert header(sent, "Range") == header(sent, "Connection") == []
    forms = [TOKEN.encode(), TOKEN.replace("/", "%2F").encode(), base64.b64encode(f"git:{TOKEN}".encode())]
    assert any(form in sent for form in forms)
    assert not any(form in answer for form in forms)
    assert answer.count(b"*" * len(TOKEN)) == 3
    assert header(answer, "Content-Length") == [str(len(sent)).encode()]
    assert answer.partition(b"\r\n\r\n")[2] == re.sub(
        b"|".join(map(re.escape, forms)), lambda m: b"*" * len(m[0]), sent
    )
    assert proxy.exchanges[0].path == "/x"
    assert TOKEN not in repr(proxy.exchanges)


async def test_a_compressed_answer_is_not_passed_on(credential: Credential) -> None:
    origin = Origin(lambda head, body: ok(gzip.compress(head), "Content-Encoding: gzip"))
    async with serving(origin, Proxy(credential.authorise)) as (proxy, port), tunnel(proxy, port) as client:
        await client.send(get(port))
        answer = await everything(client)
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"its answer is compressed" in answer
    assert proxy.exchanges[0].decision == "failed"


async def test_events_of_a_stream_arrive_one_by_one(credential: Credential) -> None:
    """The redactor holds nothing back that cannot become the secret: the client answers each event."""

    async def streaming(stream: ByteStream) -> None:
        tls = await wrap_server(stream, await ORIGINS.context_for("127.0.0.1"))
        await until(tls, b"\r\n\r\n")
        await tls.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for n in range(3):
            await tls.send(b"data: %d\n\n" % n)
            await seen[n].wait()
        await tls.send_eof()

    seen = [anyio.Event() for _ in range(3)]
    async with serving(streaming, Proxy(credential.authorise)) as (proxy, port), tunnel(proxy, port) as client:
        await client.send(get(port, "/", "Connection: close"))
        for n in range(3):
            await until(client, b"data: %d\n\n\r\n" % n)
            seen[n].set()
        assert (await everything(client)).endswith(b"0\r\n\r\n")


async def test_an_origin_whose_certificate_is_not_trusted_is_a_502(credential: Credential) -> None:
    origin = Origin()
    proxy = Proxy(credential.authorise, trusted=AUTHORITY)
    async with serving(origin, proxy) as (_, port), tunnel(proxy, port) as client:
        await client.send(get(port))
        answer = await everything(client)
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"cannot trust the host's certificate" in answer
    assert origin.heads == []


async def test_an_origin_that_does_not_listen_is_a_502(credential: Credential, free_tcp_port: int) -> None:
    async with serving(Origin(), Proxy(credential.authorise)) as (proxy, _), tunnel(proxy, free_tcp_port) as client:
        await client.send(get(free_tcp_port))
        assert (await everything(client)).startswith(b"HTTP/1.1 502 ")


async def test_a_secret_that_is_not_available_is_a_503_that_tells_nothing_about_the_host(tmp_path: Path) -> None:
    missing = Credential("github", CredentialOptions(host="127.0.0.1", file=tmp_path / "absent"))
    with structlog.testing.capture_logs() as logs:
        async with serving(Origin(), Proxy(missing.authorise)) as (proxy, port), tunnel(proxy, port) as client:
            await client.send(get(port))
            answer = await everything(client)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert str(tmp_path).encode() not in answer
    assert [log["credential"] for log in logs] == ["github"]


async def test_a_header_that_cannot_be_sent_is_refused_without_showing_the_secret(credential: Credential) -> None:
    broken = with_token(template="a\n{}")
    with structlog.testing.capture_logs() as logs:
        async with serving(Origin(), Proxy(broken.authorise)) as (proxy, port), tunnel(proxy, port) as client:
            await client.send(get(port))
            answer = await everything(client)
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert TOKEN.encode() not in answer
    assert TOKEN not in repr(logs) + repr(proxy.exchanges)


async def test_a_client_cannot_have_the_secret_removed_on_the_way(credential: Credential) -> None:
    origin = Origin()
    async with serving(origin, Proxy(credential.authorise)) as (proxy, port), tunnel(proxy, port) as client:
        await client.send(get(port, "/", "Connection: close, authorization"))
        await everything(client)
    assert header(origin.heads[0], "Authorization") == [f"Bearer {TOKEN}".encode()]


async def test_a_plain_request_with_a_credential_is_redacted_too(credential: Credential) -> None:
    origin = Origin(lambda head, body: ok(head))
    answer, _ = await plain(GET + b"\r\n", origin, Proxy(credential.authorise))
    assert TOKEN.encode() in origin.heads[0]
    assert TOKEN.encode() not in answer


def test_no_representation_of_a_request_shows_its_secret() -> None:
    request = OutgoingRequest(f"/?key={TOKEN}", [(b"Authorization", TOKEN.encode())], (TOKEN.encode(),))
    assert TOKEN not in repr(request)


async def run(*command: str, **environment: str) -> str:
    def start() -> str:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={"PATH": os.environ["PATH"], **environment}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return await to_thread.run_sync(start)


async def test_curl_uses_a_credential_it_cannot_see(credential: Credential, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(AUTHORITY.certificate_pem)
    upload = tmp_path / "upload"
    upload.write_bytes(os.urandom(3_000_000))
    origin = Origin(lambda head, body: ok(str(len(body)).encode() + header(head, "Authorization")[0]))
    async with serving(origin, Proxy(credential.authorise)) as (proxy, port):
        url = f"https://127.0.0.1:{port}/x"
        via = ("curl", "-sS", "--fail", "--proxy", f"http://127.0.0.1:{proxy.port}", "--cacert", str(bundle))
        masked = "Bearer " + "*" * len(TOKEN)
        assert await run(*via, url, url) == f"0{masked}" * 2
        assert await run(*via, "-H", "Expect:", "--data-binary", f"@{upload}", url) == f"3000000{masked}"
    assert origin.connections == 2
    assert {exchange.status for exchange in proxy.exchanges} == {200}


async def test_curl_gets_a_plain_url(credential: Credential) -> None:
    async with serving(Origin(lambda head, body: ok(b"plain"), tls=False), Proxy()) as (proxy, port):
        via = ("curl", "-sS", "--proxy", f"http://127.0.0.1:{proxy.port}")
        assert await run(*via, f"http://127.0.0.1:{port}/x", f"http://127.0.0.1:{port}/y") == "plainplain"


def test_targets_are_parsed_strictly() -> None:
    one = parse_absolute("HTTP://User.Example.:8080?q")
    assert (one.scheme, one.host, one.port, one.path) == ("http", "user.example", 8080, "/?q")
    assert parse_absolute("http://[::1]/a//b").host == "::1"
    assert parse_absolute("https://h").port == 443
    for target in (
        "/a",
        "ftp://h/",
        "http:///a",
        "http://u@h/",
        "http://h:0/",
        "http://h:99999/",
        "http://h\\x/",
        "h:80",
    ):
        with pytest.raises(HttpRefusal):
            parse_absolute(target)


def test_one_host_header_must_name_the_target() -> None:
    def matches(*values: str, host: str = "api.example", port: int = 80, default: int = 80) -> bool:
        headers: Headers = [(b"hOST", value.encode()) for value in values]
        return host_header_matches(headers, host, port, default)

    assert matches("api.example")
    assert matches("API.example.:80")
    assert matches("[::1]:8080", host="::1", port=8080)
    assert not matches()
    assert not matches("api.example", "api.example")
    assert not matches("api.example:8080")
    assert not matches("api.example", port=8080)
    assert not matches("other.example")
    assert not matches("api.example@other")
    assert not matches("u@api.example")
    assert not matches("api.example, other")
    assert not matches("")


def test_headers_about_one_connection_are_removed_and_the_checked_ones_are_kept() -> None:
    headers: Headers = [
        (b"Connection", b"X-One, content-length"),
        (b"connection", b" X-Two ,Host"),
        (b"x-one", b"1"),
        (b"X-TWO", b"2"),
        (b"Proxy-Anything", b"3"),
        (b"Host", b"h"),
        (b"Content-Length", b"1"),
    ]
    assert end_to_end(headers) == [(b"Host", b"h"), (b"Content-Length", b"1")]
    assert RequestHead("GET", "/", headers).has(b"host")
