# Generated from sandboxd/client/_async/client.py by scripts/unasync.py; change that file and run `make client`.
"""`Client`: every call of the API as one method."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from sandboxd.client._sync.artifacts import ArtifactCalls
from sandboxd.client._sync.commands import CommandCalls
from sandboxd.client._sync.consolidation import ConsolidationCalls
from sandboxd.client._sync.contexts import ContextCalls
from sandboxd.client._sync.daemon import DaemonCalls
from sandboxd.client._sync.documents import DocumentCalls
from sandboxd.client._sync.egress import EgressCalls
from sandboxd.client._sync.files import FileCalls
from sandboxd.client._sync.mirrors import MirrorCalls
from sandboxd.client._sync.ports import PortCalls
from sandboxd.client._sync.sandboxes import SandboxCalls
from sandboxd.client._sync.sessions import SessionCalls
from sandboxd.client._sync.snapshots import SnapshotCalls
from sandboxd.client._sync.tool_streams import ToolStreamCalls
from sandboxd.client._sync.tools import ToolCalls
from sandboxd.client._sync.traces import OrchestrationCalls, TraceCalls
from sandboxd.client.address import find_address
from sandboxd.client.transport import Transport


class Client(
    DaemonCalls,
    SandboxCalls,
    SnapshotCalls,
    CommandCalls,
    ContextCalls,
    PortCalls,
    EgressCalls,
    FileCalls,
    ToolCalls,
    ToolStreamCalls,
    DocumentCalls,
    ArtifactCalls,
    MirrorCalls,
    SessionCalls,
    ConsolidationCalls,
    TraceCalls,
):
    """`with Client() as client:` finds the daemon; `socket`, or `url` and `token`, set its address.

    One client may be shared by concurrent callers, and reuses its connections.
    """

    def __init__(
        self,
        socket: Path | str | None = None,
        *,
        url: str | None = None,
        token: str | None = None,
        tenant: str = "default",
    ) -> None:
        super().__init__(Transport(find_address(socket, url, token)), tenant)
        self.orchestration = OrchestrationCalls(self._transport, tenant)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()
