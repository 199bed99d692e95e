"""A write with an Idempotency-Key: done at most once, answered as often as asked.

Sits between a route and the wire. It hashes the body as the route reads it and keeps the answer as the route sends
it, so a body is never held twice. A request that failed before anything was done gives its key back.
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
from sandboxd.idempotency import MAX_ANSWER_BYTES, Answer, IdempotencyStore, OutcomeUnknown, parse_key

REPEATED = "sandboxd.repeated"
"""In the scope of a route that judges repeats: the first request with this key was cut short, nobody knows where."""
UNSETTLED = "sandboxd.unsettled"
"""Set in the scope by a route whose answer is worth no keeping: a retry shall try again."""
BEGUN = "sandboxd.begun"
"""Set in the scope by a route when it hands work to a sandbox: from then on a failure has an unknown outcome."""


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
        # Doing it twice is the same as doing it once, and it may be what frees the disk.
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

    async def keep(answer: Answer) -> None:
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
                pass  # the work was done and its answer is kept; only the sending was cut short
            elif repeatable or not scope.get(BEGUN):
                await store.release(place, key)
            else:
                await store.lose(place, key)
        raise


async def _claim(store: IdempotencyStore, place: str, key: str, repeatable: bool) -> tuple[Answer | None, bool]:
    """Claim the key, and say whether a crash cut short its first request: then it is done again, if it may be."""
    try:
        return await store.begin(place, key), False
    except OutcomeUnknown:
        if not repeatable:
            raise
    await store.release(place, key)
    return await store.begin(place, key), True


def _place(scope: Scope) -> str:
    """Where a key counts: its tenant (or none), the verb and the path."""
    return f"{scope['path_params'].get('tenant', '')} {scope['method']} {scope['path']}"


def _digest_of_head(request: Request) -> hashlib._Hash:
    query: bytes = request.scope["query_string"]
    return hashlib.sha256(query + (b"\0events\0" if wants_events(request) else b"\0\0"))


async def _replay(answer: Answer, digest: bytes, request: Request, memory: Allotment, send: Send) -> None:
    if answer.digest != digest:
        raise Conflict("cannot use this Idempotency-Key again: it was used for another request")
    if answer.body is None:
        raise OutcomeUnknown(
            f"cannot answer again: the first request was carried out with status {answer.status}, "
            "but its answer was too large to keep"
        )
    headers = {**dict(answer.headers), "idempotency-replayed": "true"}
    await Pieces(slices(answer.body), memory, answer.status, None, headers)(request.scope, request.receive, send)


class _Recorder:
    """Passes an answer on and keeps a copy; the copy is durable before the last piece leaves.

    Without memory for the copy of a large answer, only its status is kept.
    """

    def __init__(
        self, send: Send, finish: Callable[[Answer], Awaitable[None]], digest: hashlib._Hash, memory: Allotment
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
        await self._finish(Answer(self._digest.digest(), self._status, headers, body))
        self.is_kept = True
