"""One request to a server in a sandbox: HTTP both ways as it arrives, and the raw bytes of a WebSocket after its 101.

h11 reads and writes the HTTP. The server inside is hostile input: its head is bounded in bytes and time, and an answer
that is not HTTP is an error. A slow side stops the other one; nothing is buffered beyond that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import anyio
import h11
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from memo.ids import SessionRef
from sandboxd.api.budget import STREAM_BYTES, allotment_of
from sandboxd.api.contracts import Manager
from sandboxd.api.port_headers import (
    PortPlace,
    has_body,
    has_control_characters,
    inner_headers,
    outer_headers,
)
from sandboxd.api.refusals import ClientLeft
from sandboxd.api.upgraded import UPGRADE, UpgradedStream
from sandboxd.api.websockets import claim_upgrade
from sandboxd.errors import BadAnswer, InvalidRequest, NothingListens, SandboxdError
from sandboxd.network.byte_stream import ByteStream

MAX_HEAD_BYTES = 65_536
ANSWER_S = 60.0
"""How long the server may take to answer a request that has arrived, and to accept each piece of one that has not."""
_PIECE_BYTES = 8192
_MAX_INFORMATIONAL = 32
"""Informational answers, such as 103, before the answer itself. They are not passed on."""
_LAST_STATUS = 599
_FLUSH_S = 5.0
"""How long a client may take to read the last bytes of a WebSocket."""

_SWITCHING = 101


@dataclass(frozen=True, slots=True)
class PortTarget:
    """What a request asks of which server."""

    ref: SessionRef
    place: PortPlace
    path: bytes
    """The path inside, as the client sent it."""


class PortAnswer(Response):
    """The answer of a server in a sandbox."""

    def __init__(self, manager: Manager, target: PortTarget) -> None:
        super().__init__()
        self._manager = manager
        self._target = target
        self.is_upgraded = False
        """Whether the connection has left HTTP, so that nothing else can be answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "CONNECT":
            raise InvalidRequest("cannot use CONNECT here: open a tunnel with GET …/tunnels/PORT")
        allotment_of(scope).take(STREAM_BYTES)
        target = self._target
        upgrade = self._upgrade(claim_upgrade(scope, target.ref.session)) if UPGRADE in scope else None
        with await self._manager.call(target.ref) as runner:
            try:
                async with runner.dial(port=target.place.port) as stream:
                    await _Exchange(target, stream, scope, receive, send).run(upgrade)
            except NothingListens:
                raise NothingListens(
                    f"cannot reach port {target.place.port}: no process in the sandbox listens there on a loopback "
                    "address; start the server, or try again once it has started"
                ) from None

    def _upgrade(self, claimed: Callable[[bytes], UpgradedStream]) -> Callable[[bytes], UpgradedStream]:
        def upgrade(head: bytes) -> UpgradedStream:
            self.is_upgraded = True
            return claimed(head)

        return upgrade


