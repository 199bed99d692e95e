"""BrowserDoor: a port of this machine that shows the daemon's inspector to one browser.

The daemon refuses browsers, so this door stands between: it answers only on a loopback address, only to the browser
that brought the one-time token of the printed link, and forwards its requests to the daemon as they are. It adds the
daemon's own token, which never reaches the browser.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

from sandboxd.cli.door_guard import (
    ENTER,
    HOST,
    PAGE,
    DoorGuard,
    OneTimeToken,
    is_entrance,
    is_socket,
    redirect,
    refusal,
)
from sandboxd.client.address import Address
from sandboxd.client.tls import make_context
from sandboxd.errors import HostIO

TOKEN_S = 60.0
"""How long the link works."""
_PIECE_BYTES = 65_536
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_CONNECT_S = 10.0
_CLOSE_S = 1.0
_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "cookie",
        "origin",
        "referer",
        "authorization",
        "content-length",
    }
)
"""Headers of the browser's connection to this door, which the daemon does not get; nor the other way round."""
_TO_BROWSER = _HOP - {"content-length"} | {"set-cookie", "access-control-allow-origin"}
_PAGE_FILE = re.compile(r"/__inspector/(?:static/.*)?")
_HARMLESS = {
    "content-security-policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}
"""What every answer gets that is not a file of the page: agents choose its content, so nothing in it may run."""


class BrowserDoor:
    """Listens from `__aenter__` to `__aexit__`. `link` opens the page, once."""

    def __init__(
        self,
        address: Address,
        *,
        port: int = 0,
        fragment: str = "",
        token_s: float = TOKEN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._port = port
        self._fragment = fragment
        self._token = OneTimeToken(token_s, clock)
        self._guard = DoorGuard(port, self._token)
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    @property
    def link(self) -> str:
        return f"{self.url}{ENTER}?token={self._token.text}"

    async def __aenter__(self) -> Self:
        try:
            listener = socket.create_server((HOST, self._port))
        except OSError as error:
            raise HostIO(f"cannot listen on {HOST}:{self._port}: {error.strerror}; choose another --port") from error
        self._port = listener.getsockname()[1]
        self._guard = DoorGuard(self._port, self._token)
        self._session = self._open_session()
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=_CLOSE_S,
            handler_cancellation=True,  # a page that was closed ends its streams at once
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        connector: aiohttp.BaseConnector
        if self._address.socket is not None:
            connector = aiohttp.UnixConnector(str(self._address.socket))
        else:
            connector = aiohttp.TCPConnector(ssl=make_context() if self._address.is_tls else True)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(connect=_CONNECT_S),  # a stream of events may be silent for long
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        refused = self._guard.check(request)
        if refused is not None:
            return refused
        if is_entrance(request):
            return self._guard.enter(request, f"{PAGE}{self._fragment}")
        if request.path == "/":
            return redirect(PAGE)
        try:
            return await (self._join(request) if is_socket(request) else self._forward(request))
        except (aiohttp.ClientError, TimeoutError):
            return refusal(502, "The daemon does not answer. `sandboxd doctor` says why.")

    def _target(self, request: web.Request) -> URL:
        return URL(f"{self._address.url}{request.raw_path}", encoded=True)

    def _headers(self, request: web.Request) -> list[tuple[str, str]]:
        named = {name.strip().lower() for name in request.headers.get("Connection", "").split(",")}
        sent = [
            (name, value)
            for name, value in request.headers.items()
            if name.lower() not in _HOP | named and not name.lower().startswith(("sec-websocket-", "sec-fetch-"))
        ]
        sent.append(("Host", self._address.authority))
        if self._address.token is not None:
            sent.append(("Authorization", f"Bearer {self._address.token}"))
        return sent

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None  # noqa: S101  # open while requests are answered
        sent = self._headers(request)
        body: AsyncIterator[bytes] | None = None
        if request.can_read_body:
            body = request.content.iter_chunked(_PIECE_BYTES)
            if request.content_length is not None:
                sent.append(("Content-Length", str(request.content_length)))
        async with self._session.request(
            request.method, self._target(request), headers=sent, data=body, allow_redirects=False
        ) as found:
            answer = web.StreamResponse(status=found.status, reason=found.reason)
            for name, value in found.headers.items():
                if name.lower() not in _TO_BROWSER:
                    answer.headers.add(name, value)
            if _PAGE_FILE.fullmatch(request.raw_path.partition("?")[0]) is None:
                answer.headers.update(_HARMLESS)
            try:
                await answer.prepare(request)
                async for piece in found.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
            except (aiohttp.ClientError, ConnectionError):
                if request.transport is not None:
                    request.transport.abort()  # the browser must not take half an answer for a whole one
            return answer

    async def _join(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None  # noqa: S101  # open while requests are answered
        protocols = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if name]
        try:
            opened = await self._session.ws_connect(
                self._target(request),
                headers=self._headers(request),
                protocols=protocols,
                max_msg_size=_MAX_MESSAGE_BYTES,
                autoclose=False,
            )
        except aiohttp.WSServerHandshakeError as error:
            return refusal(error.status, "The daemon refused this WebSocket.")
        async with opened:
            chosen = [opened.protocol] if opened.protocol else []
            browser = web.WebSocketResponse(protocols=chosen, max_msg_size=_MAX_MESSAGE_BYTES, autoclose=False)
            try:
                await browser.prepare(request)
            except ConnectionResetError:  # the browser has left in the meantime
                return browser
            ways = [
                asyncio.create_task(_copy(browser, opened)),
                asyncio.create_task(_copy(opened, browser)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                code = opened.close_code or browser.close_code or aiohttp.WSCloseCode.GOING_AWAY
                await browser.close(code=code if code < 5000 and code not in (1005, 1006, 1015) else 1000)
            return browser


Joined = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def _copy(source: Joined, target: Joined) -> None:
    """Copy messages until either side closes."""
    async for message in source:
        if message.type is aiohttp.WSMsgType.TEXT:
            await target.send_str(message.data)
        elif message.type is aiohttp.WSMsgType.BINARY:
            await target.send_bytes(message.data)


def deep_link(tenant: str, session: str | None) -> str:
    """Return the fragment of the page that shows this session."""
    if session is None:
        return ""
    return f"#/tenants/{quote(tenant, safe='')}/sessions/{quote(session, safe='')}"
