"""Connections of the async client: aiohttp over a unix socket or TCP, kept alive and shared by tasks.

aiohttp, because its round trip costs a third of what other async clients take. It needs an asyncio event loop.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from yarl import URL

from sandboxd.client.address import Address
from sandboxd.client.calls import Answer, Call
from sandboxd.client.errors import AnswerLost, DaemonUnreachable

_MAX_CONNECTIONS = 512
_LARGE_BYTES = 262_144

Body = bytes | AsyncIterable[bytes] | None


class AsyncTransport:
    """Owns the connections. Made when it is first used, because aiohttp wants to be made inside its event loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._session: aiohttp.ClientSession | None = None

    async def send(self, call: Call[Any], body: Body = None) -> Answer:
        """Send a call and return its whole answer. A safe call whose connection broke is sent once more."""
        content = call.body if body is None else body
        may_repeat = call.is_safe and (content is None or isinstance(content, bytes))
        while True:
            try:
                async with self._request(call, content) as response:
                    return Answer(response.status, await response.read(), response.headers)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if not may_repeat:
                    raise self._translate(error, call) from error
                may_repeat = False
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._translate(error, call) from error

    @asynccontextmanager
    async def stream(self, call: Call[Any]) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """Send a call and read its answer piece by piece. Leaving early closes the connection."""
        try:
            async with self._request(call, call.body) as response:
                yield response.status, response.content.iter_any()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._translate(error, call) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _request(self, call: Call[Any], body: Body) -> aiohttp.client._RequestContextManager:
        if self._session is None:
            self._session = self._open()
        timeout = aiohttp.ClientTimeout(sock_read=call.timeout_s)
        url = URL(self.address.base + call.target, encoded=True)
        # aiohttp sends a large body in pieces only when it can read it like a file.
        data = io.BytesIO(body) if isinstance(body, bytes) and len(body) > _LARGE_BYTES else body
        return self._session.request(
            call.method, url, data=data, headers=call.headers, timeout=timeout, allow_redirects=False
        )

    def _open(self) -> aiohttp.ClientSession:
        address = self.address
        connector: aiohttp.BaseConnector = (
            aiohttp.UnixConnector(str(address.socket), limit=_MAX_CONNECTIONS)
            if address.socket is not None
            else aiohttp.TCPConnector(limit=_MAX_CONNECTIONS)
        )
        headers = {} if address.token is None else {"authorization": f"Bearer {address.token}"}
        return aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("user-agent", "accept-encoding"),
        )

    def _translate(self, error: Exception, call: Call[Any]) -> DaemonUnreachable:
        if isinstance(error, aiohttp.ClientConnectorError):
            return DaemonUnreachable(f"cannot reach the daemon at {self.address}: {error.os_error.strerror or error}")
        if isinstance(error, TimeoutError):
            return AnswerLost(f"cannot wait longer: no answer within {call.timeout_s} s")
        return AnswerLost(f"cannot tell the outcome: the connection to {self.address} was lost ({error})")