class _Exchange:
    """A request on its way in and the answer on its way out, at the same time."""

    def __init__(self, target: PortTarget, stream: ByteStream, scope: Scope, receive: Receive, send: Send) -> None:
        self._target = target
        self._stream = stream
        self._scope = scope
        self._receive = receive
        self._send = send
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._unparsed = b""
        """What was received beyond the piece that h11 parses now."""
        self._patience = anyio.CancelScope()
        """Ends the wait for the head of the answer."""
        self._is_left = False

    async def run(self, upgrade: Callable[[bytes], UpgradedStream] | None) -> None:
        """Pass the request on and its answer back. With `upgrade`, a 101 makes a WebSocket of it."""
        failure: Exception | None = None
        upgraded: UpgradedStream | None = None
        async with anyio.create_task_group() as tasks:
            try:
                request = self._make_request(is_socket=upgrade is not None)
                self._patience.deadline = anyio.current_time() + ANSWER_S
                head: h11.Response | h11.InformationalResponse | None = None
                with self._patience:
                    await self._stream.send(request)
                    tasks.start_soon(self._upload, tasks.cancel_scope)
                    head = await self._read_head()
                if head is None:
                    raise self._bad(f"it did not answer within {ANSWER_S:g} s")
                if isinstance(head, h11.InformationalResponse):
                    assert upgrade is not None  # noqa: S101  # h11 refuses a 101 that was not asked for
                    upgraded = upgrade(self._upgrade_head(head))
                else:
                    await self._answer(head)
            except (SandboxdError, ClientLeft) as error:  # not inside the group, which would wrap it
                failure = error
            tasks.cancel_scope.cancel()
        if self._is_left:
            raise ClientLeft
        if failure is not None:
            raise failure
        if upgraded is not None:
            await _relay(upgraded, self._stream, bytes(self._http.trailing_data[0]) + self._unparsed)

    def _make_request(self, *, is_socket: bool) -> bytes:
        """Return the request as bytes, without its body."""
        scope, target = self._scope, self._target
        query = scope["query_string"]
        try:
            request = h11.Request(
                method=scope["method"],
                target=target.path + (b"?" + query if query else b""),
                headers=inner_headers(scope["headers"], target.place, is_socket=is_socket),
            )
            head = self._http.send(request) or b""
            if not has_body(scope["headers"]):
                head += self._http.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError as error:
            raise InvalidRequest(f"cannot pass this request on: {error}") from None
        return head

    async def _upload(self, exchange: anyio.CancelScope) -> None:
        """Pass the body on, then wait for the client to leave, which ends the exchange."""
        is_open = is_incomplete = has_body(self._scope["headers"])
        while True:
            if is_incomplete:
                self._patience.deadline = math.inf  # it is the client that takes its time
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._is_left = True
                exchange.cancel()
                return
            if not is_incomplete:
                continue
            is_incomplete = message.get("more_body", False)
            self._patience.deadline = anyio.current_time() + ANSWER_S
            if is_open:
                try:
                    await self._pass_on(message.get("body", b""), is_last=not is_incomplete)
                except (SandboxdError, h11.LocalProtocolError):
                    is_open = False  # it may have answered before it closed; the rest of the body is discarded

    async def _pass_on(self, body: bytes, *, is_last: bool) -> None:
        if body:
            await self._stream.send(self._http.send(h11.Data(data=body)) or b"")
        if is_last and (end := self._http.send(h11.EndOfMessage())):
            await self._stream.send(end)

    async def _read_head(self) -> h11.Response | h11.InformationalResponse:
        """Return the head of the answer, or of a 101."""
        for _ in range(_MAX_INFORMATIONAL):
            event = await self._next_event()
            if isinstance(event, h11.InformationalResponse) and event.status_code != _SWITCHING:
                continue
            if not isinstance(event, h11.Response | h11.InformationalResponse):
                raise self._bad("it closed the connection without an answer")
            if event.status_code > _LAST_STATUS:
                raise self._bad(f"its status is {event.status_code}")
            if has_control_characters(event.headers):
                raise self._bad("a header contains a control character")
            return event
        raise self._bad("it sent too many informational answers")

    async def _answer(self, head: h11.Response) -> None:
        headers = outer_headers(head.headers, self._target.place, status=head.status_code, inner_path=self._target.path)
        await self._send({"type": "http.response.start", "status": head.status_code, "headers": headers})
        while isinstance(event := await self._next_event(), h11.Data):
            await self._send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        if not isinstance(event, h11.EndOfMessage):
            raise self._bad("its body is incomplete")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            try:
                event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return event  # type: ignore[return-value]  # mypy does not know h11's sentinels
                await self._parse_more()
            except h11.RemoteProtocolError as error:
                raise self._bad(str(error)[:200]) from None

    async def _parse_more(self) -> None:
        """Hand the next bytes to h11. Before the answer they come in pieces: it limits only what is incomplete."""
        data = self._unparsed or await self._stream.receive()
        size = _PIECE_BYTES if self._http.their_state is h11.SEND_RESPONSE else len(data)
        self._http.receive_data(data[:size])
        self._unparsed = data[size:]

    def _upgrade_head(self, head: h11.InformationalResponse) -> bytes:
        place = self._target.place
        headers = outer_headers(head.headers, place, status=_SWITCHING, inner_path=self._target.path)
        headers += [(b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
        lines = [b"HTTP/1.1 101 Switching Protocols", *(name + b": " + value for name, value in headers)]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _bad(self, reason: str) -> BadAnswer:
        return BadAnswer(
            f"cannot pass on the answer of port {self._target.place.port}: {reason}; look at the server in the sandbox"
        )


async def _relay(client: UpgradedStream, server: ByteStream, first: bytes) -> None:
    """Copy bytes both ways until either side ends, or the daemon stops."""
    async with anyio.create_task_group() as tasks:

        async def inwards() -> None:
            with suppress(SandboxdError):
                while data := await client.receive():
                    await server.send(data)
            tasks.cancel_scope.cancel()

        async def outwards() -> None:
            with suppress(SandboxdError):
                await client.send(first)
                while data := await server.receive():
                    await client.send(data)
            with anyio.move_on_after(_FLUSH_S):
                await client.flush()
            tasks.cancel_scope.cancel()

        try:
            tasks.start_soon(inwards)
            tasks.start_soon(outwards)
            await client.leaving.wait()
            tasks.cancel_scope.cancel()
        finally:
            client.close()
