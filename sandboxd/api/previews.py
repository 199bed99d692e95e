"""Previews of ports for browsers, on host names of their own: a request to one never reaches a route of the API.

The gate stands in front of the guard of the TCP listener. A request whose host name is below the preview host needs no
token and cannot use one; its name alone says what it opens. Everything else goes to the guard.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import anyio
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandboxd.api.admission import TENANT
from sandboxd.api.guard import CONNECTION, TcpGuard, is_unix
from sandboxd.api.port_proxy import PortAnswer
from sandboxd.api.problems import status_of
from sandboxd.api.refusals import ClientLeft
from sandboxd.errors import NotFound, NothingListens, SandboxdError
from sandboxd.network.previews import PreviewGrant, Previews

VISIT = "sandboxd.visit"
"""Scope key of a request to a preview."""
MAX_VISITS = 32
"""Requests and WebSockets of one preview at a time. A browser has at most six requests under way."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_UNKNOWN = "There is no such preview, or it has expired."


@dataclass(frozen=True, slots=True)
class Visit:
    """A request to a preview, with the Host header that it came with."""

    grant: PreviewGrant
    host: str


class PreviewGate:
    """Sends requests for previews to the app, and all others to the guard of the API."""

    def __init__(self, guard: TcpGuard, app: ASGIApp, previews: Previews) -> None:
        self._guard = guard
        self._app = app
        self._previews = previews
        self._under_way: Counter[bytes] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [] if scope["type"] != "http" or is_unix(scope) else _values(scope, b"host")
        label = self._previews.address.label_in(hosts[0]) if len(hosts) == 1 else None
        if label is None:
            await self._guard(scope, receive, send)
            return
        grant = self._previews.find(label)
        refusal = self._refusal(scope, grant, hosts[0])
        if grant is None or refusal is not None:
            await (refusal or _page(404, _UNKNOWN))(scope, receive, send)
            return
        if CONNECTION in scope and (connection := scope[CONNECTION]()) is not None:
            connection.welcome()
        scope[VISIT] = Visit(grant, hosts[0])
        scope[TENANT] = grant.ref.tenant
        # A program that uses the URL may send every server the daemon's token.
        scope["headers"] = self._guard.without_token(scope["headers"])
        self._under_way[grant.id] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way[grant.id] -= 1
            if not self._under_way[grant.id]:
                del self._under_way[grant.id]

    def _refusal(self, scope: Scope, grant: PreviewGrant | None, host: str) -> Response | None:
        if grant is None:
            return _page(404, _UNKNOWN)
        if not self._is_from_own_page(scope, host):
            return _page(403, "Other sites may link to this preview, but not use it.")
        if self._under_way[grant.id] >= MAX_VISITS:
            return _page(503, "This preview has too many requests at the same time. Try again in a moment.")
        return None

    def _is_from_own_page(self, scope: Scope, host: str) -> bool:
        """Return whether a request is one that another site's page could not have made, except by a link."""
        origins, sites = _values(scope, b"origin"), _values(scope, b"sec-fetch-site")
        if origins:
            # A proxy in front may speak TLS for a listener without it.
            schemes = ("https",) if self._previews.address.is_tls else ("http", "https")
            own = [f"{scheme}://{host.lower()}" for scheme in schemes]
            # A page with `Referrer-Policy: no-referrer` does not name its own origin.
            is_own = origins[0].lower() in own or (origins[0] == "null" and sites == ["same-origin"])
            return len(origins) == 1 and is_own
        return scope["method"] in _SAFE_METHODS or all(site in ("same-origin", "none") for site in sites)


class VisitMiddleware:
    """Answers the requests of a preview before they are routed."""

    def __init__(self, app: ASGIApp, show: Callable[[Visit, Scope], PortAnswer], desk: VisitDesk) -> None:
        self._app = app
        self._show = show
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit: Visit | None = scope.get(VISIT)
        if visit is None:
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        outcome = "ok"
        is_started = False

        async def watched(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        page: Response | None = None
        answer = self._show(visit, scope)
        left_s = visit.grant.expires_s - self._desk.clock()
        with anyio.CancelScope(deadline=anyio.current_time() + left_s) as life:
            try:
                await self._desk.check(visit.grant)
                await answer(scope, receive, watched)
            except SandboxdError as error:
                outcome, page = error.code, _explain(error, visit.grant.port)
            except ClientLeft:
                outcome = "abandoned"
        if life.cancelled_caught:
            outcome, page = "expired", _page(404, _UNKNOWN)
        self._desk.record(outcome, time.perf_counter() - started)
        if page is not None and not is_started and not answer.is_upgraded:
            await page(scope, receive, send)


class VisitDesk(Protocol):
    """What a visit needs to know about its preview."""

    def clock(self) -> float: ...
    async def check(self, grant: PreviewGrant) -> None:
        """Raise NotFound if the preview's sandbox is gone."""

    def record(self, outcome: str, seconds: float) -> None: ...


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _explain(error: SandboxdError, port: int) -> Response:
    """Return a page about an error. Its own text is for the API's clients: it may name the session."""
    if isinstance(error, NotFound):
        return _page(404, _UNKNOWN)
    if isinstance(error, NothingListens):
        return _page(502, f"Nothing listens on port {port} of this sandbox yet. Start the server and reload.")
    return _page(status_of(error.code), f"This preview cannot be shown now ({error.code}).")


def _page(status: int, text: str) -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "same-origin"}
    return Response(f"{text}\n", status, headers, "text/plain; charset=utf-8")
