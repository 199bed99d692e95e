"""The base of every group of calls: it sends requests, reads answers and raises the daemon's errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from sandboxd.client.async_transport import AsyncTransport
from sandboxd.client.errors import malformed_answers, raise_problem
from sandboxd.client.request import Answer, Request, session_path, tenant_path
from sandboxd.client.sse import EventReader
from sandboxd.models.wire import AnswerModel

M = TypeVar("M", bound=AnswerModel)
C = TypeVar("C", bound="AsyncCalls")

MAX_PROBLEM_BYTES = 67_108_864
"""The largest error that is read; a conflict contains a whole document."""


class AsyncCalls:
    tenant: str
    """The tenant of every call that does not name another."""

    def __init__(self, transport: AsyncTransport, tenant: str) -> None:
        self.tenant = tenant
        self._transport = transport

    def _tenant_path(self, tenant: str | None) -> str:
        return tenant_path(tenant or self.tenant)

    def _session_path(self, session: str, tenant: str | None) -> str:
        return session_path(tenant or self.tenant, session)

    async def _send(self, request: Request, stream: AsyncIterable[bytes] | None = None) -> Answer:
        answer = await self._transport.send(request, stream)
        if answer.status >= 400:
            raise_problem(answer.status, answer.body)
        return answer

    async def _ask(self, model: type[M], request: Request, stream: AsyncIterable[bytes] | None = None) -> M:
        body = (await self._send(request, stream)).body
        with malformed_answers():
            return model.model_validate_json(body)

    async def _ask_json(self, request: Request) -> Any:
        body = (await self._send(request)).body
        with malformed_answers():
            return json.loads(body)

    async def _ask_text(self, request: Request) -> str:
        body = (await self._send(request)).body
        with malformed_answers():
            return body.decode()

    @asynccontextmanager
    async def _stream(
        self, request: Request, stream: AsyncIterable[bytes] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._transport.stream(request, stream) as (status, pieces):
            if status >= 400:
                problem = bytearray()
                async for piece in pieces:
                    problem += piece
                    if len(problem) > MAX_PROBLEM_BYTES:
                        break
                raise_problem(status, bytes(problem))
            yield pieces

    @asynccontextmanager
    async def _events(
        self, request: Request, stream: AsyncIterable[bytes] | None = None
    ) -> AsyncIterator[AsyncIterator[tuple[str, str]]]:
        async with self._stream(request, stream) as pieces:
            reader = EventReader()
            yield (event async for piece in pieces for event in _feed(reader, piece))


def _feed(reader: EventReader, piece: bytes) -> list[tuple[str, str]]:
    with malformed_answers():
        return reader.feed(piece)


class AsyncSandboxPart(Generic[C]):
    """A part of a `Sandbox`: a group of calls, always on the same session."""

    def __init__(self, calls: C, session: str, tenant: str) -> None:
        self._calls = calls
        self._session = session
        self._tenant = tenant
