"""`AsyncClient`: every call of the API as one method."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from sandboxd.client._async.artifacts import AsyncArtifactCalls
from sandboxd.client._async.commands import AsyncCommandCalls
from sandboxd.client._async.consolidation import AsyncConsolidationCalls
from sandboxd.client._async.contexts import AsyncContextCalls
from sandboxd.client._async.daemon import AsyncDaemonCalls
from sandboxd.client._async.documents import AsyncDocumentCalls
from sandboxd.client._async.egress import AsyncEgressCalls
from sandboxd.client._async.files import AsyncFileCalls
from sandboxd.client._async.mirrors import AsyncMirrorCalls
from sandboxd.client._async.ports import AsyncPortCalls
from sandboxd.client._async.sandboxes import AsyncSandboxCalls
from sandboxd.client._async.sessions import AsyncSessionCalls
from sandboxd.client._async.snapshots import AsyncSnapshotCalls
from sandboxd.client._async.tool_streams import AsyncToolStreamCalls
from sandboxd.client._async.tools import AsyncToolCalls
from sandboxd.client._async.traces import AsyncOrchestrationCalls, AsyncTraceCalls
from sandboxd.client.address import find_address
from sandboxd.client.async_transport import AsyncTransport


class AsyncClient(
    AsyncDaemonCalls,
    AsyncSandboxCalls,
    AsyncSnapshotCalls,
    AsyncCommandCalls,
    AsyncContextCalls,
    AsyncPortCalls,
    AsyncEgressCalls,
    AsyncFileCalls,
    AsyncToolCalls,
    AsyncToolStreamCalls,
    AsyncDocumentCalls,
    AsyncArtifactCalls,
    AsyncMirrorCalls,
    AsyncSessionCalls,
    AsyncConsolidationCalls,
    AsyncTraceCalls,
):
    """`async with AsyncClient() as client:` finds the daemon; `socket`, or `url` and `token`, set its address.

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
        super().__init__(AsyncTransport(find_address(socket, url, token)), tenant)
        self.orchestration = AsyncOrchestrationCalls(self._transport, tenant)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()
