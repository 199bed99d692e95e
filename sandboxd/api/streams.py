"""Streamed answers: raw bytes and server-sent events.

A source first yields the head of the answer, so an error before that is still answered with a problem.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandboxd.api.watch import DisconnectWatch

EVENT_STREAM = "text/event-stream; charset=utf-8"
KEEP_ALIVE = b": still here\n\n"
KEEP_ALIVE_S = 15.0


@dataclass(frozen=True, slots=True)
class Head:
    media_type: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


EVENTS_HEAD = Head(EVENT_STREAM, headers={"cache-control": "no-store"})

Source = AsyncGenerator[Head | bytes, None]


class Streamed(Response):
    """A response whose source runs while it is sent, and is cancelled when the client disconnects."""

    def __init__(self, source: Source, watch: DisconnectWatch, receive: Receive | None = None) -> None:
        """`receive` reports a disconnect, for a source that still reads the request's body."""
        super().__init__()
        self._source = source
        self._watch = watch
        self._receive = receive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._watch.guard(self._receive or receive):
            async with aclosing(self._source):
                head = await anext(self._source)
                assert isinstance(head, Head)  # noqa: S101  # the contract of a source
                headers = [(b"content-type", head.media_type.encode())]
                headers += [(name.encode(), value.encode("latin-1")) for name, value in head.headers.items()]
                await send({"type": "http.response.start", "status": head.status, "headers": headers})
                async for piece in self._source:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def sse(event: str, content: Any, number: int | None = None) -> bytes:
    """Return one server-sent event with its data as one line of JSON."""
    prefix = b"" if number is None else b"id: %d\n" % number
    return prefix + b"event: " + event.encode() + b"\ndata: " + to_json(content) + b"\n\n"
