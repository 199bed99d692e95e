"""The errors that a client raises: its own, and the daemon's, rebuilt from their code.

An error of the daemon has the same class in the client, so one `except` clause works on both sides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from memo.errors import MemoError, RevisionConflict
from sandboxd.errors import (
    DependencyError,
    Differs,
    FileError,
    Gone,
    InternalError,
    RequestError,
    SandboxdError,
    SandboxError,
)


class DaemonUnreachable(SandboxdError):
    """No daemon answers at this address, or it closed the connection before reading. Nothing was carried out."""

    code = "daemon.unreachable"
    retryable = True


class AnswerLost(DaemonUnreachable):
    """The connection broke before the answer: the call may or may not have been carried out."""

    code = "daemon.answer_lost"
    retryable = False


class WriteIncomplete(SandboxdError):
    """A process read only `taken_bytes` of the data. Writing everything again would repeat those bytes."""

    code = "process.write_incomplete"

    def __init__(self, taken_bytes: int, total_bytes: int, reason: Exception) -> None:
        super().__init__(
            f"cannot write all of the data: {taken_bytes} of {total_bytes} bytes were taken, then: {reason}; "
            f"continue with byte {taken_bytes}, or repeat the call with the same idempotency key if it had one"
        )
        self.taken_bytes = taken_bytes


_FAMILIES: dict[str, type[SandboxdError]] = {
    "request": RequestError,
    "session": RequestError,
    "process": RequestError,
    "context": SandboxError,
    "tool": RequestError,
    "route": RequestError,
    "file": FileError,
    "sandbox": SandboxError,
    "port": SandboxError,
    "preview": RequestError,
    "dependency": DependencyError,
    "engine": DependencyError,
    "credential": DependencyError,
    "store": DependencyError,
    "host": DependencyError,
    "consolidation": DependencyError,
    "internal": InternalError,
}


KNOWN_ERRORS: tuple[type[SandboxdError], type[MemoError]] = (SandboxdError, MemoError)
"""Every error that a call may raise, for an `except` clause."""


def _descendants(parent: type[Exception]) -> Iterator[type[Exception]]:
    yield parent
    for child in parent.__subclasses__():
        yield from _descendants(child)


_BY_CODE: dict[str, type[Exception]] = {
    kind.code: kind  # type: ignore[attr-defined]
    for root in reversed(KNOWN_ERRORS)
    for kind in _descendants(root)
    if kind.__module__ in ("memo.errors", "sandboxd.errors")
}
"""Return every class by code. A subclass wins over a parent with the same code, the daemon's over memo's."""


def raise_problem(status: int, body: bytes) -> NoReturn:
    """Raise the error that an answer describes."""
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        problem = None
    if not isinstance(problem, dict) or "code" not in problem:
        raise InternalError(f"cannot read the daemon's answer: status {status} without a problem document")
    raise rebuild(problem)


@contextmanager
def malformed_answers() -> Iterator[None]:
    """Raise an InternalError if the body cannot be parsed. The error never shows the body, which may hold secrets."""
    try:
        yield
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InternalError(
            f"cannot read the daemon's answer: it does not have the expected form ({type(error).__name__}); "
            "check that the address is that of a sandboxd daemon of this version"
        ) from None


def rebuild(problem: Mapping[str, Any]) -> Exception:
    """Return the error that a problem describes. An unknown code is kept, with the base class of its family."""
    code = str(problem.get("code", "internal.error"))
    detail = str(problem.get("detail", "cannot tell what went wrong: the daemon gave no detail"))
    if code == Gone.code:
        return Gone(detail, problem.get("cause", "engine"))
    if code == Differs.code:
        found = problem.get("differences")
        return Differs(detail, found if isinstance(found, dict) else {})
    known = _BY_CODE.get(code)
    if code == "memo.conflict":
        return _conflict(problem, detail)
    if known is not None:
        return known(detail)
    family = _FAMILIES.get(code.partition(".")[0], SandboxdError)
    fields = {"code": code, "retryable": problem.get("retryable") is True}
    unknown: type[SandboxdError] = type(family.__name__, (family,), fields)
    return unknown(detail)


def _conflict(problem: Mapping[str, Any], detail: str) -> Exception:
    """Return a conflict with the current document."""
    from memo.documents import Document  # loaded with the models of documents; not needed by every command

    text, revision, sha256 = problem.get("text"), problem.get("revision"), problem.get("sha256")
    if isinstance(text, str) and isinstance(revision, int) and isinstance(sha256, str):
        return RevisionConflict(detail, Document(text, revision, sha256))
    deletion = problem.get("deletion")
    return RevisionConflict(detail, deletion=deletion if isinstance(deletion, int) else None)
