"""The daemon's sockets and the HTTP server on them, which waits for events instead of polling."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import uvicorn
from starlette.types import ASGIApp

from sandboxd.api.connection import HttpConnection
from sandboxd.api.connection_table import ConnectionTable, Peer
from sandboxd.api.tls import TlsListener
from sandboxd.errors import Conflict, HostIO

_COLLECT_AFTER = (20_000, 20, 20)
_BACKLOG = 1024
_LIFESPAN_END_S = 5.0
_SILENT_S = 60
"""When the kernel begins to ask whether a silent TCP client still exists."""
_PATH_BYTES = 107
"""The longest path in the kernel's sockaddr_un."""


class Server(uvicorn.Server):
    """uvicorn without its signal handlers and its ten wake-ups per second, so that an idle daemon uses no CPU."""

    def __init__(
        self,
        app: ASGIApp,
        listeners: list[socket.socket],
        connections: ConnectionTable,
        *,
        drain_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(HttpConnection, table=connections),  # type: ignore[arg-type]  # uvicorn only calls it
                timeout_keep_alive=connections.limits.keep_alive_s,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                backlog=_BACKLOG,
                timeout_graceful_shutdown=max(1, round(drain_s)),
            )
        )
        self._listeners = listeners
        self._connections = connections
        self._tls = tls
        self._stopping = anyio.Event()
        self.has_started = anyio.Event()

    async def run_until_stopped(self) -> None:
        has_ended = False
        try:
            await self.serve(sockets=self._listeners)
            has_ended = not self.force_exit
        finally:
            if not has_ended:
                # Cancelled because another part of the daemon failed, or because of a second signal: tasks that uvicorn
                # started do not end on their own.
                for server in getattr(self, "servers", ()):
                    server.close()
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _LIFESPAN_END_S):
                    await self.lifespan.shutdown()

    def stop(self) -> None:
        """Refuse new connections, and let calls in flight finish within the drain time."""
        self.should_exit = True
        self._stopping.set()

    def stop_now(self) -> None:
        self.force_exit = True
        self.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals belong to the daemon

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn's own TLS would apply to every socket; the unix socket is protected by its mode and stays plain.
        plain = [one for one in sockets or () if self._tls is None or one.family == socket.AF_UNIX]
        await super().startup(plain)
        self.has_started.set()

    async def main_loop(self) -> None:
        async with anyio.create_task_group() as accepting:
            if self._tls is not None:
                for listener in self._listeners:
                    if listener.family != socket.AF_UNIX:
                        secured = TlsListener(listener, self._tls, self._make_connection, self._connections)
                        accepting.start_soon(secured.serve)
            await self._stopping.wait()
            accepting.cancel_scope.cancel()

    def _make_connection(self, handshake: Peer) -> HttpConnection:
        state = self.server_state
        return HttpConnection(self.config, state, self.lifespan.state, table=self._connections, handshake=handshake)


def settle_collector() -> None:
    """Keep garbage collection out of calls: freeze loaded objects, and do not collect because of long lists."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def go_first(nice: int) -> None:
    """Raise the priority of this thread, which runs the event loop, but not that of other threads and children.

    A daemon that was started with a niceness other than 0 keeps it. Only root can raise it; for other users nothing
    changes.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) == 0:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, 0, nice)


@contextlib.contextmanager
def unix_listener(path: Path) -> Iterator[socket.socket]:
    """Listen on a path with a mode that admits only this user; replace the socket of a dead daemon."""
    try:
        is_other = path.exists() and not stat.S_ISSOCK(path.stat().st_mode)
    except OSError as error:
        raise _unusable(path, error) from error
    if is_other:
        raise Conflict(f"cannot listen on {path}: the path exists and is not a socket; give another --socket")
    if _has_listener(path):
        raise Conflict(f"cannot listen on {path}: another daemon answers there; stop it or give another --socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        before = os.umask(0o177)  # the socket must not have a wider mode even for a moment
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
        identity = _identity(path)
    except OSError as error:
        listener.close()
        raise _unusable(path, error) from error
    try:
        yield listener
    finally:
        listener.close()
        if _identity(path) == identity:  # the next daemon may have created its own already
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def tcp_listener(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit it: what is passed through from a sandbox has no pings of the daemon's own.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_S)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT_S // 4)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        is_foreign = error.errno == errno.EADDRNOTAVAIL
        reason = "this host does not have that address" if is_foreign else error.strerror or error
        raise Conflict(f"cannot listen on {host} port {port}: {reason}; give another --tcp") from error
    with listener:
        yield listener


def _unusable(path: Path, error: OSError) -> HostIO:
    is_too_long = len(os.fsencode(path)) > _PATH_BYTES
    reason = f"a socket's path has at most {_PATH_BYTES} bytes" if is_too_long else error.strerror or error
    return HostIO(f"cannot listen on {path}: {reason}; give another --socket")


def _has_listener(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
