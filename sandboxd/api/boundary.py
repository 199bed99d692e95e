"""The boundary of the app: whatever is raised inside becomes one problem, and is logged at most once.

An unexpected error is logged here with its traceback and answered without it.
"""

from __future__ import annotations

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memo.errors import MemoError, RevisionConflict
from sandboxd.api.budget import allotment_of
from sandboxd.api.previews import VISIT
from sandboxd.api.problems import large_problem, problem, render
from sandboxd.api.refusals import ClientLeft, MethodNotAllowed, UpgradeRequired
from sandboxd.api.request_path import check_path
from sandboxd.errors import InternalError, RangeNotSatisfiable, SandboxdError

_log = structlog.get_logger("sandboxd.api")


class Boundary:
    """ASGI middleware outside everything except the byte budget, which also covers large problems."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_started = False

        async def watched(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            if VISIT not in scope:  # its host name says which tenant it is, whatever its path
                check_path(scope["raw_path"])
            await self._app(scope, receive, watched)
            return
        except ClientLeft:
            return
        except Exception as error:  # noqa: BLE001  # the boundary: answered and logged here, and nowhere else
            response = _answer(error, scope)
        # The error, and every value in the frames it passed through, has been freed by now. Once an answer has begun,
        # returning without completing it makes the server break the connection, which is how a client detects that the
        # answer is incomplete.
        if not is_started:
            await response(scope, receive, send)


def _answer(error: Exception, scope: Scope) -> Response:
    route = scope.get("route")
    where = f"{scope['method']} {getattr(route, 'path', 'unknown route')}"
    if isinstance(error, SandboxdError | MemoError):
        if isinstance(error, InternalError):
            _log.error("request failed", route=where, code=error.code, exc_info=error)
        return large_problem(error, allotment_of(scope), _headers(error))
    _log.error("request failed", route=where, code="internal.error", exc_info=error)
    return render(problem("internal.error", "cannot answer: the daemon met an unexpected error and has logged it"))


def _headers(error: SandboxdError | MemoError) -> dict[str, str] | None:
    if isinstance(error, MethodNotAllowed):
        return {"allow": error.allowed}
    if isinstance(error, RangeNotSatisfiable):
        return {"content-range": f"bytes */{error.size_bytes}"}
    if isinstance(error, UpgradeRequired):
        return {"upgrade": "websocket", "sec-websocket-version": "13"}
    if isinstance(error, RevisionConflict) and error.current is not None:
        return {"etag": f'"{error.current.revision}"'}
    return {"retry-after": "1"} if error.retryable else None
