"""Errors as `application/problem+json`: one table from code to status, one function from error to problem.

A problem never contains a traceback, output or document text, with one exception: a revision conflict carries the
current text.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from memo.errors import MemoError, ProviderError, RevisionConflict
from sandboxd.api.budget import Allotment
from sandboxd.api.pieces import object_answer
from sandboxd.errors import Busy, Differs, Gone, InvalidRequest, SandboxdError
from sandboxd.memory.outcomes import WriteConflict, WriteOutcomeUnknown
from sandboxd.models.problem import Problem

MEDIA_TYPE = "application/problem+json"

STATUS_BY_CODE = {
    "request.invalid": 400,
    "request.unauthorised": 401,
    "request.forbidden": 403,
    "request.outside_sandbox": 403,
    "request.not_found": 404,
    "sandbox.not_found": 404,
    "session.not_found": 404,
    "snapshot.not_found": 404,
    "process.not_found": 404,
    "context.not_found": 404,
    "context.busy": 409,
    "context.exists": 409,
    "context.unsupported": 409,
    "context.failed": 502,
    "tool.not_found": 404,
    "route.not_found": 404,
    "request.method_not_allowed": 405,
    "request.timeout": 408,
    "request.conflict": 409,
    "request.busy": 409,
    "request.cancelled": 409,
    "request.outcome_unknown": 409,
    "sandbox.differs": 409,
    "sandbox.hibernated": 409,
    "request.too_large": 413,
    "request.unsupported_media_type": 415,
    "request.upgrade_required": 426,
    "request.limit_reached": 429,
    "request.head_too_large": 431,
    "file.error": 400,
    "file.permission_denied": 403,
    "file.read_only": 403,
    "file.not_found": 404,
    "file.is_directory": 409,
    "file.not_a_directory": 409,
    "file.exists": 409,
    "file.not_empty": 409,
    "file.range_not_satisfiable": 416,
    "sandbox.gone": 410,
    "sandbox.error": 502,
    "port.closed": 502,
    "port.stream_closed": 502,
    "port.bad_answer": 502,
    "preview.unsupported": 409,
    "sandbox.not_ready": 503,
    "sandbox.paused": 503,
    "sandbox.tool_timeout": 504,
    "sandbox.workspace_full": 507,
    "dependency.error": 503,
    "engine.unavailable": 503,
    "engine.refused": 502,
    "credential.unavailable": 503,
    "store.unavailable": 503,
    "store.error": 502,
    "store.corrupt": 502,
    "store.timeout": 504,
    "host.full": 507,
    "host.busy": 503,
    "host.io": 503,
    "host.corrupt": 500,
    "host.error": 503,
    "consolidation.failed": 502,
    "consolidation.held": 409,
    "consolidation.lost": 409,
    "consolidation.refused": 502,
    "consolidation.budget": 422,
    "consolidation.summariser": 502,
    "consolidation.summariser_unavailable": 503,
    "consolidation.timeout": 504,
    "daemon.not_ready": 503,
    "memo.invalid_key": 400,
    "memo.too_large": 413,
    "memo.conflict": 412,
    "memo.absent": 404,
    "memo.redacted": 410,
    "memo.session_taken": 409,
    "memo.name_taken": 409,
    "memo.too_many": 409,
    "memo.invalid_content": 400,
    "memo.unsupported": 501,
    "memo.error": 400,
}
"""A code that is not listed is an internal error: 500."""


def status_of(code: str) -> int:
    return STATUS_BY_CODE.get(code, 500)


def problem(code: str, detail: str, *, retryable: bool = False, **members: Any) -> Problem:
    status = status_of(code)
    return Problem(
        type=f"urn:sandboxd:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=detail,
        retryable=retryable,
        **members,
    )


def problem_of(error: SandboxdError | MemoError) -> Problem:
    return problem(error.code, str(error), retryable=error.retryable, **_members(error))


def _members(error: SandboxdError | MemoError) -> dict[str, Any]:
    """Return the members, other than the code, that a caller can act on."""
    if isinstance(error, Gone):
        return {"cause": error.cause}
    if isinstance(error, Differs):
        return {"differences": error.differences}
    if isinstance(error, RevisionConflict):
        now = error.current
        current = {
            "revision": 0 if now is None else now.revision,
            "sha256": None if now is None else now.sha256,
            "text": None if now is None else now.content,
        }
        if error.deletion is not None:
            current["deletion"] = error.deletion
        copy = error.copy if isinstance(error, WriteConflict) else None
        return current if copy is None else {**current, "copy": copy.name}
    if isinstance(error, ProviderError | WriteOutcomeUnknown):
        return {"outcome_unknown": error.outcome_unknown}
    return {}


def large_problem(
    error: SandboxdError | MemoError, allotment: Allotment, headers: dict[str, str] | None = None
) -> Response:
    """Answer with an error that may carry a document's text; answer Busy if there is no memory for the text."""
    found = problem_of(error)
    text = found.members.get("text")
    if text is None:
        return render(found, headers)
    try:
        allotment.take_large(len(text))
    except (Busy, InvalidRequest) as refusal:
        return render(problem_of(refusal), {"retry-after": "1"})
    fields = found.model_dump(exclude={"text"})
    return object_answer(fields, {"text": text}, allotment, status=found.status, media_type=MEDIA_TYPE, headers=headers)


def render(found: Problem, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(found), found.status, headers, MEDIA_TYPE)


def as_answer(found: Problem) -> bytes:
    """Return a problem as the bytes of a complete answer that closes the connection."""
    body = to_json(found)
    head = f"HTTP/1.1 {found.status} {found.title}\r\ncontent-type: {MEDIA_TYPE}\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode("ascii") + body
