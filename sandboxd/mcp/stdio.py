"""MCP over stdin and stdout, for one client, over a daemon near or far."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from io import TextIOWrapper

import anyio
from mcp.server.lowlevel import NotificationOptions
from mcp.server.stdio import stdio_server

from sandboxd.client import AsyncClient
from sandboxd.mcp.binding import Binding
from sandboxd.mcp.server import SandboxServer
from sandboxd.mcp.surrogates import repair


async def serve_stdio(client: AsyncClient, binding: Binding) -> None:
    """Serve until stdin ends. Calls under way are cancelled then."""
    server = SandboxServer(client, lambda _context: binding, version("sandboxd"))
    # Nothing else may write to stdout: it carries the protocol.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with out:
        stdin = anyio.wrap_file(_RepairedLines(sys.stdin.buffer, encoding="utf-8", errors="replace"))
        async with stdio_server(stdin, anyio.wrap_file(out)) as (read, write):
            await server.run(read, write, server.create_initialization_options(NotificationOptions()))


class _RepairedLines(TextIOWrapper):
    """Text whose lines can be parsed as messages."""

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # by position, as in its base class
        return repair(super().readline(size).encode()).decode()
