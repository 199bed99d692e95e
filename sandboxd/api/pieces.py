"""Large answers, rendered and sent in bounded pieces, with backpressure from slow readers.

The event loop runs between pieces. A piece is rendered only once the previous one is sent, so an answer needs little
memory besides the value it is rendered from. Small answers are sent whole elsewhere.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import anyio
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sandboxd.api.budget import SMALL_BYTES, Allotment

PIECE_BYTES = 20_481
"""The size of a piece before rendering, a multiple of three for base64. As JSON it grows up to sixfold, which the C
library still takes from its heap: fresh pages from the system for every piece would cost more than rendering it."""
STALL_S = 60.0
"""A client that reads nothing for this long is disconnected: its answer holds memory that other calls need."""

_OBJECT_WEIGHT = 4
"""A value from a store takes about this many times the memory of its JSON."""
_JSON = "application/json"


class Pieces(Response):
    """A response sent in pieces. Its length is unknown in advance unless the headers state it."""

    def __init__(
        self,
        pieces: Iterator[bytes],
        allotment: Allotment,
        status: int = 200,
        media_type: str | None = _JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = status  # like Starlette's own streams: no `body`, which would fix content-length
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)
        self._pieces = pieces
        self._allotment = allotment

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            with anyio.fail_after(STALL_S):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await self._allotment.turn()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def object_answer(
    fields: dict[str, Any],
    texts: dict[str, str | bytes],
    allotment: Allotment,
    *,
    is_base64: bool = False,
    status: int = 200,
    media_type: str = _JSON,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Answer with an object whose last members are texts, in pieces if they are large.

    The texts are taken out of the dict as they are sent, so that only the caller's copies remain.
    """
    if sum(map(len, texts.values())) <= SMALL_BYTES:
        whole = {**fields, **{name: _whole(text, is_base64) for name, text in texts.items()}}
        return Response(to_json(whole), status, headers, media_type)
    return Pieces(_object(fields, texts, is_base64), allotment, status, media_type, headers)


def text_answer(text: str, allotment: Allotment, headers: Mapping[str, str]) -> Response:
    """Answer with the text itself. Its memory is reserved from here on; raise Busy if too little is free."""
    encoded = text.encode()
    if len(encoded) <= SMALL_BYTES:
        return Response(encoded, headers=headers)
    allotment.take(len(encoded))
    return bytes_answer(encoded, allotment, headers)


def bytes_answer(content: bytes, allotment: Allotment, headers: Mapping[str, str]) -> Response:
    media_type = headers.get("content-type", "application/octet-stream")
    return Pieces(slices(content), allotment, 200, media_type, {**headers, "content-length": str(len(content))})


async def list_answer(
    items: Iterable[object], allotment: Allotment, *, member: str = "items", **members: Any
) -> Response:
    """Answer with a list and other members. Memory is reserved while rendering; raise Busy if too little is free."""
    rendered: list[bytes] = []
    size = unseen = 0
    for item in items:
        part = to_json(item)
        rendered.append(part)
        size += len(part) + 1
        unseen += len(part) + 1
        if unseen > SMALL_BYTES:
            allotment.take(_OBJECT_WEIGHT * unseen)
            unseen = 0
            await allotment.turn()
    tail = b"]" + b"".join(b"," + to_json(name) + b":" + to_json(value) for name, value in members.items()) + b"}"
    head = b"{" + to_json(member) + b":["
    if size <= SMALL_BYTES:
        return Response(head + b",".join(rendered) + tail, media_type=_JSON)
    allotment.shrink(size)
    return Pieces(_list(head, rendered, tail), allotment)


def slices(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]


def _whole(text: str | bytes, is_base64: bool) -> str:
    if isinstance(text, str):
        return text
    return base64.b64encode(text).decode("ascii") if is_base64 else text.decode("utf-8", "replace")


def _object(fields: dict[str, Any], texts: dict[str, str | bytes], is_base64: bool) -> Iterator[bytes]:
    start = to_json(fields)[:-1]
    separator = b"," if fields else b""
    for name in list(texts):
        yield start + separator + to_json(name) + b':"'
        start, separator = b'"', b","
        yield from string_pieces(texts.pop(name), is_base64)
    yield start + b"}"


def string_pieces(text: str | bytes, is_base64: bool) -> Iterator[bytes]:
    """Yield the contents of a JSON string, without its quotes."""
    if isinstance(text, str):
        for start in range(0, len(text), PIECE_BYTES):
            yield to_json(text[start : start + PIECE_BYTES])[1:-1]
    elif is_base64:
        for piece in slices(text):
            yield base64.b64encode(piece)
    else:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for piece in slices(text):
            yield to_json(decoder.decode(piece))[1:-1]
        yield to_json(decoder.decode(b"", final=True))[1:-1]


def _list(head: bytes, rendered: list[bytes], tail: bytes) -> Iterator[bytes]:
    """Yield a JSON list, small items together and large ones in slices; drop each item once it is sent."""
    batch = bytearray(head)
    for index, item in enumerate(rendered):
        rendered[index] = b""
        if index:
            batch += b","
        batch += item
        if len(batch) >= PIECE_BYTES:
            yield from slices(bytes(batch))
            batch.clear()
    yield bytes(batch) + tail
