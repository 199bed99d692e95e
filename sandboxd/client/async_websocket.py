"""A WebSocket of the async client: messages in and out, on aiohttp's implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
from yarl import URL

from sandboxd.client.address import Address
from sandboxd.client.errors import DaemonUnreachable, raise_problem
from sandboxd.client.request import SOCKET_SILENT_S, socket_lost, socket_refused

CLOSE_S = 2.0


class AsyncClientSocket:
    """One open WebSocket. One task may receive while others send."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        address: Address,
        on_close: Callable[[AsyncClientSocket], None],
    ) -> None:
        self._socket = socket
        self._address = address
        self._on_close = on_close

    async def receive(self) -> str | bytes:
        """Return the next message; raise AnswerLost once the socket is closed, whoever closed it."""
        try:
            message = await self._socket.receive(SOCKET_SILENT_S)
        except TimeoutError as error:
            raise socket_lost(self._address, "it is silent") from error
        if message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
            content: str | bytes = message.data
            return content
        raise socket_lost(self._address, _reason(self._socket))

    async def send(self, message: str | bytes) -> None:
        """Send a message; raise DaemonUnreachable if the socket is closed, so that nothing was sent."""
        try:
            if isinstance(message, str):
                await self._socket.send_str(message)
            else:
                await self._socket.send_bytes(message)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise socket_refused(self._address, str(error)) from error

    async def close(self) -> None:
        """Say goodbye, and wait a moment for the daemon to have read everything that was sent before."""
        try:
            await self._socket.close()
        finally:
            self._on_close(self)


async def async_open_socket(
    session: aiohttp.ClientSession,
    address: Address,
    target: str,
    headers: dict[str, str],
    timeout_s: float,
    on_close: Callable[[AsyncClientSocket], None],
) -> AsyncClientSocket:
    """Open a WebSocket; raise the daemon's error if it refuses. The session must have `raise_refusals`."""
    try:
        async with asyncio.timeout(timeout_s):
            socket = await session.ws_connect(
                URL(address.url + target, encoded=True),
                headers=headers,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
            )
    except TimeoutError as error:
        raise socket_lost(address, f"no answer within {timeout_s:g} s") from error
    except aiohttp.ClientConnectorError as error:
        reason = error.strerror or str(error.os_error)
        raise DaemonUnreachable(f"cannot reach the daemon at {address}: {reason}") from error.os_error
    except aiohttp.ClientError as error:
        raise socket_lost(address, str(error)) from error
    return AsyncClientSocket(socket, address, on_close)


async def raise_refusals(response: aiohttp.ClientResponse) -> None:
    """Raise the daemon's error: aiohttp's own has no body."""
    if response.status >= 400:
        raise_problem(response.status, await response.read())


def _reason(socket: aiohttp.ClientWebSocketResponse) -> str:
    return "it was closed" if socket.close_code is None else f"it was closed with code {socket.close_code}"
