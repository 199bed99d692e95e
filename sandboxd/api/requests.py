"""Reading a request: bounded bodies, JSON into validated values, ids and query. Every refusal says what is wrong.

A body is read whole only once its size is known to be within the bound.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from typing import Self, TypeVar, get_origin
from urllib.parse import parse_qsl

import anyio
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request
from starlette.types import Message

from memo.ids import SessionRef
from sandboxd.api.budget import SMALL_BYTES, allotment
from sandboxd.api.refusals import BodyTooLarge, ClientLeft, UnsupportedMediaType
from sandboxd.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)

MAX_JSON_BYTES = 1_048_576
MAX_STDIN_JSON_BYTES = 25_165_824
_NAMED_PROBLEMS = 3
_JSON_WEIGHT = 8
_CONTAINER_BYTES = 128
"""The most memory that parsed JSON takes, in bytes: per byte of its text, and per list or object."""
_JSON_MEDIA = ("application/json", "application/x-www-form-urlencoded")
"""The second is the default of `curl -d`. Requests from browsers never get here: see `guard`."""


def session_ref(request: Request) -> SessionRef:
    params = request.scope["path_params"]
    return SessionRef.of(params["tenant"], params["session"])


def header(request: Request, name: bytes) -> str | None:
    """Return a header's value from the raw list, which for few headers is cheaper than Starlette's mapping."""
    for key, value in request.scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


def last_event_id(request: Request) -> int | None:
    """Return the id of the last event that a client has seen, if it resumes a stream of events."""
    last = header(request, b"last-event-id")
    if last is None:
        return None
    if not (last.isascii() and last.isdecimal() and len(last) <= 19):
        raise InvalidRequest("cannot resume: Last-Event-ID must be the id of an event, a whole number")
    return int(last)


def wants_events(request: Request) -> bool:
    return "text/event-stream" in (header(request, b"accept") or "")


async def chunks(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the body in chunks, at most `limit` bytes in total."""
    _refuse_declared_size(request, limit)
    seen = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        body = message.get("body", b"")
        seen += len(body)
        if seen > limit:
            raise _too_large(limit)
        if body:
            yield body
        if not message.get("more_body", False):
            return


async def read_body(request: Request, limit: int) -> bytes:
    """Read a whole body. Memory for a large one is reserved first; raise Busy if too little is free."""
    declared = _refuse_declared_size(request, limit)
    memory = allotment(request)
    memory.take_large(declared)
    message = await request.receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body = bytes(message.get("body", b""))  # the usual case: one piece
        if len(body) > limit:
            raise _too_large(limit)
        return body
    if message["type"] == "http.disconnect":
        raise ClientLeft
    pieces = bytearray(message.get("body", b""))
    reserved = max(declared, SMALL_BYTES)
    async for piece in chunks(request, limit):
        pieces += piece
        if len(pieces) > limit:
            raise _too_large(limit)
        if len(pieces) > reserved:  # its size was not declared: double the reservation
            memory.take(len(pieces))
            reserved += len(pieces)
    return bytes(pieces)


async def read_json(request: Request, model: type[M], limit: int = MAX_JSON_BYTES) -> M:
    _refuse_other_media(request)
    return _validated(model, await read_body(request, limit))


