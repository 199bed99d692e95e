"""The SDK: `Client` for ordinary code, `AsyncClient` for async code. Both raise the daemon's own errors.

Neither starts a daemon or keeps anything on disk. What they import is loaded when it is first asked for, because
a command line that runs one command must not wait for the async half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandboxd.client.errors import AnswerLost, DaemonUnreachable
from sandboxd.client.results import (
    Event,
    ExecOutput,
    ExecResult,
    FileInfo,
    Process,
    ProcessOutput,
    Sandbox,
    ToolDescription,
    ToolResult,
)

if TYPE_CHECKING:
    from sandboxd.client.asynchronous import AsyncClient
    from sandboxd.client.synchronous import Client

__all__ = [
    "AnswerLost",
    "AsyncClient",
    "Client",
    "DaemonUnreachable",
    "Event",
    "ExecOutput",
    "ExecResult",
    "FileInfo",
    "Process",
    "ProcessOutput",
    "Sandbox",
    "ToolDescription",
    "ToolResult",
]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from sandboxd.client.synchronous import Client

        return Client
    if name == "AsyncClient":
        from sandboxd.client.asynchronous import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
