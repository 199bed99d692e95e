"""One HTTP connection: uvicorn's httptools protocol, with a bound on everything it reads.

uvicorn parses, runs the app and frames the answers. This subclass adds what it lacks: bounds on heads, trailers, chunk
extensions and pipelined requests, and deadlines. When a bound is exceeded, the client gets a problem, unless an answer
is already being sent, and the connection is closed. A request to upgrade to a WebSocket is a request like any other,
until a route answers it with 101 and takes over the connection. It does not depend on routes.
"""

from __future__ import annotations

import asyncio
import select
import weakref
from functools import partial
from typing import Any, Literal

import httptools
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sandboxd.api.connection_table import ConnectionTable, Peer
from sandboxd.api.guard import CONNECTION, is_unix
from sandboxd.api.problems import as_answer, problem
from sandboxd.api.request_clock import PACED, RequestClock
from sandboxd.api.upgraded import UPGRADE, UpgradedStream

_log = structlog.get_logger("sandboxd.api")

MAX_HEAD_BYTES = 65_536
"""The limit on a request line with its headers, and on bytes without progress: a trailer or a chunk extension."""
MAX_HEADERS = 100
_PIECE_BYTES = 2048
"""A read of up to 256 KiB is parsed in pieces of this size, because the parser cannot stop within one. This bounds the
requests parsed while an earlier one is being answered: the rest stays unparsed and unread."""

_HANG_UP_LOOK_S = 1.0
"""How often to check that a client with an unread body is still connected: an unread socket reports no close."""

_HEAD_TOO_LARGE = (
    f"cannot read this request: it has more than {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} lines of headers; send fewer"
)
_STALLED = f"cannot read this request: a trailer or chunk extension is longer than {MAX_HEAD_BYTES} bytes"


