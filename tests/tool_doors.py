"""The ways in which a model's tool call reaches a sandbox: raw HTTP, both clients, and the command line."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio

from sandboxd.client import AsyncClient, Client
from sandboxd.models.tool import ToolResult

HANG_S = 60

Door = Callable[[Path, str, str, Mapping[str, Any]], ToolResult]
"""Takes the daemon's socket, a session, a tool and its arguments."""


def post(daemon: Path, target: str, body: bytes) -> tuple[int, bytes]:
    """Send JSON as it is; return the status and the answer."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(HANG_S)
        connected.connect(str(daemon))
        connection = http.client.HTTPConnection("localhost")
        connection.sock = connected
        connection.request("POST", target, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()


def call_over_http(daemon: Path, session: str, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
    target = f"/v1/tenants/default/sessions/{session}/tools/{tool}"
    status, body = post(daemon, target, json.dumps(arguments).encode())
    assert status == 200, body
    answer = json.loads(body)
    assert set(answer) == {"ok", "content", "details"}
    return ToolResult.model_validate(answer)


def call_by_client(daemon: Path, session: str, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
    with Client(daemon) as client:
        return client.tool(session, tool, arguments)


def call_by_async_client(daemon: Path, session: str, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
    async def call() -> ToolResult:
        async with AsyncClient(daemon) as client:
            return await client.tool(session, tool, arguments)

    return anyio.run(call)


def call_by_command(daemon: Path, session: str, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
    done = subprocess.run(
        [sys.executable, "-m", "sandboxd", "tool", session, tool, "-", "--json"],
        input=json.dumps(arguments).encode(),
        capture_output=True,
        env={**os.environ, "SANDBOXD_SOCKET": str(daemon)},
        timeout=HANG_S,
        check=False,
    )
    assert done.stderr == b""
    result = ToolResult.model_validate_json(done.stdout)
    assert done.returncode == (0 if result.ok else 1)
    return result


DOORS: dict[str, Door] = {
    "HTTP": call_over_http,
    "client": call_by_client,
    "async client": call_by_async_client,
    "command line": call_by_command,
}
