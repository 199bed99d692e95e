"""DoorGuard: decides which requests of a browser may pass the door of `sandboxd inspect`.

One browser gets in, with the one-time token of the printed link, and is known by its cookie from then on. Requests that
another page, another host name or another port caused are refused. It never forwards anything.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable

from aiohttp import web

HOST = "127.0.0.1"
PAGE = "/__inspector/"
ENTER = "/__inspector/enter"
_SAFE = frozenset({"GET", "HEAD"})
_SITES = ("same-origin", "none")
"""Where a browser may say that a request comes from: this page, or the user."""
_SERVER_INSIDE = re.compile(r"/v1/tenants/[^/]+/sessions/[^/]+/ports/[^/]+(?:/.*)?")
_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


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


class DoorGuard:
    def __init__(self, port: int, token: OneTimeToken) -> None:
        self._hosts = (f"{HOST}:{port}", f"localhost:{port}")
        self._token = token
        self._cookie = secrets.token_urlsafe(32)
        self._cookie_name = f"sandboxd_inspector_{port}"
        """Another port has another name, because browsers send a host's cookies to each of its ports."""

    def check(self, request: web.Request) -> web.Response | None:
        """Return the refusal of a request; None if it may pass."""
        if not request.raw_path.startswith("/"):
            return refusal(400, "This request names another server.")
        if not self._is_own_host(request):
            return refusal(403, "This Host header does not name the inspector's address.")
        if is_entrance(request):
            return None
        if not self._has_cookie(request):
            return refusal(401, "Open the link that `sandboxd inspect` printed. It works once.")
        if not self._is_own_origin(request):
            return refusal(403, "This request comes from another page.")
        if _leads_inside(request):
            return refusal(403, "A sandbox's own pages are not shown here. Use `sandboxd forward` or `preview`.")
        return None

    def enter(self, request: web.Request, location: str) -> web.Response:
        """Exchange the token for the cookie, and lead to this location."""
        if request.headers.get("Sec-Fetch-Site", "none") not in _SITES or "Origin" in request.headers:
            return refusal(403, "Open the link itself: another page may not do that.")
        if not self._token.redeem(request.query.get("token", "")):
            return refusal(403, "This link has been used or has expired. Run `sandboxd inspect` again.")
        answer = redirect(location)
        answer.set_cookie(self._cookie_name, self._cookie, path="/", httponly=True, samesite="Strict")
        return answer

    def _is_own_host(self, request: web.Request) -> bool:
        hosts = request.headers.getall("Host", [])
        return len(hosts) == 1 and hosts[0].lower() in self._hosts

    def _is_own_origin(self, request: web.Request) -> bool:
        if request.headers.get("Sec-Fetch-Site", "none") not in _SITES:
            return False
        origins = request.headers.getall("Origin", [])
        if not origins:
            return request.method in _SAFE and not is_socket(request)
        return origins == [f"http://{request.headers['Host'].lower()}"]

    def _has_cookie(self, request: web.Request) -> bool:
        lines = request.headers.getall("Cookie", [])
        pairs = (pair.strip().partition("=") for line in lines for pair in line.split(";"))
        given = [value for name, _, value in pairs if name == self._cookie_name]
        return len(given) == 1 and hmac.compare_digest(given[0].encode("utf-8", "replace"), self._cookie.encode())


def is_entrance(request: web.Request) -> bool:
    return request.path == ENTER and request.method == "GET"


def is_socket(request: web.Request) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


def redirect(location: str) -> web.Response:
    return web.Response(status=303, headers={**_HEADERS, "location": location})


def refusal(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n", headers=_HEADERS)


def _leads_inside(request: web.Request) -> bool:
    """Return whether a server in a sandbox would answer: on this origin its scripts could do all that the user can."""
    path = request.raw_path.partition("?")[0]
    is_own = request.method == "POST" and path.endswith("/preview")
    return _SERVER_INSIDE.fullmatch(path) is not None and not is_own
