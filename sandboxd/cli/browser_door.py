"""BrowserDoor: a port of this machine that shows the daemon's inspector to one browser.

The daemon refuses browsers, so this door stands between: it answers only on a loopback address, only to the browser
that brought the one-time token of the printed link, and forwards its requests to the daemon as they are. It adds the
daemon's own token, which never reaches the browser.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp
from aiohttp import web
from yarl import URL

from sandboxd.client.address import Address
from sandboxd.client.tls import make_context
from sandboxd.errors import HostIO

HOST = "127.0.0.1"
TOKEN_S = 60.0
"""How long the link works."""
PAGE = "/__inspector/"
_ENTER = "/__inspector/enter"
_SAFE = frozenset({"GET", "HEAD"})
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
_REFUSAL_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_PAGE_FILE = re.compile(r"/__inspector/(?:static/.*)?")
_HARMLESS = {
    "content-security-policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}
"""What every answer gets that is not a file of the page: agents choose its content, so nothing in it may run."""
_SERVER_INSIDE = re.compile(r"/v1/tenants/[^/]+/sessions/[^/]+/ports/[^/]+(?:/.*)?")
_SITES = ("same-origin", "none")
"""Where a browser may say that a request comes from: this page, or the user."""


class OneTimeToken:
    """A token that works once, and only for a while."""

    def __init__(self, life_s: float, clock: Callable[[], float]) -> None:
        self.text = secrets.token_urlsafe(32)
        self._clock = clock
        self._ends = clock() + life_s
        self._is_used = False

    def redeem(self, given: str) -> bool:
        """Use the token up if this is it; a wrong one changes nothing."""
        is_right = hmac.compare_digest(given.encode("utf-8", "replace"), self.text.encode())
        if not is_right or self._is_used or self._clock() >= self._ends:
            return False
        self._is_used = True
        return True


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
        self._cookie = secrets.token_urlsafe(32)
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
        return f"{self.url}{_ENTER}?token={self._token.text}"

    async def __aenter__(self) -> Self:
        try:
            listener = socket.create_server((HOST, self._port))
        except OSError as error:
            raise HostIO(f"cannot listen on {HOST}:{self._port}: {error.strerror}; choose another --port") from error
        self._port = listener.getsockname()[1]
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
        if not self._is_own_host(request):
            return _refusal(403, "This Host header does not name the inspector's address.")
        if request.path == _ENTER and request.method == "GET":
            return self._enter(request)
        if not self._has_cookie(request.headers.getall("Cookie", [])):
            return _refusal(401, "Open the link that `sandboxd inspect` printed. It works once.")
        is_socket = request.headers.get("Upgrade", "").lower() == "websocket"
        if not self._is_own_origin(request, is_required=is_socket or request.method not in _SAFE):
            return _refusal(403, "This request comes from another page.")
        if self._leads_inside(request):
            return _refusal(403, "A sandbox's own pages are not shown here. Use `sandboxd forward` or `preview`.")
        if request.path == "/":
            return web.Response(status=303, headers={**_REFUSAL_HEADERS, "location": PAGE})
        try:
            return await (self._join(request) if is_socket else self._forward(request))
        except (aiohttp.ClientError, TimeoutError):
            return _refusal(502, "The daemon does not answer. `sandboxd doctor` says why.")

    def _enter(self, request: web.Request) -> web.Response:
        if request.headers.get("Sec-Fetch-Site", "none") not in _SITES or "Origin" in request.headers:
            return _refusal(403, "Open the link itself: another page may not do that.")
        if not self._token.redeem(request.query.get("token", "")):
            return _refusal(403, "This link has been used or has expired. Run `sandboxd inspect` again.")
        answer = web.Response(status=303, headers={**_REFUSAL_HEADERS, "location": f"{PAGE}{self._fragment}"})
        answer.set_cookie(self._cookie_name, self._cookie, path="/", httponly=True, samesite="Strict")
        return answer

    def _is_own_host(self, request: web.Request) -> bool:
        hosts = request.headers.getall("Host", [])
        return len(hosts) == 1 and hosts[0].lower() in (f"{HOST}:{self._port}", f"localhost:{self._port}")

    def _is_own_origin(self, request: web.Request, *, is_required: bool) -> bool:
        if request.headers.get("Sec-Fetch-Site", "none") not in _SITES:
            return False
        origins = request.headers.getall("Origin", [])
        if not origins:
            return not is_required
        return origins == [f"http://{request.headers['Host'].lower()}"]

    @property
    def _cookie_name(self) -> str:
        """Another port has another name, because browsers send a host's cookies to each of its ports."""
        return f"sandboxd_inspector_{self._port}"

    def _leads_inside(self, request: web.Request) -> bool:
        """Return whether a server in a sandbox would answer: on this origin its scripts could do all the user can."""
        path = request.raw_path.partition("?")[0]
        is_own = request.method == "POST" and path.endswith("/preview")
        return _SERVER_INSIDE.fullmatch(path) is not None and not is_own

    def _has_cookie(self, lines: list[str]) -> bool:
        pairs = (pair.strip().partition("=") for line in lines for pair in line.split(";"))
        given = [value for name, _, value in pairs if name == self._cookie_name]
        return len(given) == 1 and hmac.compare_digest(given[0].encode("utf-8", "replace"), self._cookie.encode())

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
            return _refusal(error.status, "The daemon refused this WebSocket.")
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


def _refusal(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=_REFUSAL_HEADERS)
