"""Authentication of the TCP listener: a bearer token, the right Host header, and no browsers.

A unix socket is protected by its file mode and passes. Every other request needs all three, on every route.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from sandboxd.api.problems import problem_of, render
from sandboxd.api.refusals import Forbidden
from sandboxd.errors import InvalidRequest, RequestError, Unauthorised
from sandboxd.network.http_head import Headers
from sandboxd.permissions import is_readable_by_others

CONNECTION = "sandboxd.connection"
"""Scope key of a weak reference to the connection, to report that it sent a valid token."""
_MIN_TOKEN_CHARS = 16


def read_token(path: Path) -> str:
    """Read the token from a token file: its first line, at least 16 printable ASCII characters.

    A file that every user of the host can read is refused: with the token, each of them could run commands.
    """
    try:
        is_public = is_readable_by_others(path)
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        make = f"make it with `(umask 077; openssl rand -hex 32 > {path})`, or correct --token-file"
        step = make if isinstance(error, FileNotFoundError) else "correct --token-file"
        raise InvalidRequest(f"cannot read the token file {path}: {error.strerror}; {step}") from error
    except UnicodeDecodeError:
        raise InvalidRequest(f"cannot use the token file {path}: it is not ASCII text; write a new token") from None
    if is_public:
        raise InvalidRequest(
            f"cannot use the token file {path}: every user of this host can read it; run `chmod 600 {path}`"
        )
    token = lines[0].strip() if lines else ""
    if len(token) < _MIN_TOKEN_CHARS or not token.isprintable():
        raise InvalidRequest(
            f"cannot use the token file {path}: its first line has fewer than {_MIN_TOKEN_CHARS} characters; "
            "write a longer token"
        )
    return token


def allowed_hosts(host: str, port: int, *, is_tls: bool = False) -> frozenset[str]:
    """Return the valid Host headers for this address: the address itself, or a loopback name.

    Clients omit the default port of their scheme.
    """
    names = {host.strip("[]"), "localhost", "127.0.0.1", "::1"}
    written = {(f"[{name}]" if ":" in name else name).lower() for name in names}
    is_default_port = port == (443 if is_tls else 80)
    return frozenset(f"{name}:{port}" for name in written) | (written if is_default_port else set())


class TcpGuard:
    def __init__(self, app: ASGIApp, token: str, hosts: Collection[str]) -> None:
        self._app = app
        self._token = token.encode("ascii")
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or is_unix(scope):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            if CONNECTION in scope and (connection := scope[CONNECTION]()) is not None:
                connection.trust()
            await self._app(scope, receive, send)
            return
        headers = {"www-authenticate": "Bearer"} if isinstance(refusal, Unauthorised) else None
        await render(problem_of(refusal), headers)(scope, receive, send)

    def _refusal(self, scope: Scope) -> RequestError | None:
        hosts, tokens = [], []
        for name, value in scope["headers"]:
            if name == b"origin":
                return Forbidden(
                    "cannot answer a browser: requests with an Origin header are refused; call the API from a program"
                )
            if name == b"host":
                hosts.append(value.decode("latin-1").lower())
            elif name == b"authorization":
                tokens.append(value)
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return Forbidden(
                "cannot answer for this Host header: it does not name the address that this daemon listens on"
            )
        if len(tokens) != 1 or not self._is_token(tokens[0]):
            return Unauthorised("cannot answer without a valid token; send Authorization: Bearer TOKEN")
        return None

    def without_token(self, headers: Headers) -> Headers:
        """Return the headers without the token, for a request that goes on to a server in a sandbox."""
        return [item for item in headers if item[0] != b"authorization" or not self._is_token(item[1])]

    def _is_token(self, value: bytes) -> bool:
        scheme, _, token = value.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)


def is_unix(scope: Scope) -> bool:
    """Return whether the request came over a unix socket, which has a path and no port; False if unclear."""
    server = scope.get("server")
    return server is not None and len(server) == 2 and server[1] is None
