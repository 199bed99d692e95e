"""What the memory routes share: the store, the session's user, the author of a write, and text bodies."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

from pydantic_core import PydanticSerializationError, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from memo.documents import Author
from memo.errors import InvalidKey, TooLarge, Unavailable
from memo.ids import SessionId, SessionRef, UserId
from memo.sessions import Session
from sandboxd.api import pieces
from sandboxd.api.answers import json_answer
from sandboxd.api.budget import allotment
from sandboxd.api.contracts import Memory
from sandboxd.api.refusals import BodyTooLarge, UnsupportedMediaType
from sandboxd.api.requests import header, read_body
from sandboxd.api.routes import Services
from sandboxd.errors import InvalidRequest, NotFound, SessionNotFound, StoreUnavailable
from sandboxd.idempotency import parse_key
from sandboxd.memory.outcomes import Committed, Queued
from sandboxd.models.document import QueuedWrite, WrittenRevision
from sandboxd.models.wire import AnswerModel

MAX_TEXT_BYTES = 67_108_864
"""The largest text of any store; it bounds what is read to compare a retry with the first request."""
MAX_ACTOR_CHARS = 100
MAX_REASON_CHARS = 1000
ACTOR_HEADER = "X-Memo-Actor"
AUTHOR_HEADERS = (ACTOR_HEADER, "X-Memo-Reason")


def memory_of(services: Services) -> Memory:
    if services.memory is None:
        raise StoreUnavailable("cannot use memory: this daemon has no store; serve with --store")
    return services.memory


def remembers_requests(services: Services) -> bool:
    """Return whether the store recognises a retried document write by its request id."""
    return services.memory is not None and services.memory.capabilities.revisions


def takes_requests(services: Services, verb: str) -> bool:
    """Return whether a method of the store recognises a retry by its request id."""
    return services.memory is not None and services.memory.client.takes(verb, "request")


def can(services: Services, verb: str) -> bool:
    return memory_of(services).client.has(verb)


async def ask_store(services: Services, verb: str, *args: Any, writes: bool = False, **named: Any) -> Any:
    """Call a method of the store through the store client, which sets the deadline and maps errors."""
    return await memory_of(services).client.call(verb.replace("_", " "), verb, *args, writes=writes, **named)


_UNUSABLE = (
    AttributeError,
    TypeError,
    InvalidKey,
    Unavailable,
    ValidationError,
    PydanticSerializationError,
    UnicodeError,
)
"""Raised when a store's answer does not have the expected shape."""


def foreign_answer(noun: str, build: Callable[[], AnswerModel], status: int = 200) -> Response:
    """Answer with what a store returned; raise StoreUnavailable if that is not `noun` or not JSON."""
    try:
        return json_answer(build(), status)
    except _UNUSABLE as error:
        raise unusable(f"it is not {noun}") from error


def unusable(why: str) -> StoreUnavailable:
    return StoreUnavailable(f"cannot use the store's answer: {why}")


async def foreign_list(request: Request, noun: str, build: Callable[[], Iterable[object]]) -> Response:
    """Answer with a list of any length that a store returned."""
    try:
        return await pieces.list_answer(build(), allotment(request))
    except _UNUSABLE as error:
        raise unusable(f"it is not {noun}") from error


async def find_session(services: Services, ref: SessionRef) -> Session | None:
    """Return the session from the store; None if the store does not have it or keeps no sessions."""
    if not can(services, "get_session"):
        return None
    found = await ask_store(services, "get_session", ref.tenant, ref.session)
    try:
        return None if found is None else Session.parse(found, ref.tenant)
    except _UNUSABLE as error:
        raise unusable("it is not a session") from error


async def user_of(services: Services, ref: SessionRef) -> UserId:
    """Return the session's user: the sandbox's, else the one in the store."""
    try:
        return services.manager.get(ref).user
    except NotFound:
        session = await find_session(services, ref)
    if session is None:
        raise SessionNotFound("cannot find this session")
    return session.user


async def require_session(services: Services, ref: SessionRef) -> None:
    """Raise NotFound if neither a sandbox nor the store has the session: an empty answer would hide that."""
    if services.memory is not None and not can(services, "get_session"):
        return  # a store that keeps no sessions cannot tell whether one exists
    await user_of(services, ref)


def author_of(request: Request, verb: str, content: str, session: SessionId | None) -> Author:
    """Return the author from the headers. The Idempotency-Key goes to the store as well, where it survives a crash."""
    actor = actor_of(request)
    reason = _text_header(request, b"x-memo-reason", MAX_REASON_CHARS)
    return Author(actor, session, reason, request_of(request, verb, content))


def actor_of(request: Request, default: str = "host") -> str:
    """Return who makes the request, as it says itself."""
    return _text_header(request, b"x-memo-actor", MAX_ACTOR_CHARS) or default


def request_of(request: Request, verb: str, content: str | bytes) -> str | None:
    """Return an id for this request; a different verb or content under the same key gives a different id."""
    key = header(request, b"idempotency-key")
    if key is None:
        return None
    raw = content if isinstance(content, bytes) else content.encode()
    return f"{verb}:{hashlib.sha256(raw).hexdigest()[:32]}:{parse_key(key)}"


def _text_header(request: Request, name: bytes, most: int) -> str:
    label = name.decode().title()
    try:
        text = (header(request, name) or "").encode("latin-1").decode().strip()
    except UnicodeDecodeError:
        raise InvalidRequest(f"cannot use {label}: it is not UTF-8") from None
    if len(text) > most or not text.isprintable():
        raise InvalidRequest(f"cannot use {label}: it must be at most {most} printable characters")
    return text


async def read_text(request: Request, noun: str, limit: int) -> str:
    """Read a text body; refuse it before more than `limit` bytes are read."""
    media, _, parameters = (header(request, b"content-type") or "").lower().partition(";")
    charset = parameters.replace(" ", "").replace('"', "").partition("charset=")[2].partition(";")[0]
    if media.strip().startswith("multipart/") or charset not in ("", "utf-8", "utf8"):
        raise UnsupportedMediaType("cannot read this body: send the text itself, in UTF-8")
    try:
        raw = await read_body(request, limit)
    except BodyTooLarge:
        advice = "; the daemon's setting max_document_bytes raises the limit" if noun == "document" else ""
        raise TooLarge(f"cannot store this {noun}: it is larger than {limit} bytes{advice}") from None
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"cannot store this {noun}: byte {error.start} is not UTF-8") from None
    if "\0" in text:
        raise InvalidRequest(f"cannot store this {noun}: it contains a NUL character")
    allotment(request).take_large(sys.getsizeof(text))
    return text


def written(outcome: Committed | Queued) -> Response:
    if isinstance(outcome, Queued):
        return json_answer(QueuedWrite(), 202)
    answer = json_answer(WrittenRevision(revision=outcome.revision, sha256=outcome.sha256, merged=outcome.merged))
    answer.headers["etag"] = f'"{outcome.revision}"'
    return answer


def text_answer(request: Request, text: str, media_type: str, etag: int | None = None) -> Response:
    headers = {"content-type": f"{media_type}; charset=utf-8"}
    if etag is not None:
        headers["etag"] = f'"{etag}"'
    return pieces.text_answer(text, allotment(request), headers)