class _Flow(FlowControl):
    is_held = False
    """Whether unparsed bytes are buffered: then an app that requests more must not resume reading the socket."""
    was_paused = False

    def pause_reading(self) -> None:
        self.was_paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class HttpConnection(HttpToolsProtocol):
    flow: _Flow

    def __init__(self, *args: Any, table: ConnectionTable, handshake: Peer | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table
        self._handshake = handshake
        """The TLS handshake whose place in the table this connection takes."""
        self._clock = RequestClock(self.loop, table.limits)
        self._weakly = weakref.ref(self)
        self._is_trusted = False
        self._running: RequestResponseCycle | None = None
        """The exchange whose app is running or ran last. `self.cycle` is the one parsed last, which may be queued."""
        self._task: asyncio.Task[Any] | None = None
        """The task that runs it."""
        self._hang_up_timer: asyncio.TimerHandle | None = None
        self._unparsed = b""
        self._is_past_http = False
        """Whether the last request asked for an upgrade: what follows it is in another protocol, or is dropped."""
        self._upgraded: UpgradedStream | None = None
        self._is_draining = False
        self._part: Literal["none", "head", "body"] = "none"
        """The part of a request that is being read."""
        self._parts_begun = self._parts_watched = 0
        self._bytes_without_progress = 0
        self._head_bytes = 0
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._clock.expect_head(self)
        self._is_trusted = is_unix({"server": self.server})
        self.idle_since = self.loop.time()
        if self._handshake is not None:
            self._table.close(self._handshake)
            self._handshake = None
        if self._is_trusted:
            self._table.open_unix(self)
        else:
            self._table.open_tcp(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.close(self)
        self._clock.stop()
        if self._hang_up_timer is not None:
            self._hang_up_timer.cancel()
        self._drop_answer()
        if self._upgraded is not None:
            self._upgraded.end()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        if self._running is not None:
            self.cycle = self._running  # a cycle that never ran would keep a reference to this connection
        self._unparsed = b""

    def discard(self) -> None:
        """Free a connection whose handshake failed: its parser refers back to it."""
        if self._handshake is not None:
            self._handshake = None
            self.parser = None  # type: ignore[assignment]  # as uvicorn does for a connection that was made

    def shutdown(self) -> None:
        """Close the connection, or let it end after its answer. An idle client may acknowledge TLS's close late."""
        self._is_draining = True
        if self._upgraded is not None:
            self._upgraded.drain()
            return
        super().shutdown()
        if self.scheme == "https" and self.is_idle and not self.transport.get_write_buffer_size():
            self.transport.abort()

    def trust(self) -> None:
        """Record that the current request has a valid token."""
        if not self._is_trusted:
            self._is_trusted = True
            self._table.trust(self)
            if self._part == "body":
                self._table.begin_body(self)

    def welcome(self) -> None:
        """Record that the current request names a preview."""
        if not self._is_trusted:
            self._table.welcome(self)

    @property
    def is_upgradable(self) -> bool:
        """Whether the running request is the last in HTTP, and all of it has arrived."""
        return self._is_past_http and not self.pipeline and self._running is self.cycle

    def upgrade(self, head: bytes) -> UpgradedStream:
        """Answer the running request with this head, and hand over the connection."""
        self.cycle.response_started = True
        self._clock.stop()
        self.transport.write(head)
        self.flow.is_held = False
        first, self._unparsed = self._unparsed, b""
        self._upgraded = UpgradedStream(self.transport, self.flow, first, ping_s=self._table.limits.ping_s)
        if self._is_draining:  # the request began before the daemon was told to stop
            self._upgraded.drain()
        return self._upgraded

    def data_received(self, data: bytes) -> None:
        if self._upgraded is not None:
            self._upgraded.feed(data)
            self._watch_for_hang_up()
            return
        if not self._is_past_http:
            self._parse(data)
        elif data:
            self._unparsed += data
        if self.transport.is_closing():
            return
        self.flow.is_held = bool(self._unparsed)
        if self._unparsed:
            self.flow.pause_reading()
        if self._parts_begun != self._parts_watched:
            self._watch_part()
        self._watch_for_hang_up()

    def _parse(self, data: bytes) -> None:
        """Parse until a request has to wait for an earlier answer, an upgrade or an error; keep the rest."""
        view = memoryview(self._unparsed + data if self._unparsed else data)
        start = 0
        while start < len(view) and not self.pipeline and not self._is_past_http:
            piece = view[start : start + _PIECE_BYTES]
            self._bytes_without_progress += len(piece)
            read_bytes = len(piece)
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                self.cycle.keep_alive = False
                self._is_past_http = True
                read_bytes = upgrade.args[0]
            except httptools.HttpParserError:
                self._refuse("request.invalid", "cannot read this request: it is not HTTP/1.1")
                return
            if self._bytes_without_progress > MAX_HEAD_BYTES:
                self._refuse_size()
                return
            start += read_bytes
        self._unparsed = bytes(view[start:])

    def _watch_for_hang_up(self) -> None:
        if self.flow.read_paused and self._hang_up_timer is None:
            self._hang_up_timer = self.loop.call_later(_HANG_UP_LOOK_S, self._look_for_hang_up)

    def _look_for_hang_up(self) -> None:
        """Cancel the call of a client that disconnected while its body waits to be read."""
        self._hang_up_timer = None
        if not self.flow.read_paused or self.transport.is_closing():
            return
        if _has_hung_up(self.transport) and not self.is_idle and self._task is not None:
            if self._upgraded is None:  # otherwise the app reads that it is over
                self._task.cancel()
            self.transport.abort()
        else:
            self._watch_for_hang_up()

    def _watch_part(self) -> None:
        """Start the deadline for the part of a request that has not arrived."""
        self._parts_watched = self._parts_begun
        if self._part == "head":
            self._clock.expect_head(self)
        elif self._part == "body":
            self.flow.was_paused = self.flow.read_paused
            self._clock.expect_body(self)
            if self._is_trusted:
                self._table.begin_body(self)
        else:
            self._clock.stop()
            self._table.end_body(self)

    def _begin(self, part: Literal["none", "head", "body"]) -> None:
        self._part = part
        self._parts_begun += 1
        self._bytes_without_progress = 0

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        super().on_message_begin()
        if not self._is_trusted:
            self.scope[CONNECTION] = self._weakly  # type: ignore[literal-required]  # an extension of ours
        self._head_bytes = 0
        self._begin("head")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part == "body":
            return  # a trailer: counted and dropped
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes + len(self.url) > MAX_HEAD_BYTES or len(self.headers) >= MAX_HEADERS:
            self._refuse_size()
            raise ValueError(_HEAD_TOO_LARGE)  # stops the parser
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and self._get_upgrade() == b"websocket":
            self.scope[UPGRADE] = self._weakly  # type: ignore[literal-required]  # an extension of ours
        super().on_headers_complete()
        if self.expect_100_continue:
            self.cycle.keep_alive = False  # after a refusal the client may or may not send the body
        self._clock.body_bytes = 0
        self._begin("body")

    def on_body(self, body: bytes) -> None:
        self._bytes_without_progress = 0
        self._clock.body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._begin("none")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # Any: uvicorn has its own types
        self._unset_keepalive_if_required()
        self._running = cycle
        super()._start_asgi_task(cycle, partial(self._run, app, cycle))

    async def _run(self, app: ASGIApp, cycle: RequestResponseCycle, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app; close the connection if its answer is incomplete, which is how the client notices.

        uvicorn would answer 500 for a call that the drain interrupts, although its outcome is unknown.
        """
        self._task = asyncio.current_task()
        try:
            await app(scope, receive, send)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the boundary has already answered what can be answered
            if isinstance(error, Exception):
                _log.error("connection broken", exc_info=error)
        finally:
            self._task = None
        if not cycle.response_complete and not cycle.disconnected:
            cycle.disconnected = True
            self.transport.close()

    def on_response_complete(self) -> None:
        self._table.end_body(self)
        self.idle_since = self.loop.time()
        super().on_response_complete()
        if self._unparsed and not self.pipeline and not self.transport.is_closing():
            self.data_received(b"")
            self.flow.resume_reading()

    def _refuse(self, code: str, detail: str) -> None:
        """Send a problem, unless an answer is already being sent, and close the connection."""
        if self._part == "body":
            may_answer = self._running is self.cycle and not self.cycle.response_started
        else:
            may_answer = self.is_idle
        if may_answer and not self.transport.is_closing():
            self.transport.write(as_answer(problem(code, detail, retryable=code == "request.timeout")))
            self._drop_answer()
        self.transport.close()

    def _refuse_size(self) -> None:
        if self._part == "body":
            self._refuse("request.invalid", _STALLED)
        else:
            self._refuse("request.head_too_large", _HEAD_TOO_LARGE)

    def _drop_answer(self) -> None:
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def is_late(self, *, is_moving: bool) -> bool:
        """End a request past its deadline; none applies while an answer is being sent or the daemon is not reading."""
        was_paused, self.flow.was_paused = self.flow.was_paused, self.flow.read_paused
        cycle = self.cycle
        if (
            self._part != "body" or cycle.response_complete
        ):  # answered without reading its body: enough of it has been discarded
            return self.is_idle
        is_held_up = was_paused or self._running is not cycle or cycle.waiting_for_100_continue
        return not (is_moving or is_held_up or cycle.response_started or PACED in cycle.scope)

    def end_late_request(self) -> None:
        if self._parts_begun == 0:
            self.transport.close()  # a connection that sent no byte expects no answer
        else:
            part = "headers arrive" if self._part == "head" else "body arrives"
            self._refuse("request.timeout", f"cannot wait for this request: its {part} too slowly; send it again")

    @property
    def is_idle(self) -> bool:
        return self._running is None or self._running.response_complete

    def body_rate(self) -> float:
        return float("inf") if self.flow.read_paused else self._clock.body_rate()

    def abort(self) -> None:
        self.transport.abort()


def _has_hung_up(transport: asyncio.Transport) -> bool:
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
