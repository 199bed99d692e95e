"""The SDK: `Sandbox` and `Client` for synchronous code, `AsyncSandbox` and `AsyncClient` for async code.

A `Client` has every call of the API as a method; a `Sandbox` has the calls on one sandbox, grouped by subject. All
raise the daemon's own errors. None of them starts a daemon or keeps anything on disk. Names are imported on first use,
so that the command line loads neither the async half nor a model that it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sandboxd.client.errors import AnswerLost, DaemonUnreachable, WriteIncomplete

if TYPE_CHECKING:
    from sandboxd.client._async.client import AsyncClient
    from sandboxd.client._async.ports import AsyncTunnel
    from sandboxd.client._async.processes import AsyncCommandHandle, AsyncTerminal
    from sandboxd.client._async.sandbox import AsyncSandbox
    from sandboxd.client._sync.client import Client
    from sandboxd.client._sync.ports import Tunnel
    from sandboxd.client._sync.processes import CommandHandle, Terminal
    from sandboxd.client._sync.sandbox import Sandbox
    from sandboxd.client.async_forwarder import AsyncForwarder
    from sandboxd.client.forwarder import Forwarder
    from sandboxd.client.host_tree import Copied
    from sandboxd.models.artifact import Artifact
    from sandboxd.models.command import ExecOutput, ExecResult
    from sandboxd.models.consolidation import Consolidated, ConsolidationFailure, ConsolidationState
    from sandboxd.models.context import Context, RunOutcome, RunOutput, RunResult
    from sandboxd.models.document import Document, DocumentInfo, Revision, Written
    from sandboxd.models.event import Event
    from sandboxd.models.files import ArchiveSummary, FileEvent, FileInfo
    from sandboxd.models.fork import ForkView
    from sandboxd.models.message import Compaction, ShortenedMessages
    from sandboxd.models.mirror import MirrorFile, RefusedWrite
    from sandboxd.models.network import ListeningPort, Preview
    from sandboxd.models.process import Process, ProcessOutput
    from sandboxd.models.sandbox import SandboxView, Stats
    from sandboxd.models.session import Session
    from sandboxd.models.snapshot import SnapshotProgress, SnapshotView
    from sandboxd.models.tool import ToolDescription, ToolResult

_HOMES = {
    "client._async.client": ("AsyncClient",),
    "client._async.ports": ("AsyncTunnel",),
    "client._async.processes": ("AsyncCommandHandle", "AsyncTerminal"),
    "client._async.sandbox": ("AsyncSandbox",),
    "client._sync.client": ("Client",),
    "client._sync.ports": ("Tunnel",),
    "client._sync.processes": ("CommandHandle", "Terminal"),
    "client._sync.sandbox": ("Sandbox",),
    "client.async_forwarder": ("AsyncForwarder",),
    "client.forwarder": ("Forwarder",),
    "client.host_tree": ("Copied",),
    "models.artifact": ("Artifact",),
    "models.command": ("ExecOutput", "ExecResult"),
    "models.consolidation": ("Consolidated", "ConsolidationFailure", "ConsolidationState"),
    "models.context": ("Context", "RunOutcome", "RunOutput", "RunResult"),
    "models.document": ("Document", "DocumentInfo", "Revision", "Written"),
    "models.event": ("Event",),
    "models.files": ("ArchiveSummary", "FileEvent", "FileInfo"),
    "models.fork": ("ForkView",),
    "models.message": ("Compaction", "ShortenedMessages"),
    "models.mirror": ("MirrorFile", "RefusedWrite"),
    "models.network": ("ListeningPort", "Preview"),
    "models.process": ("Process", "ProcessOutput"),
    "models.sandbox": ("SandboxView", "Stats"),
    "models.session": ("Session",),
    "models.snapshot": ("SnapshotProgress", "SnapshotView"),
    "models.tool": ("ToolDescription", "ToolResult"),
}

__all__ = [
    "AnswerLost",
    "ArchiveSummary",
    "Artifact",
    "AsyncClient",
    "AsyncCommandHandle",
    "AsyncForwarder",
    "AsyncSandbox",
    "AsyncTerminal",
    "AsyncTunnel",
    "Client",
    "CommandHandle",
    "Compaction",
    "Consolidated",
    "ConsolidationFailure",
    "ConsolidationState",
    "Context",
    "Copied",
    "DaemonUnreachable",
    "Document",
    "DocumentInfo",
    "Event",
    "ExecOutput",
    "ExecResult",
    "FileEvent",
    "FileInfo",
    "ForkView",
    "Forwarder",
    "ListeningPort",
    "MirrorFile",
    "Preview",
    "Process",
    "ProcessOutput",
    "RefusedWrite",
    "Revision",
    "RunOutcome",
    "RunOutput",
    "RunResult",
    "Sandbox",
    "SandboxView",
    "Session",
    "ShortenedMessages",
    "SnapshotProgress",
    "SnapshotView",
    "Stats",
    "Terminal",
    "ToolDescription",
    "ToolResult",
    "Tunnel",
    "WriteIncomplete",
    "Written",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"sandboxd.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
