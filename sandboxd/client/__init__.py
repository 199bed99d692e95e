"""The SDK: `Client` for synchronous code, `AsyncClient` for async code. Both raise the daemon's own errors.

Neither starts a daemon or keeps anything on disk. Each half is imported on first use, so that the command line does
not load the async one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandboxd.client.errors import AnswerLost, DaemonUnreachable, WriteIncomplete
from sandboxd.client.results import (
    Artifact,
    Compaction,
    Consolidated,
    ConsolidationFailure,
    ConsolidationState,
    Document,
    DocumentInfo,
    Event,
    ExecOutput,
    ExecResult,
    FileInfo,
    MirrorFile,
    Process,
    ProcessOutput,
    Revision,
    Sandbox,
    Session,
    ShortenedMessages,
    ToolDescription,
    ToolResult,
    Written,
)

if TYPE_CHECKING:
    from sandboxd.client.asynchronous import AsyncClient
    from sandboxd.client.synchronous import Client

__all__ = [
    "AnswerLost",
    "Artifact",
    "AsyncClient",
    "Client",
    "Compaction",
    "Consolidated",
    "ConsolidationFailure",
    "ConsolidationState",
    "DaemonUnreachable",
    "Document",
    "DocumentInfo",
    "Event",
    "ExecOutput",
    "ExecResult",
    "FileInfo",
    "MirrorFile",
    "Process",
    "ProcessOutput",
    "Revision",
    "Sandbox",
    "Session",
    "ShortenedMessages",
    "ToolDescription",
    "ToolResult",
    "WriteIncomplete",
    "Written",
]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from sandboxd.client.synchronous import Client

        return Client
    if name == "AsyncClient":
        from sandboxd.client.asynchronous import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
