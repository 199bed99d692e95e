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
from sandboxd.api.budget import MEMORY_BYTES, ByteBudget, allotment_of
from sandboxd.api.connection_table import ConnectionTable
from sandboxd.api.guard import TcpGuard
from sandboxd.api.previews import PreviewGate
from sandboxd.consolidation.auto_compactor import open_compactor
from sandboxd.consolidation.service import ConsolidationService
from sandboxd.consolidation_settings import ConsolidationOptions
from sandboxd.daemon.readiness import ReadinessChecks
from sandboxd.daemon.server import Server
from sandboxd.idempotency import IdempotencyStore
from sandboxd.mcp.door import MAX_SESSIONS, SESSION_IDLE_S, McpDoor
from sandboxd.metrics import Metrics
from sandboxd.network.previews import PreviewAddress, Previews
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
    previews: Previews
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
    has_previews: bool = True,
    mcp_sessions: int = MAX_SESSIONS,
    mcp_idle_s: float = SESSION_IDLE_S,
    model: ConsolidationOptions | None = None,
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
            Previews(directory, PreviewAddress("localhost", port, tls is not None)) as previews,
            anyio.create_task_group() as tasks,
        ):
            manager, budget = world.manager, ByteBudget(call_memory_bytes)
            mcp = McpDoor(
                "0.0.1",
                reserve=lambda scope, size: allotment_of(scope).take_large(size),
                max_sessions=mcp_sessions,
                session_idle_s=mcp_idle_s,
            )
            metrics = Metrics(states=lambda: manager.states, dropped=lambda: manager.events.dropped)
            chosen = manager.settings
            async with (
                consolidation(manager, metrics) as consolidator,
                open_compactor(chosen.compaction, model or chosen.consolidation, manager.memory) as compactor,
                mcp.open(),
            ):
                app = create_app(
                    manager,
                    idempotency=idempotency,
                    metrics=metrics,
                    readiness=ReadinessChecks(manager, tasks).check,
                    version="0.0.1",
                    memory=manager.memory,
                    store_limits=manager.settings.store_limits,
                    consolidator=consolidator,
                    compactor=compactor,
                    max_calls=max_calls,
                    budget=budget,
                    previews=previews if has_previews else None,
                    mcp=mcp,
                )
                mcp.connect(app)
                guard = TcpGuard(app, TOKEN, [f"127.0.0.1:{port}", f"localhost:{port}"])
                guarded = PreviewGate(guard, app, previews)
                connections = ConnectionTable(wire or WireLimits(), max_calls)
                server = Server(guarded, [unix, tcp], connections, drain_s=drain_s, tls=tls)

                def stop() -> None:
                    manager.end_event_streams()
                    mcp.stop()
                    server.stop()

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
                            stop_server=stop,
                            is_stopping=lambda: server.should_exit,
                            previews=previews,
                        )
                    finally:
                        mcp.stop()
                        server.stop()
            tasks.cancel_scope.cancel()
