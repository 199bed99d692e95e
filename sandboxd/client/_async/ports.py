"""Ports of a sandbox: what listens inside, connections to it, local ports that lead there, and preview URLs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sandboxd.client._async.calls import AsyncCalls, AsyncSandboxPart
from sandboxd.client.async_forwarder import AsyncForwarder
from sandboxd.client.errors import AnswerLost, malformed_answers, rebuild
from sandboxd.client.request import given, json_request
from sandboxd.client.streams import AsyncCallback
from sandboxd.models.network import ListeningPort, PortList, Preview

if TYPE_CHECKING:
    from sandboxd.client.async_websocket import AsyncClientSocket

PIECE_BYTES = 65_536
"""The largest message that the daemon accepts."""
_EOF = '{"type":"eof"}'


class AsyncTunnel:
    """One connection to a port in a sandbox. It may be received from and sent to at the same time."""

    def __init__(self, socket: AsyncClientSocket) -> None:
        self._socket = socket
        self._is_ended = False

    async def receive(self) -> bytes:
        """Return the next bytes; none once the server has ended. Raise the daemon's error if the connection broke."""
        while not self._is_ended:
            try:
                message = await self._socket.receive()
            except AnswerLost as error:
                raise AnswerLost(
                    "cannot receive from this port: the connection to the daemon was lost; connect again"
                ) from error
            if isinstance(message, bytes):
                if message:
                    return message
                continue
            with malformed_answers():
                fields = json.loads(message)
                kind = fields["type"]
            if kind == "error":
                raise rebuild(fields)
            self._is_ended = kind == "eof"
        return b""

    async def send(self, data: bytes) -> None:
        """Send bytes, and wait while the server does not read."""
        for start in range(0, len(data), PIECE_BYTES):
            await self._socket.send(data[start : start + PIECE_BYTES])

    async def send_eof(self) -> None:
        """Tell the server that nothing more follows. It may still send."""
        await self._socket.send(_EOF)

    async def keep_alive(self) -> None:
        """Tell the daemon that this end still exists, while it does not receive for a long time."""
        await self._socket.send(b"")

    async def close(self) -> None:
        await self._socket.close()


class AsyncPortCalls(AsyncCalls):
    async def list_ports(self, session: str, *, tenant: str | None = None) -> list[ListeningPort]:
        """Return the TCP ports that processes in the sandbox listen on."""
        request = json_request("GET", f"{self._session_path(session, tenant)}/ports")
        return (await self._ask(PortList, request)).items

    async def create_preview(
        self,
        session: str,
        port: int,
        *,
        ttl_s: float | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Preview:
        """Make a URL that shows the port in a browser, without a token, until it expires."""
        target = f"{self._session_path(session, tenant)}/ports/{port:d}/preview"
        return await self._ask(Preview, json_request("POST", target, given(ttl_s=ttl_s), key=idempotency_key))

    async def open_tunnel(self, session: str, port: int, *, tenant: str | None = None) -> AsyncTunnel:
        """Connect to a TCP port in the sandbox; raise `NothingListens` if no process listens there."""
        target = f"{self._session_path(session, tenant)}/tunnels/{port:d}"
        return AsyncTunnel(await self._transport.open_socket(target))

    def forward_port(
        self,
        session: str,
        port: int,
        local_port: int = 0,
        *,
        on_failure: AsyncCallback[Exception] | None = None,
        tenant: str | None = None,
    ) -> AsyncForwarder:
        """Make a port of 127.0.0.1 lead to a port in the sandbox, within a `with` block.

        Without `local_port` the kernel chooses one. `on_failure` gets the error of each connection that fails.
        """

        async def connect() -> AsyncTunnel:
            return await self.open_tunnel(session, port, tenant=tenant)

        return AsyncForwarder(connect, local_port, on_failure)


class AsyncSandboxPorts(AsyncSandboxPart[AsyncPortCalls]):
    """`sandbox.ports`: servers in the sandbox."""

    async def list(self) -> list[ListeningPort]:
        """Return the TCP ports that processes in the sandbox listen on."""
        return await self._calls.list_ports(self._session, tenant=self._tenant)

    async def connect(self, port: int) -> AsyncTunnel:
        """Connect to a TCP port in the sandbox; raise `NothingListens` if no process listens there."""
        return await self._calls.open_tunnel(self._session, port, tenant=self._tenant)

    def forward(
        self, port: int, local_port: int = 0, *, on_failure: AsyncCallback[Exception] | None = None
    ) -> AsyncForwarder:
        """Make a port of 127.0.0.1 lead to a port in the sandbox, within a `with` block; see its `url`."""
        return self._calls.forward_port(self._session, port, local_port, on_failure=on_failure, tenant=self._tenant)

    async def preview(self, port: int, *, ttl_s: float | None = None) -> Preview:
        """Make a URL that shows the port in a browser, without a token, until it expires."""
        return await self._calls.create_preview(self._session, port, ttl_s=ttl_s, tenant=self._tenant)
