"""A small proxy put together from the parts under test, and origins whose answers a test writes byte by byte."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
from anyio.abc import SocketAttribute, SocketStream

from sandboxd.network.byte_stream import ByteStream
from sandboxd.network.certificates import SandboxAuthority
from sandboxd.network.host_names import parse_target
from sandboxd.network.http_connection import STREAM_ERRORS, HttpClientConnection
from sandboxd.network.http_exchange import Check, HttpExchange, forward_request, serve_terminated
from sandboxd.network.http_head import HttpRefusal, OutgoingRequest, RequestHead, parse_absolute
from sandboxd.network.tls_stream import wrap_client, wrap_server
from tests.unit.socket_byte_stream import SocketByteStream

Script = Callable[[ByteStream], Awaitable[None]]
AUTHORITY = SandboxAuthority("the sandbox's")
ORIGINS = SandboxAuthority("the world's")


@asynccontextmanager
async def listening(script: Script) -> AsyncIterator[int]:
    """Run the script on each connection to the port that is yielded."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            with suppress(*STREAM_ERRORS):
                await script(SocketByteStream(stream))

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@dataclass
class Origin:
    """Answers every request with bytes that `answer` returns for its head and body; closes after an empty answer."""

    answer: Callable[[bytes, bytes], bytes] = lambda head, body: ok(body)
    tls: bool = True
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    async def __call__(self, stream: ByteStream) -> None:
        if self.tls:
            stream = await wrap_server(stream, await ORIGINS.context_for("127.0.0.1"))
        self.connections += 1
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                if not (part := await stream.receive()):
                    return None
                data += part
            head, _, data = data.partition(b"\r\n\r\n")
            self.heads.append(head)
            length = re.search(rb"(?i)content-length: (\d+)", head)
            while length and len(data) < int(length[1]):
                data += await stream.receive()
            size = int(length[1]) if length else 0
            body, data = data[:size], data[size:]
            if not (answer := self.answer(head, body)):
                return None
            await stream.send(answer)
            if b"Connection: close" in answer:
                return await stream.send_eof()


def ok(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body


class Prefixed:
    def __init__(self, rest: bytes, stream: ByteStream) -> None:
        self._rest, self._stream = rest, stream
        self.send, self.send_eof = stream.send, stream.send_eof

    async def receive(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest or await self._stream.receive()


async def unchanged(head: RequestHead) -> OutgoingRequest:
    return OutgoingRequest(head.target, head.headers)


@dataclass
class Proxy:
    """Forwards plain requests, and terminates TLS of every CONNECT."""

    check: Check = unchanged
    trusted: SandboxAuthority = ORIGINS
    exchanges: list[HttpExchange] = field(default_factory=list)
    port: int = 0

    async def __call__(self, stream: ByteStream) -> None:
        client = HttpClientConnection(stream)
        try:
            head = await client.read_request()
        except HttpRefusal as refusal:
            await client.refuse(refusal)
            await client.end()
            return
        if head is not None and head.method == "CONNECT":
            tunnel = parse_target(head.target)
            await self._terminate(client, stream, tunnel.host, tunnel.port)
        elif head is not None:
            target = parse_absolute(head.target)
            outgoing = await self.check(RequestHead(head.method, target.path, head.headers))
            async with self._connected(target.host, target.port) as origin:
                await forward_request(client, head, outgoing, origin, self.exchanges.append)

    async def _terminate(self, client: HttpClientConnection, stream: ByteStream, host: str, port: int) -> None:
        await client.accept_tunnel()
        tls = await wrap_server(Prefixed(client.rest, stream), await AUTHORITY.context_for(host))
        await self.serve(tls, host, port)

    async def serve(self, stream: ByteStream, host: str, port: int) -> None:
        @asynccontextmanager
        async def open_origin() -> AsyncIterator[ByteStream]:
            context = ssl.create_default_context(cadata=self.trusted.certificate_pem.decode())
            async with self._connected(host, port) as origin:
                yield await wrap_client(origin, host, context)

        report = self.exchanges.append
        await serve_terminated(stream, host=host, port=port, check=self.check, open_origin=open_origin, report=report)

    @asynccontextmanager
    async def _connected(self, host: str, port: int) -> AsyncIterator[ByteStream]:
        async with await anyio.connect_tcp(host, port) as origin:
            yield SocketByteStream(origin)


@asynccontextmanager
async def serving(origin: Origin | Script, proxy: Proxy) -> AsyncIterator[tuple[Proxy, int]]:
    """Yield the proxy and the origin's port."""
    async with listening(origin) as port, listening(proxy) as proxy.port:
        yield proxy, port
