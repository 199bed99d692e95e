"""The life of the daemon, from top to bottom: settings → manager → listeners → ready → SIGTERM → drain → exit 0.

It owns the process: its signals and its one line on stdout. Sandboxes keep running when it exits.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import structlog
from starlette.types import ASGIApp

from memo import StoreOptions, open_store
from memo.consolidation import with_ledger
from memo.errors import MemoError
from sandboxd import failpoints
from sandboxd.api.admission import SOCKET_SHARE
from sandboxd.api.app import create_app
from sandboxd.api.budget import MIB, ByteBudget, allotment_of
from sandboxd.api.connection_table import ConnectionTable
from sandboxd.api.guard import TcpGuard, allowed_hosts, read_token
from sandboxd.api.previews import PreviewGate
from sandboxd.api.tls import read_tls
from sandboxd.consolidation.auto_compactor import open_compactor
from sandboxd.consolidation.service import ConsolidationService
from sandboxd.daemon import logs
from sandboxd.daemon.heap import settle_heap
from sandboxd.daemon.loop_watchdog import EXIT_CODE, LoopWatchdog
from sandboxd.daemon.readiness import ReadinessChecks, public_url
from sandboxd.daemon.server import Server, go_first, settle_collector, tcp_listener, unix_listener
from sandboxd.descriptors import raise_open_files, soft_open_files
from sandboxd.errors import InvalidRequest, SandboxdError
from sandboxd.idempotency import IdempotencyStore
from sandboxd.mcp.door import McpDoor
from sandboxd.metrics import Metrics
from sandboxd.network.previews import Previews, find_address
from sandboxd.sandboxes.layout import RESERVE, make_data_directory
from sandboxd.sandboxes.manager import SandboxManager
from sandboxd.sandboxes.reserve import Reserve
from sandboxd.settings import Settings

_log = structlog.get_logger()


_EXIT_MARGIN_S = 15.0
"""Time allowed for closing everything, in addition to the drain time."""
_THREADS_END_S = 2.0
"""Time allowed for worker threads to end once everything is closed."""
_SPARE_CONNECTIONS = 4
"""Extra connections on the unix socket, for health checks while the limit on calls is reached."""


def main(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; a daemon that cannot continue ends the process with its own exit code."""
    logs.configure(settings.log_level)
    password = urlsplit(settings.store_url).password
    if password and password in Path("/proc/self/cmdline").read_text(errors="replace"):
        _log.warning("every user of this host can read the store's password in the process list; set SANDBOXD_STORE")
    failpoints.arm(settings.failpoint)
    raise_open_files()
    go_first(settings.nice)
    os.umask(0o077)  # I7: no file that this process creates is accessible to other users of the host
    settle_heap()
    watchdog = LoopWatchdog(settings.loop_stall_s)
    try:
        anyio.run(serve, settings, watchdog, backend_options={"use_uvloop": True})
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # the process ends here and logs why
        causes = _causes(error)
        if not watchdog.is_ending and isinstance(causes[0], SandboxdError | MemoError):
            raise causes[0] from None  # the daemon could not start
        reasons = "; ".join(dict.fromkeys(f"{type(cause).__name__}: {cause}" for cause in causes))
        _log.critical("cannot continue: a part of the daemon failed", reason=reasons, exc_info=error)
        raise SystemExit(EXIT_CODE) from None
    finally:
        watchdog.release()
    _leave_stuck_threads()


