"""The real API in front of a world, served by uvicorn on a unix socket and on TCP with a token."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from sandboxd.api.admission import MAX_CALLS
from sandboxd.api.app import create_app
from sandboxd.api.budget import MEMORY_BYTES, ByteBudget
from sandboxd.api.connection_table import ConnectionTable
from sandboxd.api.guard import TcpGuard
from sandboxd.consolidation.service import ConsolidationService
from sandboxd.daemon.readiness import ReadinessChecks
from sandboxd.daemon.server import Server
from sandboxd.idempotency import IdempotencyStore
from sandboxd.metrics import Metrics
from sandboxd.sandboxes.manager import SandboxManager
from sandboxd.wire_limits import WireLimits
from tests.world.world import World, open_world

TOKEN = "t" * 32

OpenConsolidation = Callable[[SandboxManager, Metrics], AbstractAsyncContextManager[ConsolidationService | None]]


@dataclass(kw_only=True)
class ServedWorld(World):
    """A world and where its API listens."""

    socket: Path
    url: str
    budget: ByteBudget
    stop_server: Callable[[], None]
    """Stops the server, as SIGTERM does."""
    is_stopping: Callable[[], bool]
    token: str = TOKEN


@asynccontextmanager
async def serving(
    directory: Path,
    *,
    store: Any = None,
    consolidation: OpenConsolidation = lambda _manager, _metrics: nullcontext(),
    max_calls: int = MAX_CALLS,
    wire: WireLimits | None = None,
    drain_s: float = 5,
    call_memory_bytes: int = MEMORY_BYTES,
    tls: ssl.SSLContext | None = None,
    **settings: Any,
) -> AsyncIterator[ServedWorld]:
    """Open a world and serve its API; with a store it has memory."""
    path = directory / "api.sock"
    path.unlink(missing_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))
        port = tcp.getsockname()[1]
        async with (
            open_world(directory, store=store, **settings) as world,
            IdempotencyStore(world.manager.layout.idempotency) as idempotency,
            anyio.create_task_group() as tasks,
        ):
            manager, budget = world.manager, ByteBudget(call_memory_bytes)
            metrics = Metrics(states=lambda: manager.states, dropped=lambda: manager.events.dropped)
            async with consolidation(manager, metrics) as consolidator:
                app = create_app(
                    manager,
                    idempotency=idempotency,
                    metrics=metrics,
                    readiness=ReadinessChecks(manager, tasks).check,
                    version="0.0.1",
                    memory=manager.memory,
                    store_limits=manager.settings.store_limits,
                    consolidator=consolidator,
                    max_calls=max_calls,
                    budget=budget,
                )
                guarded = TcpGuard(app, TOKEN, [f"127.0.0.1:{port}", f"localhost:{port}"])
                connections = ConnectionTable(wire or WireLimits(), max_calls)
                server = Server(guarded, [unix, tcp], connections, drain_s=drain_s, tls=tls)
                async with anyio.create_task_group() as listening:
                    listening.start_soon(server.run_until_stopped)
                    await server.has_started.wait()
                    url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
                    try:
                        yield ServedWorld(
                            **vars(world),
                            socket=path,
                            url=url,
                            budget=budget,
                            stop_server=server.stop,
                            is_stopping=lambda: server.should_exit,
                        )
                    finally:
                        server.stop()
            tasks.cancel_scope.cancel()
