"""One HTTP connection of the daemon: bytes in, calls of the app out, answers back in as few writes as can be.

uvicorn's server owns the sockets and the drain; this is the protocol it makes for every connection. It takes one
request at a time: those a client sends ahead wait here, and its socket is not read meanwhile. It knows no routes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any
from urllib.parse import unquote

import httptools
import structlog
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from sandboxd.api.exchange import Exchange
from sandboxd.api.problems import problem, render

_log = structlog.get_logger("sandboxd.api")

MAX_HEAD_BYTES = 65_536
"""Of a request's line and headers together."""
BODY_AHEAD_BYTES = 65_536
"""How much of a body is held for an app that has not asked for it yet."""

_ASGI = {"version": "3.0", "spec_version": "2.3"}


class Connection(asyncio.Protocol):
    # A protocol of the event loop, which anyio does not offer: its streams would put a task and two checkpoints on
    # the way of every call. An empty exchange takes uvicorn's own protocol 55 microseconds, this one 30.

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app: ASGIApp = config.loaded_app
        self._idle_s = config.timeout_keep_alive
        self._state = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._current: Exchange | None = None
        self._parsed: Exchange | None = None
        """The exchange whose request is being read; it may still have others before it."""
        self._ahead: deque[Exchange] = deque()
        self._drained: asyncio.Future[None] | None = None
        self._is_paused = False
        self._in_head = False
        self._is_new_head = False
        self._head_bytes = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self.is_last = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # we serve streams only
        self.transport = transport
        self._server = get_local_addr(transport)
        self._client = get_remote_addr(transport)
        self._state.connections.add(self)  # type: ignore[arg-type]  # it asks only for shutdown()
        self._rest()

    def connection_lost(self, error: Exception | None) -> None:
        self._state.connections.discard(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._current is not None:
            self._current.disconnect()
        self._ahead.clear()
        self.resume_writing()

    def shutdown(self) -> None:
        """For the server: finish what is under way, then close."""
        self.is_last = True
        if self._current is None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._is_new_head = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_last = True  # no other protocol is spoken here; what follows would be in it
        except httptools.HttpParserError:
            self._refuse("cannot read this request: it is not HTTP/1.1")
            return
        if self._in_head and not self._is_new_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(f"cannot read this request: its headers are longer than {MAX_HEAD_BYTES} bytes")

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._in_head = self._is_new_head = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        parser = self._parser
        version = parser.get_http_version()
        raw_path, _, query = self._url.partition(b"?")
        if not raw_path.startswith(b"/"):  # a proxy's form, http://host/path
            parsed = httptools.parse_url(self._url)
            raw_path, query = parsed.path or b"/", parsed.query or b""
        path = raw_path.decode("ascii")
        scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": "http",
            "root_path": "",
            "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query.partition(b"#")[0],
            "headers": self._headers,
        }
        keep_alive = version == "1.1" and parser.should_keep_alive()
        self._parsed = exchange = Exchange(self, scope, keep_alive=keep_alive)
        if self._current is None:
            self._start(exchange)
        else:
            self._ahead.append(exchange)
            self.pause_reading()

    def on_body(self, body: bytes) -> None:
        if self._parsed is not None and self._parsed.take_body(body) > BODY_AHEAD_BYTES:
            self.pause_reading()

    def on_message_complete(self) -> None:
        if self._parsed is not None:
            self._parsed.end_body()
        self._parsed = None

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused and not self._ahead:
            self._is_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        if self._drained is None:
            self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    @property
    def drained(self) -> asyncio.Future[None] | None:
        """What to wait for before writing more; None when there is room."""
        return self._drained

    def ended(self, *, keep_alive: bool) -> None:
        """For the exchange: its answer is sent, or will never be."""
        self._state.total_requests += 1
        self._current = None
        if not keep_alive or self.is_last:
            self.transport.close()
        elif self._ahead:
            self._start(self._ahead.popleft())
        else:
            self._rest()
            self.resume_reading()

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        # The server waits for these tasks before it stops.
        task = self._loop.create_task(self._run(exchange))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except Exception as error:  # noqa: BLE001  # the boundary answers whatever it can; this is its own failure
            _log.error("connection broken", exc_info=error)
        exchange.close()

    def _rest(self) -> None:
        """Nothing is under way: close unless something comes. One timer serves many short calls."""
        self._idle_since = self._loop.time()
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(self._idle_s, self._look_idle)

    def _look_idle(self) -> None:
        self._idle_timer = None
        if self._current is not None:
            return
        left_s = self._idle_since + self._idle_s - self._loop.time()
        if left_s > 0:
            self._idle_timer = self._loop.call_later(left_s, self._look_idle)
        else:
            self.transport.close()

    def _refuse(self, detail: str) -> None:
        """Say what is wrong, unless an answer is under way: then the connection can only end."""
        if self._current is None and not self.transport.is_closing():
            response = render(problem("request.invalid", detail))
            length = str(len(response.body)).encode()
            self.transport.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\n"
                b"content-length: " + length + b"\r\n\r\n" + bytes(response.body)
            )
        self.transport.close()
