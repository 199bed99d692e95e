"""Clients of the MCP server, made with the SDK: over stdio, with a process of their own, and over HTTP."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import urlencode

import httpx2
import mcp_types as types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

Door = Literal["stdio", "http"]
DOORS: tuple[Door, ...] = ("stdio", "http")
ERAS = ("legacy", "2026-07-28")
"""Connections that begin with a handshake, and requests that each stand alone."""


@asynccontextmanager
async def connect(
    door: Door,
    url: str,
    token: str,
    *,
    era: str = "legacy",
    switches: tuple[str, ...] = (),
    client_options: Mapping[str, Any] | None = None,
    tenant: str | None = None,
    session: str | None = None,
    user: str | None = None,
) -> AsyncIterator[Client]:
    """Connect to the daemon at this URL. `switches` are read_only, manage and, with stdio, rm."""
    binding = {
        name: value for name, value in {"tenant": tenant, "session": session, "user": user}.items() if value is not None
    }
    options = {"mode": era, "client_info": types.Implementation(name="tests", version="1"), **(client_options or {})}
    if door == "stdio":
        words = [word for name, value in binding.items() for word in (f"--{name}", value)]
        words += [{"read_only": "--read-only", "manage": "--allow-manage", "rm": "--rm"}[name] for name in switches]
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "sandboxd", "mcp", "--url", url, *words],
            env={"SANDBOXD_TOKEN": token},
        )
        async with Client(server, **options) as client:
            yield client
        return
    query = urlencode({**binding, **dict.fromkeys(switches, "true")})
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp?{query}", http_client=http), **options) as client,
    ):
        yield client


def text_of(result: types.CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, types.TextContent)
    return content.text


def details_of(result: types.CallToolResult) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (result.meta or {}).get("sandboxd/details", {})
    return found
