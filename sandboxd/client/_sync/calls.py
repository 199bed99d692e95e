# Generated from sandboxd/client/_async/calls.py by scripts/unasync.py; change that file and run `make client`.
"""The base of every group of calls: it sends requests, reads answers and raises the daemon's errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from sandboxd.client.errors import malformed_answers, raise_problem
from sandboxd.client.request import Answer, Request, session_path, tenant_path
from sandboxd.client.sse import EventReader
from sandboxd.client.transport import Transport
from sandboxd.models.wire import AnswerModel

M = TypeVar("M", bound=AnswerModel)
C = TypeVar("C", bound="Calls")

MAX_PROBLEM_BYTES = 67_108_864
"""The largest error that is read; a conflict contains a whole document."""


class Calls:
    tenant: str
    """The tenant of every call that does not name another."""

    def __init__(self, transport: Transport, tenant: str) -> None:
        self.tenant = tenant
        self._transport = transport

    def _tenant_path(self, tenant: str | None) -> str:
        return tenant_path(tenant or self.tenant)

    def _session_path(self, session: str, tenant: str | None) -> str:
        return session_path(tenant or self.tenant, session)

    def _send(self, request: Request, stream: Iterable[bytes] | None = None) -> Answer:
        answer = self._transport.send(request, stream)
        if answer.status >= 400:
            raise_problem(answer.status, answer.body)
        return answer

    def _ask(self, model: type[M], request: Request, stream: Iterable[bytes] | None = None) -> M:
        body = (self._send(request, stream)).body
        with malformed_answers():
            return model.model_validate_json(body)

    def _ask_json(self, request: Request) -> Any:
        body = (self._send(request)).body
        with malformed_answers():
            return json.loads(body)

    def _ask_text(self, request: Request) -> str:
        body = (self._send(request)).body
        with malformed_answers():
            return body.decode()

    @contextmanager
    def _stream(self, request: Request, stream: Iterable[bytes] | None = None) -> Iterator[Iterator[bytes]]:
        with self._transport.stream(request, stream) as (status, pieces):
            if status >= 400:
                problem = bytearray()
                for piece in pieces:
                    problem += piece
                    if len(problem) > MAX_PROBLEM_BYTES:
                        break
                raise_problem(status, bytes(problem))
            yield pieces

    @contextmanager
    def _events(self, request: Request, stream: Iterable[bytes] | None = None) -> Iterator[Iterator[tuple[str, str]]]:
        with self._stream(request, stream) as pieces:
            reader = EventReader()
            yield (event for piece in pieces for event in _feed(reader, piece))


def _feed(reader: EventReader, piece: bytes) -> list[tuple[str, str]]:
    with malformed_answers():
        return reader.feed(piece)


class SandboxPart(Generic[C]):
    """A part of a `Sandbox`: a group of calls, always on the same session."""

    def __init__(self, calls: C, session: str, tenant: str) -> None:
        self._calls = calls
        self._session = session
        self._tenant = tenant
