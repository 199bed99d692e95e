"""Named calls: a client names a call with `X-Call-Id`, and another request cancels it and waits until it has ended.

Closing a connection cancels its call too, but does not tell the client when the processes of the call are dead. The
table has only calls under way, so the limit on calls bounds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sandboxd.api.requests import session_ref
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.errors import CallCancelled, Conflict, InvalidRequest, SandboxdError

CALLS = "sandboxd.calls"
"""Scope key of the table."""
BARRIER_S = 10.0
"""How long to wait for the runner after a call has ended."""

_HEADER = b"x-call-id"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SESSION_PATH = re.compile(r"/v1/tenants/([^/]+)/sessions/([^/]+)/.+")

_Key = tuple[str, str, str]


class _NamedCall:
    __slots__ = ("ended", "scope")

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()


class CallTable:
    """The named calls under way, by tenant, session and id."""

    def __init__(self) -> None:
        self._calls: dict[_Key, _NamedCall] = {}

    @contextmanager
    def name(self, key: _Key) -> Iterator[None]:
        """Name the call that runs in this block; raise CallCancelled if it is cancelled by its name."""
        if key in self._calls:
            raise Conflict("cannot name this call: another call of the session has this X-Call-Id; use a new one")
        call = self._calls[key] = _NamedCall()
        try:
            with call.scope:
                yield
        finally:
            del self._calls[key]
            call.ended.set()
        if call.scope.cancelled_caught:
            raise CallCancelled("cannot finish this call: it was cancelled by its X-Call-Id")

    async def cancel(self, key: _Key) -> None:
        """Cancel a call and wait until it has ended. A call that is not under way has ended."""
        call = self._calls.get(key)
        if call is not None:
            call.scope.cancel()
            await call.ended.wait()


class CallMiddleware:
    """Names the calls on a session that carry the header."""

    def __init__(self, app: ASGIApp, table: CallTable) -> None:
        self._app = app
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[CALLS] = self._table
        call_id = next((value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER), None)
        if call_id is None:
            await self._app(scope, receive, send)
            return
        path = _SESSION_PATH.fullmatch(scope["path"])
        if path is None or _ID.fullmatch(call_id) is None:
            raise InvalidRequest(
                "cannot name this call: X-Call-Id is for calls on a session, and has 1 to 64 letters, digits, _ or -"
            )
        with self._table.name((path[1], path[2], call_id)):
            await self._app(scope, receive, send)


async def cancel_call(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    table: CallTable = request.scope[CALLS]
    await table.cancel((ref.tenant, ref.session, request.scope["path_params"]["call"]))
    # The runner kills what a cancelled call started as soon as it reads of it, and answers in order: after this answer
    # every process of the call has been killed. Without a runner there are none.
    with suppress(SandboxdError), anyio.move_on_after(BARRIER_S):
        services.manager.get(ref)
        with await services.manager.call(ref) as runner:
            await runner.list_processes()
    return Response(status_code=204)


ENDPOINTS = (
    Endpoint(
        "DELETE",
        f"{SESSION}/calls/{{call}}",
        cancel_call,
        "cancel",
        Access.WRITE,
        "Cancel the call that was sent with this `X-Call-Id`, and answer once the processes that it started are "
        "killed; a call that has ended, or never began, counts as cancelled",
        answers={204: None},
    ),
)