def _leave_stuck_threads() -> None:
    """End the process now if worker threads are blocked, for example by a frozen engine; else let it exit."""
    threads = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    deadline = time.monotonic() + _THREADS_END_S
    for thread in threads:
        if not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
    stuck = [thread for thread in threads if not thread.daemon and thread.is_alive()]
    if stuck:
        _log.warning("ending while worker threads are still blocked", threads=len(stuck))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def serve(settings: Settings, watchdog: LoopWatchdog) -> None:
    watchdog.watch(asyncio.get_running_loop())
    # With more calls and WebSockets than connections, clients would only see closed connections; a refusal says why.
    unix_connections = settings.wire.unix_connections(soft_open_files()) - _SPARE_CONNECTIONS
    max_calls = min(settings.max_calls, int(unix_connections / (1 + SOCKET_SHARE)))
    tls = read_tls(settings.tls_cert, settings.tls_key) if settings.tls_cert and settings.tls_key else None
    make_data_directory(settings.data)  # before the store is opened, which may be in this directory
    Reserve(settings.data / RESERVE).spend_if_short()  # before the store is opened, which also needs some space
    # Nested blocks, not an exit stack: see SandboxManager. Listeners come first: without them nothing is started.
    with unix_listener(settings.socket) as unix_socket, _tcp_sockets(settings) as tcp_sockets:
        async with (
            open_store(settings.store_url, StoreOptions(limits=settings.store_limits)) as opened,
            with_ledger(opened, settings.data) as store,
            SandboxManager(settings, memo_provider=store) as manager,
            IdempotencyStore(manager.layout.idempotency) as idempotency,
        ):
            metrics = Metrics(
                states=lambda: manager.states,
                dropped=lambda: manager.events.dropped,
                pool=lambda: manager.pool,
                outbox=lambda: manager.outbox,
                egress=lambda: manager.egress.counts,
                history=manager.history.figures,
                tasks=lambda: len(asyncio.all_tasks()),
            )
            mcp = McpDoor(version("sandboxd"), reserve=lambda scope, size: allotment_of(scope).take_large(size))
            async with (
                _open_previews(settings) as previews,
                _open_consolidation(settings, store, manager, metrics) as consolidation,
                open_compactor(settings.compaction, settings.consolidation, manager.memory) as compactor,
                anyio.create_task_group() as checking,
                mcp.open(),
            ):
                app = create_app(
                    manager,
                    idempotency=idempotency,
                    metrics=metrics,
                    readiness=ReadinessChecks(manager, checking).check,
                    version=version("sandboxd"),
                    memory=manager.memory,
                    store_limits=settings.store_limits,
                    consolidator=consolidation,
                    compactor=compactor,
                    max_calls=max_calls,
                    budget=ByteBudget(settings.call_memory_mb * MIB),
                    previews=previews,
                    mcp=mcp,
                )
                mcp.connect(app)
                connections = ConnectionTable(settings.wire, max_calls)
                guarded = _guard(app, settings, previews)
                server = Server(guarded, [unix_socket, *tcp_sockets], connections, drain_s=settings.drain_s, tls=tls)
                try:
                    await _serve_until_signalled(server, manager, consolidation, mcp)
                    checking.cancel_scope.cancel()
                finally:
                    watchdog.end_within(settings.drain_s + _EXIT_MARGIN_S)


def _guard(app: ASGIApp, settings: Settings, previews: Previews | None) -> ASGIApp:
    """Return the app as the listeners serve it: TCP needs a token, except on the host names of previews."""
    if settings.tcp is None or settings.token_file is None:
        return app
    host, _, port = settings.tcp.rpartition(":")
    hosts = allowed_hosts(host, int(port), is_tls=settings.tls_cert is not None)
    guard = TcpGuard(app, read_token(settings.token_file), hosts)
    if previews is None:
        return guard
    if any(previews.address.label_in(name) is not None for name in hosts):
        raise InvalidRequest(
            f"cannot serve previews below {previews.address.host}: the daemon's own name is below it too; "
            "set network.preview_host to another name"
        )
    return PreviewGate(guard, app, previews)


def _open_previews(settings: Settings) -> AbstractAsyncContextManager[Previews | None]:
    address = find_address(settings.tcp, settings.network.preview_host, is_tls=settings.tls_cert is not None)
    return nullcontext() if address is None else Previews(settings.data, address)


@contextmanager
def _tcp_sockets(settings: Settings) -> Iterator[list[socket.socket]]:
    if settings.tcp is None:
        yield []
        return
    host, _, port = settings.tcp.rpartition(":")
    with tcp_listener(host.strip("[]"), int(port)) as listener:
        yield [listener]


def _causes(error: BaseException) -> list[BaseException]:
    """Return the original exception: a task group wraps what its tasks raise."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for one in error.exceptions for cause in _causes(one)]
    return [error]


def _open_consolidation(
    settings: Settings, store: object, manager: SandboxManager, metrics: Metrics
) -> ConsolidationService:
    return ConsolidationService(
        store,
        settings.consolidation,
        events=manager.events,
        metrics=metrics,
        writer=manager.memory,
        busy_users=manager.busy_users,
        drain_s=settings.drain_s,
    )


async def _serve_until_signalled(
    server: Server, manager: SandboxManager, consolidation: ConsolidationService, mcp: McpDoor
) -> None:
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            tasks.start_soon(_stop_when_signalled, server, manager, consolidation, mcp, signals)
            async with anyio.create_task_group() as serving:
                serving.start_soon(server.run_until_stopped)
                await server.has_started.wait()
                settle_collector()
                _say_ready(manager)
            await consolidation.drain()
            tasks.cancel_scope.cancel()


async def _stop_when_signalled(
    server: Server,
    manager: SandboxManager,
    consolidation: ConsolidationService,
    mcp: McpDoor,
    signals: AsyncIterator[signal.Signals],
) -> None:
    is_draining = False
    async for number in signals:
        if is_draining:  # a second signal: do not wait for the drain
            server.stop_now()
            consolidation.stop_now()
        _log.info("draining", signal=number.name)
        is_draining = True
        consolidation.stop()
        manager.end_event_streams()
        mcp.stop()
        server.stop()


def _say_ready(manager: SandboxManager) -> None:
    line = {
        "event": "ready",
        "socket": str(manager.settings.socket),
        "engine": manager.engine.name,
        "store": public_url(manager.settings.store_url),
        "pid": os.getpid(),
    }
    print(json.dumps(line), flush=True)
