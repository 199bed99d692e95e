"""Requests of a sandbox's clients, carried to an origin and answered: plain ones, and those whose TLS was terminated.

A request is carried only after the caller's check, and only as h11 parsed it. Bodies are streamed. Where a secret was
added, the answer is redacted. Connections are opened and closed by the caller.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Final

from sandboxd.models.network import Decision
from sandboxd.network.byte_stream import ByteStream
from sandboxd.network.http_carrier import AnswerCut, HttpCarrier, beside
from sandboxd.network.http_connection import (
    STREAM_ERRORS,
    ClientGone,
    HttpClientConnection,
    HttpOriginConnection,
    OriginFailed,
)
from sandboxd.network.http_head import (
    HttpRefusal,
    OutgoingRequest,
    RequestHead,
    host_header_matches,
    listed,
)

Check = Callable[[RequestHead], Awaitable[OutgoingRequest]]
"""Return what to send for a request, or raise HttpRefusal."""
OpenOrigin = Callable[[], AbstractAsyncContextManager[ByteStream]]
"""Connect to the origin, or raise HttpRefusal."""

_MAX_PATH_CHARS: Final = 2048
_REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class HttpExchange:
    """One request and its answer, for the audit. The path is the client's own, without its query, cut if very long."""

    method: str | None
    path: str | None
    status: int | None
    bytes_in: int
    bytes_out: int
    ms: float
    decision: Decision = "allowed"
    reason: str | None = None


Report = Callable[[HttpExchange], None]
"""Take the record of an exchange, as soon as its answer is complete."""


async def forward_request(
    client: HttpClientConnection, head: RequestHead, outgoing: OutgoingRequest, origin: ByteStream, report: Report
) -> None:
    """Carry the request that was just read to an origin, and its answer back; then end the client's connection.

    If the answer was cut, the connection is not ended: the caller closes it, and the client sees that it is not whole.
    """

    async def carry() -> int:
        check_upgrade(head)
        try:
            return await HttpCarrier(client, HttpOriginConnection(origin), head, outgoing, ends=True).run()
        except OriginFailed as error:
            raise HttpRefusal(502, str(error)) from None

    if await _answer(client, head, carry, report):
        await client.end()


async def serve_terminated(
    stream: ByteStream,
    *,
    host: str,
    port: int,
    check: Check,
    open_origin: OpenOrigin,
    report: Report,
) -> None:
    """Serve the requests that a client sends to one host over a connection whose TLS ends here.

    Each is checked, carried to the origin and reported. The connection to the origin is kept between requests. If an
    answer was cut, the client's stream is not ended: the caller closes it without TLS's own end.
    """
    client = HttpClientConnection(stream)
    async with _OriginSlot(open_origin) as slot:
        while True:
            try:
                head = await slot.read_request(client)
            except HttpRefusal as refusal:
                await client.refuse(refusal)
                report(_refused(client, None, refusal, time.monotonic()))
                break
            except ClientGone:
                return
            if head is None:
                break

            async def carry(head: RequestHead = head) -> int:
                _check_target(head, host, port)
                return await slot.exchange(client, head, await check(head))

            if not await _answer(client, head, carry, report):
                return
            if not client.is_reusable:
                break
    await client.end()


async def _answer(
    client: HttpClientConnection, head: RequestHead, carry: Callable[[], Awaitable[int]], report: Report
) -> bool:
    """Carry a request, or answer with the refusal, and report it; return whether the client has a whole answer."""
    started = time.monotonic()
    is_whole = True
    try:
        summary = _summary(client, head, await carry(), started)
    except HttpRefusal as refusal:
        await client.refuse(refusal)
        summary = _refused(client, head, refusal, started)
    except AnswerCut as cut:
        is_whole = False
        summary = _summary(client, head, cut.status, started, "failed", str(cut))
    report(summary)
    return is_whole


def _refused(
    client: HttpClientConnection, head: RequestHead | None, refusal: HttpRefusal, started: float
) -> HttpExchange:
    return _summary(client, head, refusal.status, started, refusal.decision, refusal.text)


def _summary(
    client: HttpClientConnection,
    head: RequestHead | None,
    status: int | None,
    started: float,
    decision: Decision = "allowed",
    reason: str | None = None,
) -> HttpExchange:
    received, sent = client.byte_counts
    return HttpExchange(
        method=head.method if head else None,
        path=head.target.partition("?")[0][:_MAX_PATH_CHARS] if head else None,
        status=status,
        bytes_in=sent,
        bytes_out=received,
        ms=(time.monotonic() - started) * 1000,
        decision=decision,
        reason=reason,
    )


class _OriginSlot:
    """The connection to the origin, kept while it can carry one more request."""

    def __init__(self, open_origin: OpenOrigin) -> None:
        self._open_origin = open_origin
        self._origin: HttpOriginConnection | None = None
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> _OriginSlot:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def read_request(self, client: HttpClientConnection) -> RequestHead | None:
        """Read the client's next request, and notice if the origin closes its idle connection before that."""
        if self._origin is None:
            return await client.read_request()
        async with beside(self._origin.watch_idle):
            return await client.read_request()
        return None

    async def exchange(self, client: HttpClientConnection, head: RequestHead, outgoing: OutgoingRequest) -> int:
        if self._origin is not None and self._origin.start_next():
            try:
                return await HttpCarrier(client, self._origin, head, outgoing).run()
            except OriginFailed as error:
                # it may have closed just when the request was sent: then a new connection gets it, if that is harmless
                if self._origin.has_answered or client.has_body or head.method not in _REPEATABLE:
                    raise HttpRefusal(502, str(error)) from None
        await self._close()
        try:
            stream = await self._closing.enter_async_context(self._open_origin())
        except ssl.SSLCertVerificationError as error:
            raise HttpRefusal(502, f"cannot trust the host's certificate: {error.verify_message}") from None
        except STREAM_ERRORS:
            raise HttpRefusal(502, "cannot connect to the host: it does not answer, or not with TLS") from None
        self._origin = HttpOriginConnection(stream)
        try:
            return await HttpCarrier(client, self._origin, head, outgoing).run()
        except OriginFailed as error:
            raise HttpRefusal(502, str(error)) from None

    async def _close(self) -> None:
        self._origin = None
        with suppress(*STREAM_ERRORS):
            await self._closing.aclose()


def check_upgrade(head: RequestHead) -> None:
    """Raise HttpRefusal if the client asks for another protocol on this connection, such as WebSocket."""
    if listed(head.headers, b"upgrade") - {b"h2c"}:  # offered by clients that are content with HTTP/1.1
        raise HttpRefusal(501, "cannot upgrade the connection: here the proxy carries plain HTTP/1.1 requests only")


def _check_target(head: RequestHead, host: str, port: int) -> None:
    check_upgrade(head)
    if not head.target.startswith("/") or "#" in head.target:
        raise HttpRefusal(400, "cannot forward the request: its target must be a path")
    if not host_header_matches(head.headers, host, port, 443):
        raise HttpRefusal(403, f"cannot forward the request: its Host header must name {host}, the host connected to")
