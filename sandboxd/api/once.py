"""Idempotency keys: a write with a key runs at most once, and every repeat gets the same answer.

Sits between a route and the connection. It hashes the body as the route reads it and stores the answer as the route
sends it, so a body is never held twice. A request that failed before it changed anything releases its key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence

import anyio
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memo.errors import MemoError, Unsupported
from sandboxd.api.budget import SMALL_BYTES, Allotment, allotment
from sandboxd.api.pieces import Pieces, slices
from sandboxd.api.problems import status_of
from sandboxd.api.requests import chunks, header, wants_events
from sandboxd.errors import Busy, Conflict, HostFull, InvalidRequest, SandboxdError
from sandboxd.idempotency import MAX_ANSWER_BYTES, IdempotencyStore, KeptAnswer, OutcomeUnknown, parse_key

REPEATED = "sandboxd.repeated"
"""Scope key for routes that handle repeats: the first request with this key was interrupted at an unknown point."""
UNSETTLED = "sandboxd.unsettled"
"""Scope key set by a route whose answer is not stored: a retry runs again."""
BEGUN = "sandboxd.begun"
"""Scope key set by a route when it passes work to a sandbox: a later failure has an unknown outcome."""


async def answer_once(
    app: ASGIApp,
    store: IdempotencyStore,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    body_limit: int,
    repeatable: bool,
    judges_repeats: bool = False,
) -> None:
    request = Request(scope, receive, send)
    key = parse_key(header(request, b"idempotency-key") or "")
    place = _place(scope)
    digest = _digest_of_head(request)
    memory = allotment(request)
    try:
        known, scope[REPEATED] = await _claim(store, place, key, repeatable or judges_repeats)
    except HostFull:
        if not repeatable:
            raise
        # It is idempotent anyway, and may be what frees disk space.
        await app(scope, receive, send)
        return
    if known is not None:
        memory.take_large(len(known.body or b""))
        if body_limit:
            async for piece in chunks(request, body_limit):
                digest.update(piece)
        await _replay(known, digest.digest(), request, memory, send)
        return

    async def hashed() -> Message:
        message = await receive()
        if body_limit and message["type"] == "http.request":
            digest.update(message.get("body", b""))
        return message

    async def keep(answer: KeptAnswer) -> None:
        if scope.get(UNSETTLED):
            await store.release(place, key)
        else:
            try:
                await store.finish(place, key, answer)
            except HostFull:
                if not repeatable:
                    raise

    recorder = _Recorder(send, keep, digest, memory)
    try:
        await app(scope, hashed, recorder.send)
    except OutcomeUnknown:
        await store.lose(place, key)
        raise
    except (SandboxdError, MemoError) as error:
        refused = status_of(error.code) < 500 or isinstance(error, Unsupported)
        if refused or repeatable or not scope.get(BEGUN):
            await store.release(place, key)
        else:
            await store.lose(place, key)
        raise
    except BaseException:
        with anyio.CancelScope(shield=True):
            if recorder.is_kept:
                pass  # the answer is stored; only sending it was interrupted
            elif repeatable or not scope.get(BEGUN):
                await store.release(place, key)
            else:
                await store.lose(place, key)
        raise


async def _claim(store: IdempotencyStore, place: str, key: str, repeatable: bool) -> tuple[KeptAnswer | None, bool]:
    """Claim the key; return whether a crash interrupted its first request, which then runs again if that is safe."""
    try:
        return await store.begin(place, key), False
    except OutcomeUnknown:
        if not repeatable:
            raise
    await store.release(place, key)
    return await store.begin(place, key), True


def _place(scope: Scope) -> str:
    """Return the scope of a key: tenant (or none), verb and path."""
    return f"{scope['path_params'].get('tenant', '')} {scope['method']} {scope['path']}"


def _digest_of_head(request: Request) -> hashlib._Hash:
    query: bytes = request.scope["query_string"]
    return hashlib.sha256(query + (b"\0events\0" if wants_events(request) else b"\0\0"))


async def _replay(answer: KeptAnswer, digest: bytes, request: Request, memory: Allotment, send: Send) -> None:
    if answer.digest != digest:
        raise Conflict("cannot reuse this Idempotency-Key: it belongs to another request; send a new key")
    if answer.body is None:
        raise OutcomeUnknown(
            f"cannot repeat the answer: the first request was carried out with status {answer.status}, "
            "but its answer was too large to keep"
        )
    headers = {**dict(answer.headers), "idempotency-replayed": "true"}
    await Pieces(slices(answer.body), memory, answer.status, None, headers)(request.scope, request.receive, send)


class _Recorder:
    """Forwards an answer and stores a copy, which is durable before the last chunk is sent.

    If there is no memory for the copy of a large answer, only its status is stored.
    """

    def __init__(
        self, send: Send, finish: Callable[[KeptAnswer], Awaitable[None]], digest: hashlib._Hash, memory: Allotment
    ) -> None:
        self._send = send
        self._finish = finish
        self._digest = digest
        self._memory = memory
        self._start: Message | None = None
        self._is_started = False
        self._status = 0
        self._headers: Sequence[tuple[bytes, bytes]] = ()
        self._copy: list[bytes] | None = []
        self._copied = 0
        self._reserved = SMALL_BYTES
        self.is_kept = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start, self._status, self._headers = message, message["status"], message["headers"]
            return
        if self._copy is not None:
            self._add(message.get("body", b""), self._copy)
        if not message.get("more_body", False):
            await self._keep()
        if not self._is_started and self._start is not None:
            self._is_started = True
            await self._send(self._start)
        await self._send(message)

    def _add(self, piece: bytes, copy: list[bytes]) -> None:
        copy.append(piece)
        self._copied += len(piece)
        try:
            if self._copied > MAX_ANSWER_BYTES:
                self._copy = None
            elif self._copied > self._reserved:
                self._memory.take(self._copied)
                self._reserved += self._copied
        except (Busy, InvalidRequest):
            self._copy = None

    async def _keep(self) -> None:
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in self._headers)
        body = None if self._copy is None else b"".join(self._copy)
        self._copy = None
        await self._finish(KeptAnswer(self._digest.digest(), self._status, headers, body))
        self.is_kept = True
