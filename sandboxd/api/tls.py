"""TLS on the TCP listener: the certificate, and the handshake of each connection.

`create_server(ssl=...)` hides a connection until its handshake is done, so unauthenticated clients could hold any
number of them. Here every connection is in the connection table from the moment it is accepted.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import anyio
import structlog

from sandboxd.api.connection import HttpConnection
from sandboxd.api.connection_table import ConnectionTable, Peer
from sandboxd.errors import InvalidRequest
from sandboxd.permissions import is_readable_by_others

_log = structlog.get_logger("sandboxd.api")

_ACCEPT_RETRY_S = 1.0
"""How long to wait before accepting again after the host failed to accept a connection."""


def read_tls(cert: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS context of a certificate chain and its key; raise InvalidRequest if they cannot be used."""
    _check_readable(cert, "--tls-cert")
    _check_readable(key, "--tls-key")
    if is_readable_by_others(key):
        raise InvalidRequest(f"cannot use --tls-key {key}: every user of this host can read it; run `chmod 600 {key}`")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password=_refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = "the key does not belong to the certificate; give the key that the certificate was made with"
        else:
            reason = "one of them is not a PEM file of its kind; give the certificate first and its private key second"
        raise InvalidRequest(f"cannot use --tls-cert {cert} with --tls-key {key}: {reason}") from error
    except _PasswordNeeded:
        raise InvalidRequest(
            f"cannot use --tls-key {key}: it is encrypted; decrypt it with `openssl pkey -in {key} -out FILE`"
        ) from None
    return context


class _PasswordNeeded(Exception):
    pass


def _refuse_password() -> str:
    raise _PasswordNeeded  # without a callback OpenSSL would prompt on the terminal and wait


def _check_readable(path: Path, option: str) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {option} {path}: {error.strerror}; correct {option}") from error


class TlsListener:
    """Accepts the connections of one TCP socket, and hands each to an HTTP connection after its handshake."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        make_connection: Callable[[Peer], HttpConnection],
        table: ConnectionTable,
    ) -> None:
        self._listener = listener
        self._context = context
        self._make_connection = make_connection
        self._table = table

    async def serve(self) -> None:
        """Accept until cancelled, which also ends every handshake."""
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as handshakes:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(self._listener)
                except ConnectionAbortedError:
                    continue  # the client left before it was accepted
                except OSError as error:  # out of descriptors or memory, or the network is down
                    _log.warning("cannot accept a connection", reason=error.strerror)
                    await anyio.sleep(_ACCEPT_RETRY_S)
                    continue
                handshakes.start_soon(self._shake_hands, accepted)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:
            handshake = _Handshake(scope, loop.time())
            connection = self._make_connection(handshake)
            self._table.open_tcp(handshake)
            try:
                await loop.connect_accepted_socket(  # which owns the socket from here on
                    lambda: connection,
                    accepted,
                    ssl=self._context,
                    ssl_handshake_timeout=self._table.limits.head_timeout_s,
                )
            except OSError:
                pass  # not TLS, no common version, too slow, or gone: without TLS there is no way to say why
            except Exception as error:  # noqa: BLE001  # the daemon continues, whatever a client sends
                _log.error("TLS handshake failed", exc_info=error)
            finally:
                self._table.close(handshake)
                connection.discard()


class _Handshake:
    """A connection before its first request, as the table sees it: idle, and without a token."""

    is_idle = True

    def __init__(self, scope: anyio.CancelScope, idle_since: float) -> None:
        self._scope = scope
        self.idle_since = idle_since

    def body_rate(self) -> float:
        return float("inf")

    def abort(self) -> None:
        self._scope.cancel()

    def end_late_request(self) -> None:
        self._scope.cancel()