class RestOfBody:
    """The rest of a body after its first line, read on demand and without a size limit.

    Not a generator: the iterating task may be cancelled at any point, which would leave a generator to close.
    """

    def __init__(self, request: Request, first: bytes, more: bool) -> None:
        self._request = request
        self._first = first
        self._more = more
        self._is_over = anyio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether the rest is known to be empty."""
        return not self._first and not self._more

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, b""
        while not first:
            if not self._more:
                self._is_over.set()
                raise StopAsyncIteration
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            first, self._more = message.get("body", b""), message.get("more_body", False)
        return first

    async def receive(self) -> Message:
        """Return the ASGI message after the body. For the disconnect watch, which must not consume the body."""
        await self._is_over.wait()
        return await self._request.receive()


async def read_json_line(request: Request, model: type[M], limit: int) -> tuple[M, RestOfBody]:
    """Read the JSON in the first line of a body; return its value and the rest of the body."""
    memory = allotment(request)
    line, reserved, more, newline, rest = bytearray(), SMALL_BYTES, True, b"", b""
    while more and not newline:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        more = message.get("more_body", False)
        begin, newline, rest = bytes(message.get("body", b"")).partition(b"\n")
        line += begin
        if len(line) > limit:
            raise BodyTooLarge(f"cannot accept this body: its first line is longer than {limit} bytes")
        if len(line) > reserved:
            memory.take(len(line))
            reserved += len(line)
    return _validated(model, bytes(line)), RestOfBody(request, rest, more)


async def read_json_objects(request: Request, model: type[M], limit: int) -> M:
    """Read a body of objects that are kept as given, and reserve the larger memory of parsed JSON."""
    return _validated(model, await read_json_bytes(request, limit))


async def read_json_bytes(request: Request, limit: int) -> bytes:
    """Read a body that is JSON of any shape, and reserve the memory that it takes once it is parsed."""
    _refuse_other_media(request)
    raw = await read_body(request, limit)
    if len(raw) > SMALL_BYTES:
        allotment(request).take(_JSON_WEIGHT * len(raw) + _CONTAINER_BYTES * (raw.count(b"{") + raw.count(b"[")))
    return raw


async def read_optional_json(request: Request, model: type[M], limit: int = MAX_JSON_BYTES) -> M:
    """Read an optional body: a missing one, whatever its media type, is an empty object."""
    raw = await read_body(request, limit)
    if raw:
        _refuse_other_media(request)
    return _validated(model, raw or b"{}")


def _validated(model: type[M], raw: bytes) -> M:
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise InvalidRequest(describe(error)) from None


def read_query(request: Request, model: type[M]) -> M:
    try:
        pairs = parse_qsl(
            request.scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20
        )
    except ValueError:  # also UnicodeDecodeError
        raise InvalidRequest("cannot read the query: it is not percent-encoded UTF-8 of at most 20 fields") from None
    lists: dict[str, list[str]] = {
        name: [value for key, value in pairs if key == name] for name in _list_fields(model) if name in dict(pairs)
    }
    single = [(name, value) for name, value in pairs if name not in lists]
    if len(dict(single)) != len(single):
        raise InvalidRequest("cannot read the query: a field is given twice")
    try:
        # Parsing from strings knows no lists; the usual conversion accepts the same strings.
        return model.model_validate({**dict(single), **lists}) if lists else model.model_validate_strings(dict(single))
    except ValidationError as error:
        raise InvalidRequest(describe(error)) from None


@cache
def _list_fields(model: type[BaseModel]) -> frozenset[str]:
    """Return the fields of a query that may be given several times."""
    fields = model.model_fields.items()
    return frozenset(name for name, field in fields if get_origin(field.annotation) is list)


def describe(error: ValidationError) -> str:
    """Return an error that names the invalid fields and why, without repeating what was sent."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    text = "; ".join(_describe_one(one) for one in problems[:_NAMED_PROBLEMS])
    if len(problems) > _NAMED_PROBLEMS:
        text += f"; and {len(problems) - _NAMED_PROBLEMS} more"
    return f"cannot use this request: {text}"


def _describe_one(one: ErrorDetails) -> str:
    where = ".".join(str(part) for part in one["loc"])[:100]
    message = one["msg"].removeprefix("Value error, ")[:300]
    message = message[:1].lower() + message[1:]
    return f"{where}: {message}" if where else message


def declared_size(request: Request) -> int | None:
    """Return the declared size of the body in bytes; None if it is not declared."""
    declared = header(request, b"content-length")
    # The server has refused values that are not numbers, and the chunks are counted anyway.
    return int(declared[:20]) if declared is not None and declared.isdecimal() else None


def _refuse_declared_size(request: Request, limit: int) -> int:
    """Return the declared size of the body in bytes; 0 if it is not declared."""
    size = declared_size(request) or 0
    if size > limit:
        raise _too_large(limit)
    return size


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"cannot accept this body: it is larger than {limit} bytes")


def _refuse_other_media(request: Request) -> None:
    given = header(request, b"content-type")
    if given is None or given == "application/json":
        return
    media, _, parameters = given.lower().partition(";")
    charset = parameters.replace(" ", "").replace('"', "")
    if media.strip() not in _JSON_MEDIA or charset not in ("", "charset=utf-8"):
        raise UnsupportedMediaType("cannot read this body: send application/json in UTF-8")
