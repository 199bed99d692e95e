"""The outermost layer of the app: whatever is raised inside becomes one problem, and is logged at most once.

An unexpected error is logged here with its traceback and answered without it. A request that there is no room for
is refused here, before anything of it is read. What a call reserved in memory is given back here, whatever happened.
"""

from __future__ import annotations

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memo.errors import MemoError, RevisionConflict
from sandboxd.api.admission import Admission, tenant_of
from sandboxd.api.budget import Allotment, ByteBudget
from sandboxd.api.problems import large_problem, problem, problem_of, render
from sandboxd.api.refusals import ClientLeft, MethodNotAllowed
from sandboxd.api.request_path import check_path
from sandboxd.errors import InternalError, RouteNotFound, SandboxdError

_log = structlog.get_logger("sandboxd.api")


class Boundary:
    def __init__(self, app: ASGIApp, admission: Admission, budget: ByteBudget) -> None:
        self._app = app
        self._admission = admission
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_started = False

        async def watched(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        tenant = tenant_of(scope["path"])
        allotment = Allotment(self._budget, tenant or "")
        allotment.attach(scope)
        try:
            try:
                check_path(scope["raw_path"])
                await self._admitted(tenant, scope, receive, watched)
                return
            except ClientLeft:
                return
            except Exception as error:  # noqa: BLE001  # the boundary: answered and logged here, and nowhere else
                response = _answer(error, scope, allotment)
            # Here the error, and with it every value of the frames it passed, is gone. Once an answer has begun,
            # returning without its end makes the server break the connection, which is how a client learns that it
            # is not whole.
            if not is_started:
                await response(scope, receive, send)
        finally:
            allotment.shrink(0)

    async def _admitted(self, tenant: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        if tenant is None:
            await self._app(scope, receive, send)
            return
        self._admission.enter(tenant)
        try:
            await self._app(scope, receive, send)
        finally:
            self._admission.leave(tenant)


def _answer(error: Exception, scope: Scope, allotment: Allotment) -> Response:
    route = scope.get("route")
    where = f"{scope['method']} {getattr(route, 'path', 'unknown route')}"
    if isinstance(error, HTTPException):
        return _answer_routing(error)
    if isinstance(error, SandboxdError | MemoError):
        if isinstance(error, InternalError):
            _log.error("request failed", route=where, code=error.code, exc_info=error)
        return large_problem(error, allotment, _headers(error))
    _log.error("request failed", route=where, code="internal.error", exc_info=error)
    return render(problem("internal.error", "cannot answer: the daemon met an unexpected error and has logged it"))


def _answer_routing(error: HTTPException) -> Response:
    if error.status_code == 404:
        return render(problem_of(RouteNotFound("cannot find this route: GET /openapi.json lists them")))
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        refusal = MethodNotAllowed(f"cannot use this method here: {allow} is allowed")
        return render(problem_of(refusal), {"allow": allow})
    return render(problem("request.invalid", "cannot use this request"))


def _headers(error: SandboxdError | MemoError) -> dict[str, str] | None:
    if isinstance(error, RevisionConflict) and error.current is not None:
        return {"etag": f'"{error.current.revision}"'}
    return {"retry-after": "1"} if error.retryable else None
